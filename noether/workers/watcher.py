"""How did the run end: waits for the workers, passes signals on, and leaves no process behind."""

import collections
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TextIO

from noether.common.processes import is_stopped
from noether.common.signals import STOP_SIGNALS
from noether.errors import ExitCode
from noether.workers.context import WorkerContext, WorkerReport
from noether.workers.death_signal import adopt_orphans, end_descendants
from noether.workers.failure import (
    as_phrase,
    death_report,
    describe_briefly,
    describe_failure,
    first_failure,
    is_failure,
    is_timeout,
    run_exit_code,
    where_in_stack,
)
from noether.workers.hang import name_missing
from noether.workers.link import Doing, Hub, Spoke
from noether.workers.rank_state import Meeting, read_board
from noether.workers.spawner import RunningWorker
from noether.workers.worker import STACK_SIGNAL, error_file, write_error_file

# How long the others may take to say what they saw once one rank has failed.
GRACE_S = 2.0
# How long a rank may take to say where it is; a stopped one does not.
STACK_S = 0.5
# How long the other launchers may take to say what their ranks do, and rank 0's to decide.
ANSWER_S = 1.5
VERDICT_S = 5.0
# How long a process may take to go after SIGKILL; one in uninterruptible I/O does not go at all.
KILL_S = 4.0
# How long what a finished worker left running may take to end by itself.
LEFTOVER_S = 2.0
# A terminal, a shell and a container may each pass on one Ctrl-C: closer together they are one.
SECOND_INTERRUPT_S = 0.5


def watch_workers(
    running: Sequence[RunningWorker],
    log_folder: Path,
    *,
    grace_s: float = GRACE_S,
    stream: TextIO | None = None,
    hub: Hub | None = None,
) -> int:
    """Wait until the run is over, and return its exit code; every process of it on this host is gone afterwards.

    The first failing rank decides, wherever it runs. The others get `grace_s` to report, then their process groups
    are killed, and then whatever else of the tree is left, within 10 s in all. SIGINT, SIGTERM, SIGUSR1 and
    SIGUSR2 are passed on once each to every worker, which stops at a boundary agreed with the others and exits
    with 75; a second SIGINT half a second or more after the first ends everything at once.

    Of a run on several hosts, the launcher of rank 0 says who failed, and the others a line each.

    Args:
        running: from `start_workers`.
        log_folder: where the reports of failed ranks are written, and the stacks of those that hung.
        grace_s: seconds from the first failure to the end of the others.
        stream: where the first failure is shown; None is stderr.
        hub: the link to the other launchers of the run, where this one answers for rank 0 and others exist.
    """
    stream = stream or sys.stderr
    watch = _Watch({worker.rank: worker for worker in running}, log_folder, hub)
    with _SignalInbox() as inbox:
        watch.until_decided(inbox, grace_s)
        failure = None if watch.interrupted else watch.decide(inbox)
        if watch.interrupted:
            print("noether: interrupted twice; every worker is ended", file=stream, flush=True)
        elif failure is not None:
            print(watch.describe(failure), file=stream, flush=True)
        watch.hang_up(failure)
        for rank in watch.end_all(clean=failure is None and not watch.interrupted):
            worker = watch.workers[rank]
            print(f"noether: rank {rank} (pid {worker.pid}) does not end: stuck in I/O?", file=stream)
    if watch.interrupted:
        return 128 + signal.SIGINT
    own = run_exit_code(watch.own_reports())
    return own if failure is None or (is_failed(own) and watch.is_spoke) else failure.exit_code


def is_failed(code: int) -> bool:
    """Whether an exit code says that a rank failed."""
    return code not in (ExitCode.DONE, ExitCode.CHECKPOINTED)


@dataclass
class _Watch:
    """The run as the launcher sees it: who is alive, and the last word of who is not."""

    workers: Mapping[int, RunningWorker]
    log_folder: Path
    link: Hub | Spoke | None = None
    reports: dict[int, WorkerReport] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    doing: dict[int, Doing] = field(default_factory=dict)
    forwarded: dict[int, float] = field(default_factory=dict)
    interrupted: bool = False
    verdict: WorkerReport | None = None
    meeting_logs: Path | None = None

    @property
    def is_spoke(self) -> bool:
        """Whether another launcher decides."""
        return isinstance(self.link, Spoke)

    @property
    def _context(self) -> WorkerContext:
        return next(iter(self.workers.values())).context

    def own_reports(self) -> list[WorkerReport]:
        """The last words of the ranks of this launcher."""
        return [report for rank, report in self.reports.items() if rank in self.workers]

    def until_decided(self, inbox: "_SignalInbox", grace_s: float) -> None:
        """Wait until all have ended, or one has failed and the rest had their time, or Ctrl-C came twice."""
        self.alive = set(self.workers)
        deadline: float | None = None
        # The hub outlives its own ranks: it is asked who failed first until the others are done.
        while (self.alive or (isinstance(self.link, Hub) and self.link.is_waiting())) and not self.interrupted:
            self._hear(inbox, deadline)
            if deadline is None and self._has_failed():
                deadline = time.monotonic() + grace_s
                if isinstance(self.link, Hub):
                    self.link.ask()
            elif deadline is not None and (time.monotonic() >= deadline or self.verdict is not None):
                return
            if deadline is not None and not self.alive and self._all_have_reported():
                return

    def _all_have_reported(self) -> bool:
        return isinstance(self.link, Hub) and all(rank in self.reports for rank in self.link.remote_ranks)

    def _has_failed(self) -> bool:
        return self.verdict is not None or any(is_failure(report) for report in self.reports.values())

    def _hear(self, inbox: "_SignalInbox", deadline: float | None) -> None:
        """Wait for whatever comes first, a signal, a word, an end, a message, and take it."""
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        linked: list[Any] = []
        if self.link is not None:
            linked = list(self.link.descriptors())
            timeout = self.link.beat_s if timeout is None else min(timeout, self.link.beat_s)
        heard = [self.workers[rank].reports for rank in self.alive if rank not in self.reports]
        ready = wait([inbox.reader, *linked, *heard, *(self.workers[rank].ended for rank in self.alive)], timeout)
        for number, moment in inbox.received():
            self._take_signal(number, moment)
        for rank in sorted(self.alive):
            self._take_word(self.workers[rank], ready)
        if self.link is not None:
            self._take_messages(self.link)

    def _take_messages(self, link: Hub | Spoke) -> None:
        link.tend()
        for report in link.reports:
            if report.rank not in self.workers:
                self.reports.setdefault(report.rank, report)
        link.reports.clear()
        self.doing.update(link.doing)
        self.verdict = link.verdict
        if isinstance(link, Spoke) and link.asked:
            link.answer(self.where_others_are())

    def decide(self, inbox: "_SignalInbox") -> WorkerReport | None:
        """Return what the run failed of, or None; a launcher without rank 0 waits a moment to be told."""
        if not self._has_failed():
            return None
        if isinstance(self.link, Spoke):
            deadline = time.monotonic() + VERDICT_S
            while self.link.peers and self.verdict is None and (left := deadline - time.monotonic()) > 0:
                self._hear(inbox, time.monotonic() + left)
            if self.verdict is not None:
                return self.verdict
        self.doing.update((entry.rank, entry) for entry in self.where_others_are())
        if isinstance(self.link, Hub):
            self._ask_the_others(self.link, inbox)
        failure = first_failure(self.reports.values())
        waited = [report for report in self.reports.values() if is_timeout(report)]
        if failure is not None and is_timeout(failure) and waited:
            silent = {rank: entry for rank, entry in self.doing.items() if rank not in self.reports}
            failure = name_missing(waited, silent, self._context.terms.timeouts) or failure
            if failure.kind == "hung":
                write_error_file(failure, self._run_logs)
        return failure

    def _ask_the_others(self, hub: Hub, inbox: "_SignalInbox") -> None:
        deadline = time.monotonic() + ANSWER_S
        while hub.silent_ranks() and (left := deadline - time.monotonic()) > 0:
            self._hear(inbox, time.monotonic() + left)
        for rank in set(hub.silent_ranks()) - set(self.reports):
            host = next((peer.host for peer in hub.peers if rank in peer.ranks), "")
            self.doing[rank] = Doing(rank, host, "says nothing: its host is down, or out of reach")

    def describe(self, failure: WorkerReport) -> str:
        """Return what is shown of the run's end: all that is known where rank 0 is watched, else one line."""
        if self.is_spoke and (failure is self.verdict or failure.kind == "lost"):
            return describe_briefly(failure, self.workers, error_file(self._run_logs, failure.rank))
        doing = {rank: entry.phrase for rank, entry in self.doing.items()}
        doing |= {rank: as_phrase(report) for rank, report in self.reports.items()}
        doing.pop(failure.rank, None)
        return describe_failure(failure, doing, self._run_logs, self._context.world_size)

    @property
    def _run_logs(self) -> Path:
        # Where the hosts share no file system, the run's folder may not be here.
        told = self.meeting_logs
        return told if told is not None and told.is_dir() else self.log_folder

    def hang_up(self, failure: WorkerReport | None) -> None:
        """Tell the other launchers how it ended, and close the link."""
        if self.interrupted:
            rank, host = next(iter(self.workers)), self._context.host
            failure = WorkerReport(rank, host, os.getpid(), time.time(), "interrupted", "was interrupted", "", 130)
            if isinstance(self.link, Spoke):
                self.link.tell(failure)
        if isinstance(self.link, Hub) and failure is not None:
            self.link.announce(failure)
        elif isinstance(self.link, Spoke) and failure is None:
            self.link.bye()
        if self.link is not None:
            self.link.close()

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
                while worker.rank not in self.reports and worker.reports.poll():
                    message = worker.reports.recv()
                    if isinstance(message, Meeting):
                        self._connect(message)
                    else:
                        self._take_report(message)
        if not ended:
            return
        self.alive.discard(worker.rank)
        exitcode = _exit_code(worker)
        if worker.rank not in self.reports:
            report = death_report(worker.context, worker.pid, exitcode, self.forwarded, seen)
            self._take_report(replace(report, standing=read_board(worker.board)))

    def _take_report(self, report: WorkerReport) -> None:
        self.reports[report.rank] = report
        if is_failure(report) and (report.kind == "died" or self._run_logs != self.log_folder):
            write_error_file(report, self._run_logs)
        if isinstance(self.link, Spoke):
            self.link.tell(report)

    def _connect(self, meeting: Meeting) -> None:
        """Connect to the launcher of rank 0, as soon as the first worker here has heard where it is."""
        if self.meeting_logs is None:
            self.meeting_logs = Path(meeting.log_folder)
        if self.link is not None or not meeting.hub_port:
            return
        silence = self._context.terms.timeouts.heartbeat_timeout_s
        try:
            address = (meeting.address, meeting.hub_port)
            self.link = Spoke(self.workers, self._context.host, address, meeting.secret, silence)
        except OSError as error:
            print(
                f"noether: no line to the launcher of rank 0 at {meeting.address} port {meeting.hub_port} ({error}): "
                "what fails on other hosts is only known by its echo here",
                file=sys.stderr,
                flush=True,
            )
            return
        for report in self.own_reports():
            self.link.tell(report)

    def where_others_are(self) -> list[Doing]:
        """Ask the ranks here that neither ended nor reported for their stacks; save those, and say what they do."""
        silent = [self.workers[rank] for rank in sorted(self.alive - set(self.reports))]
        asked = {worker.stacks: worker for worker in silent}
        stacks: dict[int, str] = {}
        if STACK_SIGNAL is not None:
            for worker in silent:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, STACK_SIGNAL)
            deadline = time.monotonic() + STACK_S
            while asked and (left := deadline - time.monotonic()) > 0:
                for ready in wait(list(asked), left):
                    worker = asked.pop(ready)  # type: ignore[call-overload]
                    time.sleep(0.02)  # faulthandler writes line by line.
                    stacks[worker.rank] = os.read(worker.stacks.fileno(), 1 << 16).decode("utf-8", "replace")
                    with contextlib.suppress(OSError):
                        path = self._run_logs / f"rank-{worker.rank}.stack.txt"
                        path.write_text(stacks[worker.rank], encoding="utf-8")
        return [self._doing(worker, stacks.get(worker.rank, "")) for worker in silent]

    def _doing(self, worker: RunningWorker, stack: str) -> Doing:
        standing, stopped = read_board(worker.board), is_stopped(worker.pid)
        if stopped:
            where = f"in {standing}" if standing.collective else standing
            phrase = f"says nothing: stopped by a signal, {where}"
        elif standing.collective:
            phrase = f"waiting in {standing}, ended by the launcher"
        else:
            phrase = f"{where_in_stack(stack)}, ended by the launcher"
        return Doing(worker.rank, worker.context.host, phrase, stack, standing, stopped)

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
