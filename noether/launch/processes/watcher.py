"""Watches this host's workers until the run is over, forwards signals to them, and leaves no process behind."""

import collections
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

from noether.common.atomic_write import write_whole
from noether.common.errors import ExitCode, signal_code
from noether.common.processes import ENDS_OF_OTHERS, SECOND_INTERRUPT_S, is_stopped, stops_handled
from noether.launch.processes.context import (
    BOUNDARY,
    HELD,
    STOP_AT,
    STOP_REASON,
    MeetingPoint,
    ReportKind,
    WorkerMessage,
    WorkerReport,
    listed,
    read_position,
)
from noether.launch.processes.death_signal import adopt_orphans, end_descendants
from noether.launch.processes.failure import (
    CALLER,
    as_phrase,
    death_report,
    describe_briefly,
    describe_failure,
    first_failure,
    is_consequence,
    is_failure,
    is_timeout,
    name_missing,
    recorded,
    run_exit_code,
    watchdog_ended,
    where_in_stack,
)
from noether.launch.processes.hub import Hub, Spoke
from noether.launch.processes.link import reports_from, say
from noether.launch.processes.out_of_memory import killed_for_memory
from noether.launch.processes.spawner import RunningWorker
from noether.launch.processes.worker import STACK_SIGNAL, error_file, failure_report, write_error_file

# The time limit (s) for a rank to write its stack, which is long enough for a busy machine.
STACK_S = 2.0
# The exit codes of a rank if the kernel killed the rank or its fork server for lack of memory.
BY_THE_KERNEL = (-signal.SIGKILL, 255)
# The time limit (s) for a process to end after SIGKILL. A process in uninterruptible I/O does not end.
KILL_S = 4.0
# The time limit (s) for the processes that a finished worker left running.
LEFTOVER_S = 2.0


class LocalRanks:
    """The workers of this parent process. `reports`: the reports of workers that have ended or are about to end."""

    def __init__(self, running: Sequence[RunningWorker]) -> None:
        self.workers = {worker.rank: worker for worker in running}
        self.context, self._spared = running[0].context, running[0].spared
        self.alive = set(self.workers)
        self.reports: dict[int, WorkerReport] = {}
        self.forwarded: dict[int, float] = {}
        self.arrived: set[int] = set()
        self.stop_wanted = 0
        self.listener_seen = 0
        self._first_may_go = False
        self._killed_before, self.began = killed_for_memory(), time.time()

    def sources(self) -> list[Any]:
        """Return the descriptors that become readable when a worker reports or ends."""
        words = [self.workers[rank].reports for rank in self.alive if rank not in self.reports]
        return [*words, *(self.workers[rank].ended for rank in self.alive)]

    def hear(self, ready: Sequence[Any]) -> list[WorkerReport]:
        """Read messages and detect ended workers; return the new reports. `ready`: the `sources` that are readable."""
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
                    no_memory = exitcode in BY_THE_KERNEL and killed_for_memory() > self._killed_before
                    report = death_report(worker.context, worker.pid, exitcode, self.forwarded, seen, no_memory)
                    report = replace(report, position=read_position(worker.counters))
                    self.reports[rank] = watchdog_ended(report, worker.context.run_info.log_folder, self.began)
        return [self.reports[rank] for rank in sorted(self.reports.keys() - known)]

    def _take_words(self, worker: RunningWorker) -> None:
        with suppress(EOFError, OSError):
            while worker.rank not in self.reports and worker.reports.poll():
                message = worker.reports.recv()
                if not isinstance(message, WorkerMessage):
                    self.reports[worker.rank] = message
                elif message.kind == "arrived":
                    self.arrived.add(worker.rank)
                elif message.kind == "listener":
                    self.listener_seen = message.number
                else:
                    self.stop_wanted = self.stop_wanted or message.number

    def admit(self, meeting: MeetingPoint) -> None:
        """Send the meeting point to the ranks. Call this when all ranks have arrived."""
        for worker in self.workers.values():
            with suppress(OSError):
                worker.reports.send(meeting)

    def let_first_go(self) -> None:
        """Tell a script's rank 0 that the other ranks have ended. It must not end before them: they need its store."""
        if self.alive == {0} and self.context.run_info.is_script and not self._first_may_go:
            self._first_may_go = True
            with suppress(OSError):
                self.workers[0].reports.send(None)

    def forward(self, number: int, moment: float) -> None:
        """Forward a signal to every rank."""
        self.forwarded[number] = moment
        for rank in self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.workers[rank].pid, number)

    def ask_where_they_are(self, log_folder: Path) -> list[WorkerReport]:
        """Request and save the stack of each rank that has neither ended nor reported; return what it is doing."""
        silent = [self.workers[rank] for rank in sorted(self.alive - set(self.reports))]
        asked = {worker.rank: worker.stacks for worker in silent if not is_stopped(worker.pid)}
        stacks: dict[int, str] = {}
        if STACK_SIGNAL is not None:
            for rank in asked:
                with suppress(ProcessLookupError):
                    os.kill(self.workers[rank].pid, STACK_SIGNAL)
            stacks = read_stacks(asked, time.monotonic() + STACK_S)
        for rank, stack in stacks.items():
            with suppress(OSError):
                if stack and log_folder.is_dir():  # If the folder is missing, the run's folder was moved.
                    write_whole(log_folder / f"rank-{rank}.stack.txt", stack)
        return [_doing(worker, stacks.get(worker.rank, "")) for worker in silent]

    def end_all(self, *, clean: bool) -> list[int]:
        """End all processes of the run on this host, including grandchildren; return the ranks that did not end.

        With `clean=True`, processes that the workers left running first have `LEFTOVER_S` seconds to end.
        """
        for worker in self.workers.values():
            # As long as a child of a dead worker lives, the worker's process group exists, and its id is not reused.
            if not clean:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.pid, signal.SIGKILL)
            if worker.rank in self.alive:  # The worker may not have created its own group yet.
                with suppress(ProcessLookupError):
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


def read_stacks(sources: Mapping[int, Connection], deadline: float) -> dict[int, str]:
    """Return the stacks that the ranks write. They arrive line by line, with pauses on a busy machine."""
    stacks, silent = dict.fromkeys(sources, ""), set(sources)
    while silent and (left := deadline - time.monotonic()) > 0:
        ready = wait([sources[rank] for rank in silent], left)
        for rank in [rank for rank in silent if sources[rank] in ready]:
            lines = os.read(sources[rank].fileno(), 1 << 16).decode("utf-8", "replace")
            stacks[rank] += lines
            if not lines or CALLER in stacks[rank]:
                silent.discard(rank)
    return stacks


def _doing(worker: RunningWorker, stack: str) -> WorkerReport:
    position, stopped = read_position(worker.counters), is_stopped(worker.pid)
    if stopped:
        where = f"in {position}" if position.collective else position
        phrase = f"does not respond: stopped by a signal, {where}"
    elif position.collective:
        phrase = f"waiting in {position}, ended by its parent process"
    else:
        phrase = f"{where_in_stack(stack)}, ended by its parent process"
    kind: ReportKind = "stopped" if stopped else "busy"
    host, pid = worker.context.host, worker.pid
    return WorkerReport(worker.rank, host, kind, phrase, pid=pid, traceback=stack, position=position)


def _exit_code(worker: RunningWorker) -> int:
    # The descriptor becomes readable shortly before waitpid can return the process.
    deadline = time.monotonic() + 1.0
    while worker.process.exitcode is None and time.monotonic() < deadline:
        time.sleep(0.001)
    return worker.process.exitcode if worker.process.exitcode is not None else 255


# The time limit (s) for the other ranks to report after a rank has failed.
GRACE_S = 2.0
# The time limit (s) for NCCL's flight recorders to write. torch's watchdog has already waited a minute for them.
RECORDING_S = 10.0
# The time limit (s), as in torchrun, for a script's ranks to save after a signal to all ranks has ended one of them.
STOPPING_S = 30.0
# Time limits (s): for other parents to report what their ranks do, and for rank 0's parent to decide which rank failed.
ANSWER_S = 1.5
DECISION_S = 5.0
ENDINGS = {int(ExitCode.DONE): "done", int(ExitCode.CHECKPOINTED): "stopped, everything is saved"}


def watch_workers(
    running: Sequence[RunningWorker],
    *,
    grace_s: float = GRACE_S,
    link: Hub | Spoke,
    says_more: bool = False,
) -> int:
    """Wait until the run is over, end all its processes on this host, and return its exit code.

    The code is that of the first rank that failed, on any host. The other ranks get `grace_s` seconds to report; then
    their process groups are killed, and then the rest of the process tree, within 10 s in all. SIGINT, SIGTERM, SIGUSR1
    and SIGUSR2 are each forwarded once to every worker; the workers stop at a boundary on which all ranks agree, and
    exit with 75. A second SIGINT, half a second or more after the first, ends everything at once.

    The failure is printed to stderr. In a run on several hosts, which `link` connects, rank 0's parent describes the
    failure, and every other parent prints one line. With `says_more=True`, for a terminal without rank 0's output, this
    parent also prints when its ranks have joined, and how they ended.
    """
    ranks = LocalRanks(running)
    with SignalInbox() as inbox:
        watch = _Watch(ranks, link, inbox, says_more)
        watch.until_decided(grace_s)
        failure = None if watch.interrupted else watch.decide()
        if watch.interrupted:
            say("interrupted twice; ending every worker")
        elif failure is not None:
            print(watch.describe(failure), file=sys.stderr, flush=True)
        watch.hang_up(failure)
        for rank in ranks.end_all(clean=failure is None and not watch.interrupted):
            say(f"rank {rank} (pid {ranks.workers[rank].pid}) does not end: stuck in I/O?")
    if isinstance(link, Hub) and failure is not None and not ranks.forwarded:
        with suppress(KeyboardInterrupt):
            link.refuse_latecomers(failure)
    link.close()
    if watch.interrupted:
        return signal_code(signal.SIGINT)
    own = first_failure(ranks.reports.values())
    code = run_exit_code(ranks.reports.values())
    if failure is not None and (own is None or is_consequence(own) or isinstance(link, Hub)):
        code = failure.exit_code
    watch.say_end(code)
    return code


class SignalInbox:
    """Records the number and time of each stop signal inside the block. `reader` then becomes readable.

    If a stop signal other than SIGINT has come, SIGTERM and SIGHUP are ignored after the block: srun sends SIGTERM to
    all tasks when the first task has ended, and this process, which is exiting, would get a wrong exit code.
    """

    def __enter__(self) -> "SignalInbox":
        self._queue: collections.deque[tuple[int, float]] = collections.deque()
        self._is_leaving = False
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._handled: Any = stops_handled(self._note)
        self._before: dict[int, Any] = self._handled.__enter__()
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._is_leaving |= number != signal.SIGINT
        self._queue.append((number, time.monotonic()))
        with suppress(BlockingIOError):
            os.write(self._writer, b"!")

    def received(self) -> list[tuple[int, float]]:
        """Return the number and the time (monotonic, s) of each signal that has come since the last call."""
        with suppress(BlockingIOError):
            os.read(self.reader, 4096)
        return [self._queue.popleft() for _ in range(len(self._queue))]

    def __exit__(self, *error: object) -> None:
        if self._is_leaving:
            self._before.update(dict.fromkeys(ENDS_OF_OTHERS, signal.SIG_IGN))
        self._handled.__exit__(*error)
        os.close(self.reader)
        os.close(self._writer)


SETTLE_S = 0.001
"""The pause (s) between telling ranks to wait and reading their boundaries. No processor delays a write so long."""


class StopAgreement:
    """One parent process's part in the agreement on where all ranks stop. It costs nothing until a rank wants to stop.

    See decisions/06-agreed-stop.md. A rank first counts a boundary, then checks whether it must wait; its parent first
    tells it to wait, then reads the count. So no rank can have passed a boundary after the highest one that was read,
    and the agreement does not depend on a rank that waits for another rank in a collective.
    """

    def __init__(self, ranks: LocalRanks) -> None:
        self._ranks, self._counters = ranks, [worker.counters for worker in ranks.workers.values()]
        self._furthest: int | None = None
        self._told = self._is_decided = False

    def poll(self, link: Hub | Spoke) -> None:
        """Take the next step of the agreement, if one is due."""
        if self._is_decided:
            return
        wanted = self._ranks.stop_wanted
        if isinstance(link, Spoke):
            if wanted and not self._told:
                self._told = True
                link.send({"stop": wanted})
            if link.held and self._furthest is None:
                link.send({"boundary": self._hold()})
            if link.stop_at is not None:
                self._decide(*link.stop_at)
            return
        reason = wanted or link.stop_wanted
        if not reason:
            return
        if self._furthest is None:
            link.send_all({"hold": 1})
            self._hold()
        counted = link.boundaries()
        if self._furthest is not None and counted is not None:
            boundary = max(self._furthest, *counted, 0) + 1
            link.send_all({"stop_at": [boundary, reason]})
            self._decide(boundary, reason)

    def _hold(self) -> int:
        for counters in self._counters:
            counters[HELD] = 1
        time.sleep(SETTLE_S)
        self._furthest = max(int(counters[BOUNDARY]) for counters in self._counters)
        return self._furthest

    def _decide(self, boundary: int, reason: int) -> None:
        self._is_decided = True
        for counters in self._counters:
            counters[STOP_REASON] = reason
            counters[STOP_AT] = boundary


class _Watch:
    """A parent process's view of the run, and its reactions to signals, messages and failures."""

    def __init__(self, ranks: LocalRanks, link: Hub | Spoke, inbox: SignalInbox, says_more: bool) -> None:
        self._ranks, self._link, self._inbox, self._says_more = ranks, link, inbox, says_more
        self._log_folder = ranks.context.run_info.log_folder
        self._agreement = StopAgreement(ranks)
        self._doing: dict[int, WorkerReport] = {}
        self._has_settled = self.interrupted = False

    @property
    def _reports(self) -> dict[int, WorkerReport]:
        return {**self._link.reports, **self._ranks.reports}

    def until_decided(self, grace_s: float) -> None:
        """Wait until all ranks have ended, or one failed and the others had time to report, or Ctrl-C came twice."""
        deadline: float | None = None
        # The hub outlives its own ranks, because other parents whose ranks still run need it to name the failed rank.
        while (self._ranks.alive or (isinstance(self._link, Hub) and self._link.peers)) and not self.interrupted:
            self._wait_and_dispatch(deadline)
            if self._link.is_settled and not self._link.peers:
                self._ranks.let_first_go()
            if self._link.failure is not None:
                return
            if deadline is None and self._has_failed():
                stopped = self._ranks.context.run_info.is_script and self._ranks.forwarded
                patience_s = STOPPING_S if stopped else RECORDING_S if self._misses_recordings() else grace_s
                deadline = time.monotonic() + patience_s
                if isinstance(self._link, Hub):
                    self._link.ask(reports_from)
            elif deadline is not None and time.monotonic() >= deadline:
                return
            remote = set(self._link.remote_ranks) if isinstance(self._link, Hub) else None
            if deadline is not None and not self._ranks.alive and remote is not None and remote <= set(self._reports):
                return

    def _misses_recordings(self) -> bool:
        """Return whether a rank here timed out on a GPU, but only some ranks here have written their recordings."""
        aborted = any(one.kind == "died" and is_timeout(one) for one in self._ranks.reports.values())
        there = len(recorded(self._run_logs, self._ranks.workers, self._ranks.began))
        return aborted and 0 < there < len(self._ranks.workers)

    def _has_failed(self) -> bool:
        return self._link.failure is not None or any(is_failure(report) for report in self._reports.values())

    def _wait_and_dispatch(self, deadline: float | None) -> None:
        """Wait for the next signal, message or end of a rank, and handle it."""
        most = self._link.beat_s
        timeout = most if deadline is None else min(most, max(0.0, deadline - time.monotonic()))
        ready = wait([self._inbox.reader, *self._link.descriptors(), *self._ranks.sources()], timeout)
        for number, moment in self._inbox.received():
            self._take_signal(number, moment)
        for report in self._ranks.hear(ready):
            self._take_report(report)
        self._poll_link()

    def _poll_link(self) -> None:
        link, ranks = self._link, self._ranks
        if isinstance(link, Spoke) and ranks.listener_seen:
            link.look_for(ranks.listener_seen)
        link.note_arrivals(ranks.arrived)
        link.poll()
        if link.is_settled and not self._has_settled:
            self._has_settled, context = True, ranks.context
            if link.meeting is not None:
                ranks.admit(link.meeting)
                if self._says_more:
                    print(
                        f"joined rank {listed(ranks.workers)} of {context.world_size} on {context.host}: rank 0 at "
                        f"{context.endpoint.host} shows the run, and its logs are in {link.meeting.log_folder}",
                        flush=True,
                    )
            elif link.not_met is not None and not self._has_failed():  # The ranks never met, so none can report why.
                link.failure = failure_report(link.not_met, min(ranks.workers), context.host)
                write_error_file(link.failure, self._log_folder)
        self._agreement.poll(link)
        if isinstance(link, Spoke) and link.asked:
            link.answer([asdict(entry) for entry in ranks.ask_where_they_are(self._run_logs)])

    def say_end(self, code: int) -> None:
        """Print how the ranks here ended, if this terminal lacks rank 0's output and no failure has been printed."""
        if self._says_more and code in ENDINGS:
            own, host = listed(self._ranks.workers), self._ranks.context.host
            print(f"ended  rank {own} on {host}: {ENDINGS[code]}", flush=True)

    def decide(self) -> WorkerReport | None:
        """Return the report of the run's failure, or None. A parent without rank 0 awaits the hub's report a while."""
        if not self._has_failed():
            return None
        link, deadline = self._link, time.monotonic() + DECISION_S
        while isinstance(link, Spoke) and link.peers and link.failure is None and time.monotonic() < deadline:
            self._wait_and_dispatch(deadline)
        if link.failure is not None:
            return link.failure
        own = self._ranks.ask_where_they_are(self._run_logs)
        others = self._hear_the_others(link) if isinstance(link, Hub) else []
        self._doing = {entry.rank: entry for entry in (*others, *own)}
        reports = self._reports
        failure = first_failure(reports.values())
        if failure is not None and is_timeout(failure):
            waited = [report for report in reports.values() if is_timeout(report)]
            silent = {rank: entry for rank, entry in self._doing.items() if rank not in reports}
            failure = name_missing(waited, silent, self._ranks.context.run_info.distributed) or failure
        not_here = failure is not None and failure.rank not in self._ranks.workers and not link.is_settled
        # The failed rank cannot write a report itself, or does not know the run's folder.
        if failure is not None and (failure.kind in ("hung", "lost") or not_here):
            write_error_file(failure, self._run_logs)
        return failure

    def _hear_the_others(self, hub: Hub) -> list[WorkerReport]:
        deadline = time.monotonic() + ANSWER_S
        while hub.silent() and time.monotonic() < deadline:
            self._wait_and_dispatch(deadline)
        silent = "does not respond: its host is down or unreachable"
        told = [entry for answer in hub.answers.values() for entry in answer]
        return [*told, *(WorkerReport(rank, peer.host, "busy", silent) for peer in hub.silent() for rank in peer.ranks)]

    def describe(self, failure: WorkerReport) -> str:
        """Return the text to print for the failure: one line if rank 0's parent prints the rest, else the full text."""
        refuses = failure.rank in self._ranks.workers and self._link.not_met is not None
        told = failure is self._link.failure or failure.kind == "lost"
        if isinstance(self._link, Spoke) and told and not refuses:
            stays = self._ranks.context.run_info.logs_stay
            kept = error_file(self._run_logs, failure.rank) if stays else None
            return describe_briefly(failure, self._ranks.workers, kept)
        doing = {rank: entry.message for rank, entry in self._doing.items()}
        doing |= {rank: as_phrase(report) for rank, report in self._reports.items()}
        doing.pop(failure.rank, None)
        info, world_size = self._ranks.context.run_info, self._ranks.context.world_size
        recordings = recorded(self._run_logs, range(world_size), self._ranks.began)
        return describe_failure(failure, doing, replace(info, log_folder=self._run_logs), world_size, recordings)

    @property
    def _run_logs(self) -> Path:
        # If the hosts share no file system, this host may not have the run's folder.
        meeting = self._link.meeting
        if meeting is not None and os.path.isdir(meeting.log_folder):
            return Path(meeting.log_folder)
        return self._log_folder

    def hang_up(self, failure: WorkerReport | None) -> None:
        """Tell the other parent processes how the run ended."""
        link = self._link
        if self.interrupted:
            rank, host = min(self._ranks.workers), self._ranks.context.host
            failure = WorkerReport(rank, host, "interrupted", "was interrupted", signal_code(signal.SIGINT))
            if isinstance(link, Spoke):
                link.send({"report": asdict(failure)})
        if isinstance(link, Hub) and failure is not None:
            link.send_all({"failure": asdict(failure)})
        elif isinstance(link, Spoke) and failure is None:
            link.send({"bye": 1})  # All ranks of this parent have ended without failure.

    def _take_signal(self, number: int, moment: float) -> None:
        forwarded = self._ranks.forwarded
        if number not in forwarded:
            self._ranks.forward(number, moment)
            if number == signal.SIGINT and self._ranks.context.run_info.is_script:  # Other runs print such a line too.
                say("interrupted; a second Ctrl-C ends every rank at once")
        elif number == signal.SIGINT and moment - forwarded[number] >= SECOND_INTERRUPT_S:
            self.interrupted = True

    def _take_report(self, report: WorkerReport) -> None:
        if is_failure(report) and (report.kind == "died" or self._run_logs != self._log_folder):
            write_error_file(report, self._run_logs)
        if isinstance(self._link, Spoke):
            self._link.send({"report": asdict(report)})
