"""The ranks of this parent process: which are alive, what they report, how they are signalled and ended."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from noether.common.processes import is_stopped
from noether.common.whole_file import write_whole
from noether.launch.processes.context import ReportKind, WorkerReport
from noether.launch.processes.death_signal import adopt_orphans, end_descendants
from noether.launch.processes.failure import death_report, where_in_stack
from noether.launch.processes.rank_state import MeetingPoint, RankNote, read_position
from noether.launch.processes.spawner import RunningWorker
from noether.launch.processes.worker import STACK_SIGNAL

# How long a rank may take to say where it is; a stopped one does not.
STACK_S = 0.5
# How long a process may take to go after SIGKILL; one in uninterruptible I/O does not go at all.
KILL_S = 4.0
# How long processes that a finished worker left running may take to end.
LEFTOVER_S = 2.0


class LocalRanks:
    """The workers of this parent process. `reports` has the last word of each that has ended, or said how it ends."""

    def __init__(self, running: Sequence[RunningWorker]) -> None:
        self.workers = {worker.rank: worker for worker in running}
        self.context, self._spared = running[0].context, running[0].spared
        self.alive = set(self.workers)
        self.reports: dict[int, WorkerReport] = {}
        self.forwarded: dict[int, float] = {}
        self.arrived: set[int] = set()
        self.stop_wanted = 0
        self.listener_seen = 0

    def sources(self) -> list[Any]:
        """Returns what becomes readable when one of them reports or ends."""
        words = [self.workers[rank].reports for rank in self.alive if rank not in self.reports]
        return [*words, *(self.workers[rank].ended for rank in self.alive)]

    def hear(self, ready: Sequence[Any]) -> list[WorkerReport]:
        """Takes what they say and who has ended, of those of `sources` that are ready; returns the new reports."""
        known = set(self.reports)
        for rank in sorted(self.alive):
            worker = self.workers[rank]
            ended, seen = worker.ended in ready, time.time()
            if rank not in self.reports and (worker.reports in ready or ended):
                self._take_words(worker)
            if ended:
                self.alive.discard(rank)
                exitcode = _exit_code(worker)
                if rank not in self.reports:
                    report = death_report(worker.context, worker.pid, exitcode, self.forwarded, seen)
                    self.reports[rank] = replace(report, position=read_position(worker.counters))
        return [self.reports[rank] for rank in sorted(self.reports.keys() - known)]

    def _take_words(self, worker: RunningWorker) -> None:
        with contextlib.suppress(EOFError, OSError):
            while worker.rank not in self.reports and worker.reports.poll():
                message = worker.reports.recv()
                if not isinstance(message, RankNote):
                    self.reports[worker.rank] = message
                elif message.kind == "arrived":
                    self.arrived.add(worker.rank)
                elif message.kind == "listener":
                    self.listener_seen = message.number
                else:
                    self.stop_wanted = self.stop_wanted or message.number

    def admit(self, meeting: MeetingPoint) -> None:
        """Tells the ranks, which have all come, where all meet."""
        for worker in self.workers.values():
            with contextlib.suppress(OSError):
                worker.reports.send(meeting)

    def forward(self, number: int, moment: float) -> None:
        """Passes a signal on to every rank."""
        self.forwarded[number] = moment
        for rank in self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.workers[rank].pid, number)

    def ask_where_they_are(self, log_folder: Path) -> list[WorkerReport]:
        """Asks those that neither ended nor reported for their stacks; saves those, and says what each does."""
        silent = [self.workers[rank] for rank in sorted(self.alive - set(self.reports))]
        asked = {worker.stacks: worker for worker in silent}
        stacks: dict[int, str] = {}
        if STACK_SIGNAL is not None:
            for worker in silent:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, STACK_SIGNAL)
            deadline = time.monotonic() + STACK_S
            while asked and (left := deadline - time.monotonic()) > 0:
                answered = wait(list(asked), left)
                time.sleep(0.02)  # faulthandler writes line by line.
                for ready in answered:
                    worker = asked.pop(ready)  # type: ignore[call-overload]
                    stacks[worker.rank] = os.read(worker.stacks.fileno(), 1 << 16).decode("utf-8", "replace")
                    with contextlib.suppress(OSError):
                        write_whole(log_folder / f"rank-{worker.rank}.stack.txt", stacks[worker.rank])
        return [_doing(worker, stacks.get(worker.rank, "")) for worker in silent]

    def end_all(self, *, clean: bool) -> list[int]:
        """End what is left of the run, grandchildren included; return the ranks that would not go.

        After a clean end, processes that the workers left running get a moment to end.
        """
        for worker in self.workers.values():
            # A dead worker's group lives on while one of its children does, and its number is not used again before.
            if not clean:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.pid, signal.SIGKILL)
            if worker.rank in self.alive:  # It may have been so young that it had no group of its own.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
        deadline = time.monotonic() + KILL_S
        while self.alive and (left := deadline - time.monotonic()) > 0:
            ready = wait([self.workers[rank].ended for rank in self.alive], left)
            self.alive = {rank for rank in self.alive if self.workers[rank].ended not in ready}
        end_descendants(os.getpid(), self._spared, patience_s=LEFTOVER_S if clean else 0.0)
        adopt_orphans(False)
        for worker in self.workers.values():
            worker.reports.close()
            worker.stacks.close()
            if worker.rank not in self.alive:
                _exit_code(worker)
                if worker.ended != worker.process.sentinel:
                    os.close(worker.ended)
        return sorted(self.alive)


def _doing(worker: RunningWorker, stack: str) -> WorkerReport:
    position, stopped = read_position(worker.counters), is_stopped(worker.pid)
    if stopped:
        where = f"in {position}" if position.collective else position
        phrase = f"says nothing: stopped by a signal, {where}"
    elif position.collective:
        phrase = f"waiting in {position}, ended by its parent process"
    else:
        phrase = f"{where_in_stack(stack)}, ended by its parent process"
    kind: ReportKind = "stopped" if stopped else "busy"
    host, pid = worker.context.host, worker.pid
    return WorkerReport(worker.rank, host, kind, phrase, pid=pid, traceback=stack, position=position)


def _exit_code(worker: RunningWorker) -> int:
    # Readable a moment before it can be waited for.
    deadline = time.monotonic() + 1.0
    while worker.process.exitcode is None and time.monotonic() < deadline:
        time.sleep(0.001)
    return worker.process.exitcode if worker.process.exitcode is not None else 255
