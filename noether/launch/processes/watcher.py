"""Watches the workers of this host until the run is over, passes signals on, and leaves no process behind."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import TextIO

from noether.common.errors import ExitCode, signal_code
from noether.common.signals import SECOND_INTERRUPT_S
from noether.launch.processes.context import WorkerReport
from noether.launch.processes.failure import (
    as_phrase,
    describe_briefly,
    describe_failure,
    first_failure,
    is_echo,
    is_failure,
    is_timeout,
    run_exit_code,
)
from noether.launch.processes.hang import name_missing
from noether.launch.processes.hub import Hub
from noether.launch.processes.link import reports_from
from noether.launch.processes.local_ranks import LocalRanks
from noether.launch.processes.rank_state import listed
from noether.launch.processes.signal_inbox import SignalInbox
from noether.launch.processes.spawner import RunningWorker
from noether.launch.processes.spoke import Spoke
from noether.launch.processes.stop_agreement import StopAgreement
from noether.launch.processes.worker import error_file, failure_report, write_error_file

# How long the others may take to say what they saw once one rank has failed.
GRACE_S = 2.0
# How long the other parent processes may take to say what their ranks do, and rank 0's to decide.
ANSWER_S = 1.5
DECISION_S = 5.0
ENDINGS = {int(ExitCode.DONE): "done", int(ExitCode.CHECKPOINTED): "stopped, everything is saved"}


def watch_workers(
    running: Sequence[RunningWorker],
    *,
    grace_s: float = GRACE_S,
    stream: TextIO | None = None,
    link: Hub | Spoke,
    says_more: bool = False,
) -> int:
    """Wait until the run is over, and return its exit code; every process of it on this host is gone afterwards.

    The first failing rank decides, wherever it runs. The others get `grace_s` to report, then their process groups
    are killed, and then whatever else of the tree is left, within 10 s in all. SIGINT, SIGTERM, SIGUSR1 and
    SIGUSR2 are passed on once each to every worker, which stops at a boundary agreed with the others and exits
    with 75; a second SIGINT half a second or more after the first ends everything at once.

    The failure is shown on `stream`, or stderr: of a run on several hosts, which are reached through `link`, the
    parent of rank 0 says who failed, and the others a line each. With `says_more`, for a terminal that shows nothing
    of rank 0, it is also said when the ranks here have joined, and how they ended.
    """
    stream = stream or sys.stderr
    ranks = LocalRanks(running)
    with SignalInbox() as inbox:
        watch = _Watch(ranks, link, inbox, says_more)
        watch.until_decided(grace_s)
        failure = None if watch.interrupted else watch.decide()
        if watch.interrupted:
            print("noether: interrupted twice; ending every worker", file=stream, flush=True)
        elif failure is not None:
            print(watch.describe(failure), file=stream, flush=True)
        watch.hang_up(failure)
        for rank in ranks.end_all(clean=failure is None and not watch.interrupted):
            print(f"noether: rank {rank} (pid {ranks.workers[rank].pid}) does not end: stuck in I/O?", file=stream)
    if isinstance(link, Hub) and failure is not None and not ranks.forwarded:
        with suppress(KeyboardInterrupt):
            link.tell_late(failure)
    link.close()
    if watch.interrupted:
        return signal_code(signal.SIGINT)
    own = first_failure(ranks.reports.values())
    code = run_exit_code(ranks.reports.values())
    if failure is not None and (own is None or is_echo(own) or isinstance(link, Hub)):
        code = failure.exit_code
    watch.say_end(code)
    return code


class _Watch:
    """The run as this parent process sees it, and what it does about it."""

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
        """Wait until all have ended, or one has failed and the rest had their time, or Ctrl-C came twice."""
        deadline: float | None = None
        # The hub outlives its own ranks: it is asked who failed first until the others are done.
        while (self._ranks.alive or (isinstance(self._link, Hub) and self._link.peers)) and not self.interrupted:
            self._hear(deadline)
            if self._link.failure is not None:
                return
            if deadline is None and self._has_failed():
                deadline = time.monotonic() + grace_s
                if isinstance(self._link, Hub):
                    self._link.ask({"do": "where"}, reports_from, self._link.peers)
            elif deadline is not None and time.monotonic() >= deadline:
                return
            if deadline is not None and not self._ranks.alive and self._all_have_reported():
                return

    def _all_have_reported(self) -> bool:
        return isinstance(self._link, Hub) and all(rank in self._reports for rank in self._link.remote_ranks)

    def _has_failed(self) -> bool:
        return self._link.failure is not None or any(is_failure(report) for report in self._reports.values())

    def _hear(self, deadline: float | None) -> None:
        """Wait for whatever comes first, a signal, a word, an end, a message, and take it."""
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
            elif link.not_met is not None and not self._has_failed():  # There is no run; no rank has to be asked why.
                link.failure = failure_report(link.not_met, min(ranks.workers), context.host)
                write_error_file(link.failure, self._log_folder)
        self._agreement.poll(link)
        if isinstance(link, Spoke) and link.question:
            link.answer([asdict(entry) for entry in ranks.ask_where_they_are(self._run_logs)])

    def say_end(self, code: int) -> None:
        """Say how the ranks here ended, where rank 0's terminal is elsewhere; a failure has been said already."""
        if self._says_more and code in ENDINGS:
            own, host = listed(self._ranks.workers), self._ranks.context.host
            print(f"ended  rank {own} on {host}: {ENDINGS[code]}", flush=True)

    def decide(self) -> WorkerReport | None:
        """Return what the run failed of, or None; a parent process without rank 0 waits a moment to be told."""
        if not self._has_failed():
            return None
        link, deadline = self._link, time.monotonic() + DECISION_S
        while isinstance(link, Spoke) and link.peers and link.failure is None and time.monotonic() < deadline:
            self._hear(deadline)
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
        # It could not write a report itself, or does not know the run's folder.
        if failure is not None and (failure.kind in ("hung", "lost") or not_here):
            write_error_file(failure, self._run_logs)
        return failure

    def _hear_the_others(self, hub: Hub) -> list[WorkerReport]:
        deadline = time.monotonic() + ANSWER_S
        while hub.silent(hub.peers) and time.monotonic() < deadline:
            self._hear(deadline)
        silent = "says nothing: its host is down, or out of reach"
        told = [entry for answer in hub.answers.values() for entry in answer]
        quiet = hub.silent(hub.peers)
        return [*told, *(WorkerReport(rank, peer.host, "busy", silent) for peer in quiet for rank in peer.ranks)]

    def describe(self, failure: WorkerReport) -> str:
        """Return what is shown of the run's end: all that is known where rank 0 is watched, else one line."""
        refuses = failure.rank in self._ranks.workers and self._link.not_met is not None
        told = failure is self._link.failure or failure.kind == "lost"
        if isinstance(self._link, Spoke) and told and not refuses:
            stays = self._ranks.context.run_info.logs_stay
            kept = error_file(self._run_logs, failure.rank) if stays else None
            return describe_briefly(failure, self._ranks.workers, kept)
        doing = {rank: entry.message for rank, entry in self._doing.items()}
        doing |= {rank: as_phrase(report) for rank, report in self._reports.items()}
        doing.pop(failure.rank, None)
        context = self._ranks.context
        return describe_failure(
            failure, doing, replace(context.run_info, log_folder=self._run_logs), context.world_size
        )

    @property
    def _run_logs(self) -> Path:
        # Where the hosts share no file system, the run's folder may not be here.
        meeting = self._link.meeting
        if meeting is not None and os.path.isdir(meeting.log_folder):
            return Path(meeting.log_folder)
        return self._log_folder

    def hang_up(self, failure: WorkerReport | None) -> None:
        """Tell the other parent processes how it ended."""
        link = self._link
        if self.interrupted:
            rank, host = next(iter(self._ranks.workers)), self._ranks.context.host
            failure = WorkerReport(rank, host, "interrupted", "was interrupted", signal_code(signal.SIGINT))
            if isinstance(link, Spoke):
                link.tell(failure)
        if isinstance(link, Hub) and failure is not None:
            link.announce(failure)
        elif isinstance(link, Spoke) and failure is None:
            link.bye()

    def _take_signal(self, number: int, moment: float) -> None:
        forwarded = self._ranks.forwarded
        if number not in forwarded:
            self._ranks.forward(number, moment)
        elif number == signal.SIGINT and moment - forwarded[number] >= SECOND_INTERRUPT_S:
            self.interrupted = True

    def _take_report(self, report: WorkerReport) -> None:
        if is_failure(report) and (report.kind == "died" or self._run_logs != self._log_folder):
            write_error_file(report, self._run_logs)
        if isinstance(self._link, Spoke):
            self._link.tell(report)
