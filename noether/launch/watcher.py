"""How did the run end: waits for the workers, passes signals on, and leaves no process behind."""

import collections
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TextIO

from noether.launch.death_signal import adopt_orphans, end_descendants
from noether.launch.failure import (
    as_phrase,
    death_report,
    describe_failure,
    first_failure,
    is_failure,
    run_exit_code,
    where_in_stack,
)
from noether.launch.placement import WorkerReport
from noether.launch.spawner import RunningWorker
from noether.launch.worker import STACK_SIGNAL, STOP_SIGNALS, write_error_file

# How long the others may take to say what they saw once one rank has failed.
GRACE_S = 2.0
# How long a process may take to go after SIGKILL; one in uninterruptible I/O does not go at all.
KILL_S = 4.0
# How long what a finished worker left running may take to end by itself.
LEFTOVER_S = 2.0
# A terminal, a shell and a container may each pass on one Ctrl-C: closer together they are one.
SECOND_INTERRUPT_S = 0.5


def watch_workers(
    running: Sequence[RunningWorker], log_folder: Path, *, grace_s: float = GRACE_S, stream: TextIO | None = None
) -> int:
    """Wait until the run is over, and return its exit code; every process of the run is gone afterwards.

    The first failing rank decides. The others get `grace_s` to report, then their process groups are killed, and
    then whatever else of the tree is left, within 10 s in all. SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 are
    passed on once each to every worker, which stops at a boundary agreed with the others and exits with 75; a
    second SIGINT half a second or more after the first ends everything at once.

    Args:
        running: from `start_workers`.
        log_folder: where the reports of failed ranks are written, and the stacks of those that hung.
        grace_s: seconds from the first failure to the end of the others.
        stream: where the first failure is shown; None is stderr.
    """
    stream = stream or sys.stderr
    watch = _Watch({worker.rank: worker for worker in running}, log_folder)
    with _SignalInbox() as inbox:
        watch.until_decided(inbox, grace_s)
        failure = first_failure(watch.reports.values())
        doing = watch.where_others_are() if failure is not None and not watch.interrupted else {}
        if failure is not None:
            for rank, report in watch.reports.items():
                doing.setdefault(rank, as_phrase(report))
        if watch.interrupted:
            print("noether: interrupted twice; every worker is ended", file=stream, flush=True)
        elif failure is not None:
            doing.pop(failure.rank, None)
            text = describe_failure(failure, doing, log_folder, running[0].context.world_size)
            print(text, file=stream, flush=True)
        for rank in watch.end_all(clean=failure is None and not watch.interrupted):
            worker = watch.workers[rank]
            print(f"noether: rank {rank} (pid {worker.pid}) does not end: stuck in I/O?", file=stream)
    return 128 + signal.SIGINT if watch.interrupted else run_exit_code(watch.reports.values())


@dataclass
class _Watch:
    """The run as the launcher sees it: who is alive, and the last word of who is not."""

    workers: Mapping[int, RunningWorker]
    log_folder: Path
    reports: dict[int, WorkerReport] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    forwarded: dict[int, float] = field(default_factory=dict)
    interrupted: bool = False

    def until_decided(self, inbox: "_SignalInbox", grace_s: float) -> None:
        """Wait until all have ended, or one has failed and the rest had their time, or Ctrl-C came twice."""
        self.alive = set(self.workers)
        deadline: float | None = None
        while self.alive and not self.interrupted:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            heard = [self.workers[rank].reports for rank in self.alive if rank not in self.reports]
            ready = wait([inbox.reader, *heard, *(self.workers[rank].ended for rank in self.alive)], timeout)
            for number, moment in inbox.received():
                self._take_signal(number, moment)
            for rank in sorted(self.alive):
                self._take_word(self.workers[rank], ready)
            if deadline is None and any(is_failure(report) for report in self.reports.values()):
                deadline = time.monotonic() + grace_s
            elif deadline is not None and time.monotonic() >= deadline:
                return

    def _take_signal(self, number: int, moment: float) -> None:
        if number not in self.forwarded:
            self.forwarded[number] = moment
            self._signal(number)
        elif number == signal.SIGINT and moment - self.forwarded[number] >= SECOND_INTERRUPT_S:
            self.interrupted = True

    def _signal(self, number: int) -> None:
        for rank in self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.workers[rank].pid, number)

    def _take_word(self, worker: RunningWorker, ready: Sequence[Any]) -> None:
        ended = worker.ended in ready
        seen = time.time()
        if worker.rank not in self.reports and (worker.reports in ready or ended):
            with contextlib.suppress(EOFError, OSError):
                if worker.reports.poll():
                    self.reports[worker.rank] = worker.reports.recv()
        if not ended:
            return
        self.alive.discard(worker.rank)
        exitcode = _exit_code(worker)
        if worker.rank not in self.reports:
            report = death_report(worker.context, worker.pid, exitcode, self.forwarded, seen)
            self.reports[worker.rank] = report
            write_error_file(report, self.log_folder)

    def where_others_are(self) -> dict[int, str]:
        """Ask the ranks that neither ended nor reported for their stacks, and save and summarise those."""
        silent = [self.workers[rank] for rank in sorted(self.alive - set(self.reports))]
        asked = {worker.stacks: worker for worker in silent}
        doing = {worker.rank: "running" for worker in silent}
        if STACK_SIGNAL is not None:
            for worker in silent:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, STACK_SIGNAL)
            deadline = time.monotonic() + 0.3
            while asked and (left := deadline - time.monotonic()) > 0:
                for ready in wait(list(asked), left):
                    worker = asked.pop(ready)  # type: ignore[call-overload]
                    time.sleep(0.02)  # faulthandler writes line by line.
                    text = os.read(worker.stacks.fileno(), 1 << 16).decode("utf-8", "replace")
                    doing[worker.rank] = where_in_stack(text)
                    with contextlib.suppress(OSError):
                        path = self.log_folder / f"rank-{worker.rank}.stack.txt"
                        path.write_text(text, encoding="utf-8")
        return {rank: f"{phrase}, ended by the launcher" for rank, phrase in doing.items()}

    def end_all(self, *, clean: bool) -> list[int]:
        """End what is left of the run, grandchildren included; return the ranks that would not go.

        After a clean end what the workers left behind gets a moment to end by itself.
        """
        for worker in self.workers.values():
            _kill_tree(worker, alive=worker.rank in self.alive, group=not clean)
        deadline = time.monotonic() + KILL_S
        while self.alive and (left := deadline - time.monotonic()) > 0:
            ready = wait([self.workers[rank].ended for rank in self.alive], left)
            self.alive = {rank for rank in self.alive if self.workers[rank].ended not in ready}
        bystanders = next(iter(self.workers.values())).bystanders
        end_descendants(os.getpid(), bystanders, patience_s=LEFTOVER_S if clean else 0.0)
        adopt_orphans(False)
        for worker in self.workers.values():
            worker.reports.close()
            worker.stacks.close()
            if worker.rank not in self.alive:
                _exit_code(worker)
                if worker.ended != worker.process.sentinel:
                    os.close(worker.ended)
        return sorted(self.alive)


def _kill_tree(worker: RunningWorker, *, alive: bool, group: bool) -> None:
    # A dead worker's group lives on while one of its children does, and its number is not used again before.
    if group:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
    if alive:  # It may have been so young that it had no group of its own.
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)


def _exit_code(worker: RunningWorker) -> int:
    # Readable a moment before it can be waited for.
    deadline = time.monotonic() + 1.0
    while worker.process.exitcode is None and time.monotonic() < deadline:
        time.sleep(0.001)
    return worker.process.exitcode if worker.process.exitcode is not None else 255


class _SignalInbox:
    """Signals as messages: the handler notes number and time, and `reader` wakes whoever waits."""

    def __enter__(self) -> "_SignalInbox":
        self._queue: collections.deque[tuple[int, float]] = collections.deque()
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._queue.append((number, time.monotonic()))
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"!")

    def received(self) -> list[tuple[int, float]]:
        """Return (signal number, monotonic seconds) of what came since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.reader, 4096)
        return [self._queue.popleft() for _ in range(len(self._queue))]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            if handler is not None:
                signal.signal(number, handler)
        os.close(self.reader)
        os.close(self._writer)
