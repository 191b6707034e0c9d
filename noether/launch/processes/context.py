"""The data that a parent process gives to its workers, and the reports that the workers send back."""

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

if TYPE_CHECKING:  # The fork server must start before the settings' schema is imported, so it is not imported here.
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
"""The collectives in which a rank can wait. A rank's counter contains the index of its collective; 0 means none."""


@dataclass(frozen=True)
class RankPosition:
    """A rank's current update (0 before the first), its current collective, and the count of collectives entered."""

    update: int = 0
    collective: str = ""
    entered: int = 0

    def __str__(self) -> str:
        if not self.collective:
            return f"in update {self.update}" if self.update else "before the first update"
        return f"the {self.collective} {self.when}"

    @property
    def when(self) -> str:
        """The update, as a phrase that follows a noun."""
        return f"of update {self.update}" if self.update else "before the first update"


@dataclass(frozen=True)
class MeetingPoint:
    """The place where a run's ranks meet as soon as all have arrived.

    `address`, `port`: those of rank 0's store. `secret`: known only to the run's ranks. `log_folder`: the run's logs.
    """

    address: str
    port: int
    secret: str
    log_folder: str


@dataclass(frozen=True)
class WorkerMessage:
    """A message that a worker sends to its parent process before its report.

    `kind` is "arrived" (the worker is ready to meet the other ranks), "listener" (`number`: the port where rank 0's
    parent accepts other parents, read from a launcher's store) or "stop" (`number`: the signal, or `stop.TIME_LIMIT`).
    """

    kind: Literal["arrived", "listener", "stop"]
    number: int = 0


def listed(ranks: Iterable[int], most: int = 16) -> str:
    """Return the ranks as text: "1, 2, 3", or "1, 2 and 9 more" if there are more than `most` ranks."""
    return first_of([str(rank) for rank in sorted(ranks)], most)


def named_ranks(ranks: Collection[int], most: int = 16) -> str:
    """Return the ranks as text with their noun: "rank 2", "ranks 0, 1"."""
    return f"rank{'s' * (len(ranks) > 1)} {listed(ranks, most)}"


WAIT_STEP_S = 0.0005
"""The pause (s) between two checks of a waiting rank for the agreed boundary. Agreement takes a few milliseconds."""

# The indices of a rank's counters. The rank writes the first four counters; its parent process writes the others.
UPDATE, COLLECTIVE, ENTERED, BOUNDARY, HELD, STOP_AT, STOP_REASON = range(7)


def _nothing() -> None: ...


class ParentLink:
    """A worker's connection to its parent process. Created without arguments, it sends nothing."""

    def __init__(self, messages: Connection | None = None, counters: Any = None) -> None:
        self._messages, self.is_there = messages, messages is not None
        self._counters = counters if counters is not None else new_counters()
        self._asked_to_stop = False
        self.while_waiting: Callable[[], None] = _nothing
        """The function that is called every second while this rank waits for its next batch. It can raise."""

    @contextmanager
    def waiting(self, collective: str) -> Iterator[None]:
        """Mark this rank as being in a collective inside the block. An exception leaves the mark for the report."""
        self._counters[ENTERED] += 1
        self._counters[COLLECTIVE] = COLLECTIVES.index(collective)
        yield
        self._counters[COLLECTIVE] = 0

    def begin_update(self, update: int) -> None:
        """Record the number of the current update."""
        self._counters[UPDATE] = update

    def pass_boundary(self, reason: int) -> int:
        """Return the reason for which all ranks stop at this boundary, or 0 if they do not stop here.

        `reason`: why this rank wants to stop; 0 if it does not. While no rank wants to stop, the call costs two reads
        of shared memory. If a rank wants to stop, the parent processes make all ranks wait at their next boundary for
        a few milliseconds, and agree on a boundary that no rank has passed.
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
        """Report that this rank has arrived, wait until all ranks have, and return the meeting point.

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
    """Return new counters for a rank, in memory shared with the processes that the context `multiprocess` starts."""
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

    `key`: a secret by which a parent process proves, without sending it, that it belongs to this run. `start_key`: a
    secret by which a parent whose settings differ or are unreadable proves that it was started with the run it refuses.
    `distributed`: the limits for waiting. `shared_folder`: a folder that all hosts should see, or None; a port that
    could not be derived is published there. `log_folder`: the folder of this parent's logs; messages name it if
    `logs_stay=True`. `is_script`: whether ranks run a user's script, on one console without logs. `settings`: values
    that must be equal on all hosts: noether's and torch's versions, the settings by dotted name; empty if unreadable.
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
        """The time (s) for which a parent process that refuses the run waits for other hosts, to inform them."""
        return min(self.distributed.init_timeout_s, TELLING_S)


@dataclass(frozen=True)
class WorkerContext:
    """The data that one worker gets: the parts of the placement that concern its rank.

    `threads`: the number of CPU threads that the worker may use. `listen_socket`: the socket of the store's port, on
    rank 0 of several ranks (see `hold_port`); else None. `listener_port`: the port where rank 0's parent accepts other
    parents, which rank 0 writes into the store of a launcher such as torchrun; 0 on other ranks, and if there are no
    other parents. `parent`: the connection to the parent process that watches this worker; inactive if there is none.
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
    """A report of how one rank ended. The rank writes it; if the rank cannot, a parent process does.

    `kind` is "finished" (the target returned), "refused" (a NoetherError: text for the user, no traceback), "failed"
    (any other exception), "left" (sys.exit), "interrupted" (by a signal), "died" (ended without a report: a signal,
    os._exit), "hung" (did not reach the collective in which the other ranks waited) or "lost" (its parent process or
    host is gone). If a rank still runs when another rank fails, its parent reports "busy" or "stopped" (by a signal):
    `message` is then what the rank was doing, and `traceback` its stack. `time`: seconds since the epoch, by the clock
    of the host that has the report. `position`: the rank's last position. `code`: the NoetherError's code. For a
    RequestError, `message` is the summary, and `seen`, `expected` and `fix` are the other parts. `follows` is set if
    another rank is the cause: this rank lost a peer, or waited `waited_s` seconds for one (0: unknown). With
    `of_host=True`, only the host is known, and `rank` is a placeholder for the host's ranks.
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
        """The subject of this report: "rank 3 on hostB", or "hostB" if the host's ranks are not known."""
        return self.host if self.of_host else f"rank {self.rank} on {self.host}"

    @property
    def refusal(self) -> RequestError:
        """The error that this report describes."""
        return RequestError(self.code, self.message, seen=self.seen, expected=self.expected, fix=self.fix)
