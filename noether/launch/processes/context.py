"""Data that a parent process hands to its workers, and the reports that they send back."""

import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from noether.common.errors import RequestError
from noether.common.numbers import first_of
from noether.launch.detect.identity import RunIdentity
from noether.launch.detect.placement import Endpoint, Worker

if TYPE_CHECKING:  # The fork server is started before the schema of the settings is imported.
    from noether.config.distributed import DistributedConfig

COLLECTIVES = (
    "",
    "all_reduce of the gradients",
    "all_reduce of numbers",
    "broadcast from rank 0",
    "gather on rank 0",
    "barrier",
    "meeting of all ranks",
)
"""The collectives that a rank can wait in, by number; 0 means none."""


@dataclass(frozen=True)
class RankPosition:
    """A rank's current update (0 before the first), its collective, and the number of collectives it has entered."""

    update: int = 0
    collective: str = ""
    entered: int = 0

    def __str__(self) -> str:
        if not self.collective:
            return f"in update {self.update}" if self.update else "before the first update"
        return f"the {self.collective} {self.when}"

    @property
    def when(self) -> str:
        """The update, as a phrase to follow a noun."""
        return f"of update {self.update}" if self.update else "before the first update"


@dataclass(frozen=True)
class MeetingPoint:
    """The place where a run's ranks meet once all have arrived.

    `address` and `port`: rank 0's store. `secret`: known only to this run's ranks. `log_folder`: the run's logs.
    """

    address: str
    port: int
    secret: str
    log_folder: str


@dataclass(frozen=True)
class WorkerMessage:
    """A message from a worker to its parent process, sent before the worker's report.

    `kind` is "arrived" (ready to meet the other ranks), "listener" (`number` is the port, read from a launcher's store,
    where rank 0's parent accepts other parents) or "stop" (`number` is the reason: a signal, or `stop.TIME_LIMIT`).
    """

    kind: Literal["arrived", "listener", "stop"]
    number: int = 0


def listed(ranks: Iterable[int], most: int = 16) -> str:
    """Return "1, 2, 3", or "1, 2 and 9 more" if there are more than `most`."""
    return first_of([str(rank) for rank in sorted(ranks)], most)


def named_ranks(ranks: Collection[int], most: int = 16) -> str:
    """Return ranks with their noun: "rank 2", "ranks 0, 1"."""
    return f"rank{'s' * (len(ranks) > 1)} {listed(ranks, most)}"


WAIT_STEP_S = 0.0005
"""Seconds between a held rank's checks for the agreed boundary; the parents take a few milliseconds to agree."""

# Indices of a rank's counters. The rank writes the first four, its parent process the rest.
UPDATE, COLLECTIVE, ENTERED, BOUNDARY, HELD, STOP_AT, STOP_REASON = range(7)


def _nothing() -> None: ...


class ParentLink:
    """A worker's connection to its parent process; without arguments, it sends nothing."""

    def __init__(self, messages: Connection | None = None, counters: Any = None) -> None:
        self._messages, self.is_there = messages, messages is not None
        self._counters = counters if counters is not None else new_counters()
        self._asked_to_stop = False
        self.while_waiting: Callable[[], None] = _nothing
        """Called every second while this rank waits for its next batch; may raise."""

    @contextmanager
    def waiting(self, collective: str) -> Iterator[None]:
        """Mark this rank as being in a collective; after an exception the mark stays, for the report."""
        self._counters[ENTERED] += 1
        self._counters[COLLECTIVE] = COLLECTIVES.index(collective)
        yield
        self._counters[COLLECTIVE] = 0

    def begin_update(self, update: int) -> None:
        """Record the number of the current update."""
        self._counters[UPDATE] = update

    def pass_boundary(self, reason: int) -> int:
        """Return the reason for which all ranks stop at this boundary, or 0.

        While no rank wants to stop, the call costs two reads of shared memory. When a rank does, the parents hold all
        ranks at their next boundary for a few milliseconds, and agree on a boundary that no rank has passed. `reason`:
        why this rank wants to stop; 0 if it does not.
        """
        counters = self._counters
        counters[BOUNDARY] += 1
        if reason and not self._asked_to_stop:
            self._asked_to_stop = True
            self.tell(WorkerMessage("stop", reason))
        if not counters[HELD] and not self._asked_to_stop:
            return 0
        while not counters[STOP_AT]:
            time.sleep(WAIT_STEP_S)
        return int(counters[STOP_REASON]) if counters[BOUNDARY] >= counters[STOP_AT] else 0

    def tell(self, message: WorkerMessage) -> None:
        """Send a message to the parent process, if there is one."""
        if self._messages is not None:
            self._messages.send(message)

    def meet(self, limit_s: float) -> MeetingPoint:
        """Report that this rank has arrived; return the meeting point once all ranks have.

        RuntimeError: the parent process does not answer within `limit_s` seconds, or there is none.
        """
        if self._messages is None:
            raise RuntimeError("in a run of several ranks, each needs a parent process to meet the others")
        self._messages.send(WorkerMessage("arrived"))
        with self.waiting("meeting of all ranks"):
            if not self._messages.poll(limit_s):
                raise RuntimeError(f"the parent process of this rank has not answered for {limit_s:g} s")
            meeting: MeetingPoint = self._messages.recv()
        return meeting

    def wait_for_others(self) -> None:
        """Wait until every other rank of the run has ended."""
        if self._messages is not None:
            self._messages.recv()


def new_counters(multiprocess: Any = None) -> Any:
    """Return a rank's counters, shared with processes that `multiprocess` (a context) starts; private if it is None."""
    return [0] * 7 if multiprocess is None else multiprocess.RawArray("q", 7)


def read_position(counters: Any) -> RankPosition:
    """Return the position recorded in a rank's counters."""
    return RankPosition(counters[UPDATE], COLLECTIVES[counters[COLLECTIVE]], counters[ENTERED])


TELLING_S = 120.0


def _default_limits() -> "DistributedConfig":
    from noether.config.distributed import DistributedConfig

    return DistributedConfig()


@dataclass(frozen=True)
class RunInfo:
    """The data that is the same for every rank of a run.

    `key` proves, without being sent, that a parent process belongs to this run. `start_key` proves that it was started
    with this run even if its settings differ or cannot be read, so that it can refuse the run. `distributed` sets how
    long ranks wait for each other. `shared_folder`: a folder that all hosts should see, where a port that could not be
    derived is published; None if there is none. `log_folder`: this parent's logs, named in messages if `logs_stay`.
    `is_script`: the ranks run a user's script, all on one console, and no log is kept. `settings` must be the same on
    all hosts: the versions of noether and torch, then the settings by dotted name; empty if these cannot be read.
    """

    identity: RunIdentity = field(default_factory=RunIdentity)
    key: str = ""
    distributed: "DistributedConfig" = field(default_factory=_default_limits)
    shared_folder: Path | None = None
    log_folder: Path = Path()
    logs_stay: bool = True
    is_script: bool = False
    start_key: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def telling_s(self) -> float:
        """The seconds for which a parent process stays to refuse the run to late hosts, which may never come."""
        return min(self.distributed.init_timeout_s, TELLING_S)


@dataclass(frozen=True)
class WorkerContext:
    """The data that one worker is given: the parts of the placement that concern its rank.

    `threads`: the number of CPU threads that the worker may use. `listen_socket` listens at the store's port; only rank
    0 of several ranks has it (`hold_port` says why). `listener_port`: where rank 0's parent accepts other parents, for
    rank 0 to write into the store that a launcher such as torchrun serves; 0 in other processes, and if there are no
    other parents. `parent` connects to the parent process that watches this worker; without one it does nothing.
    """

    worker: Worker
    world_size: int
    local_world_size: int
    host: str
    endpoint: Endpoint
    restarts: int
    threads: int
    listen_socket: socket.socket | None = None
    listener_port: int = 0
    run_info: RunInfo = field(default_factory=RunInfo)
    parent: ParentLink = field(default_factory=ParentLink, compare=False)


ReportKind = Literal["finished", "refused", "failed", "left", "interrupted", "died", "hung", "lost", "busy", "stopped"]
Consequence = Literal["", "lost-peer", "timed-out"]  # fmt: skip

REPORTED_WORDS = ("message", "seen", "expected", "fix")
"""The fields of a report that hold text for the user."""


@dataclass(frozen=True)
class WorkerReport:
    """A report of how one rank ended, written by the rank, or by a parent process if the rank could not.

    `kind` is "finished" (the target returned), "refused" (a NoetherError: text for the user, no traceback), "failed"
    (any other exception), "left" (sys.exit), "interrupted" (by a signal), "died" (ended without a report: a signal,
    os._exit), "hung" (did not reach the collective in which the other ranks waited) or "lost" (its parent process or
    host is gone). For a rank still running when another fails, its parent reports "busy" or "stopped" (by a signal),
    with what it was doing as `message` and its stack as `traceback`. `time` is seconds since the epoch, by the clock of
    the host that holds the report; `position` is the rank's last one. `code` is the NoetherError's; for a RequestError,
    `message` is the summary, and `seen`, `expected` and `fix` are the other parts. `follows` is set if the rank ended
    because of another rank: it lost a peer, or waited for one for `waited_s` seconds (0: unknown). With `of_host`, only
    the host is known, and `rank` is a placeholder for the host's ranks.
    """

    rank: int
    host: str
    kind: ReportKind
    message: str
    exit_code: int = 1
    pid: int = 0
    time: float = field(default_factory=time.time)
    traceback: str = ""
    position: RankPosition = RankPosition()
    code: str = ""
    follows: Consequence = ""
    waited_s: float = 0.0
    seen: str = ""
    expected: str = ""
    fix: str = ""
    of_host: bool = False

    @property
    def who(self) -> str:
        """The reporter: "rank 3 on hostB", or "hostB" if its ranks are not known."""
        return self.host if self.of_host else f"rank {self.rank} on {self.host}"

    @property
    def refusal(self) -> RequestError:
        """The RequestError that this report describes."""
        return RequestError(self.code, self.message, seen=self.seen, expected=self.expected, fix=self.fix)
