"""What a parent process hands to its workers, and what they report."""

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
"""What a rank can wait in, by number; 0 is nothing."""


@dataclass(frozen=True)
class RankPosition:
    """Where a rank is: in which update (0: before the first), in which collective, and how many it has entered."""

    update: int = 0
    collective: str = ""
    entered: int = 0

    def __str__(self) -> str:
        if not self.collective:
            return f"in update {self.update}" if self.update else "before the first update"
        return f"the {self.collective} {self.when}"

    @property
    def when(self) -> str:
        """The update, to follow a noun."""
        return f"of update {self.update}" if self.update else "before the first update"


@dataclass(frozen=True)
class MeetingPoint:
    """Where the ranks of a run meet, once all have come.

    `address` and `port` are those of rank 0's store, `secret` is known to the ranks of this run alone, `log_folder` is
    where the run keeps its logs.
    """

    address: str
    port: int
    secret: str
    log_folder: str


@dataclass(frozen=True)
class WorkerMessage:
    """What a worker tells its parent process before its report.

    `kind` is "arrived" (ready to meet the others), "listener" (it has read, in a launcher's store, the port where the
    parent of rank 0 accepts others) or "stop" (it was asked to: by a signal of this number, or for another reason).
    """

    kind: Literal["arrived", "listener", "stop"]
    number: int = 0


def listed(ranks: Iterable[int], most: int = 16) -> str:
    """Return "1, 2, 3", or "1, 2 and 9 more" where they are more than `most`."""
    return first_of([str(rank) for rank in sorted(ranks)], most)


def named_ranks(ranks: Collection[int], most: int = 16) -> str:
    """Return ranks with their noun: "rank 2", "ranks 0, 1"."""
    return f"rank{'s' * (len(ranks) > 1)} {listed(ranks, most)}"


WAIT_STEP_S = 0.0005
"""How often a rank looks for the boundary that the parent processes agree on; they need a few milliseconds."""

# The counters of a rank by number: the first four are written by the rank, the others by its parent process.
UPDATE, COLLECTIVE, ENTERED, BOUNDARY, HELD, STOP_AT, STOP_REASON = range(7)


def _nothing() -> None: ...


class ParentLink:
    """A worker's line to its parent process; one made without arguments leads nowhere."""

    def __init__(self, messages: Connection | None = None, counters: Any = None) -> None:
        self._messages, self.is_there = messages, messages is not None
        self._counters = counters if counters is not None else new_counters()
        self._asked_to_stop = False
        self.while_waiting: Callable[[], None] = _nothing
        """Called each second while this rank waits for a batch of its own; it may raise."""

    @contextmanager
    def waiting(self, collective: str) -> Iterator[None]:
        """Note that the rank is in a collective; after an exception it still is, for the report to say so."""
        self._counters[ENTERED] += 1
        self._counters[COLLECTIVE] = COLLECTIVES.index(collective)
        yield
        self._counters[COLLECTIVE] = 0

    def begin_update(self, update: int) -> None:
        """Note which update is being made."""
        self._counters[UPDATE] = update

    def pass_boundary(self, reason: int) -> int:
        """Return why all ranks stop at this boundary, or 0.

        Costs two looks at shared memory while nobody wants to stop. When somebody does, the parents hold the ranks
        at their next boundary for a few milliseconds, and agree on one that no rank has passed. `reason` is why this
        rank wants to stop; 0 where it does not.
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
        """Tell the parent process something, where there is one."""
        if self._messages is not None:
            self._messages.send(message)

    def meet(self, limit_s: float) -> MeetingPoint:
        """Say that this rank has come, and return where all meet, once all have come.

        RuntimeError: the parent process says nothing for `limit_s` seconds, or there is none.
        """
        if self._messages is None:
            raise RuntimeError("a rank of several needs a parent process to meet the others")
        self._messages.send(WorkerMessage("arrived"))
        with self.waiting("meeting of all ranks"):
            if not self._messages.poll(limit_s):
                raise RuntimeError(f"the parent process of this rank has said nothing for {limit_s:g} s")
            meeting: MeetingPoint = self._messages.recv()
        return meeting

    def wait_for_others(self) -> None:
        """Wait until every other rank of the run has ended."""
        if self._messages is not None:
            self._messages.recv()


def new_counters(multiprocess: Any = None) -> Any:
    """Return the counters of a rank, shared with processes started by `multiprocess` (a context), or private."""
    return [0] * 7 if multiprocess is None else multiprocess.RawArray("q", 7)


def read_position(counters: Any) -> RankPosition:
    """Return where the rank of these counters is."""
    return RankPosition(counters[UPDATE], COLLECTIVES[counters[COLLECTIVE]], counters[ENTERED])


TELLING_S = 120.0


def _default_limits() -> "DistributedConfig":
    from noether.config.distributed import DistributedConfig

    return DistributedConfig()


@dataclass(frozen=True)
class RunInfo:
    """What all ranks of a run are given alike.

    `key` proves that a parent is of this run, without being sent; `start_key` that it was started with it, though its
    settings cannot be read or differ, which allows it to refuse the run. `distributed` says how long ranks wait for
    each other. `shared_folder` is one that all hosts are expected to see, where a port is published that could not be
    derived; None where there is none. `log_folder` is this parent's; a user is told of it where its `logs_stay`.
    `is_script`: the ranks run a user's script, all on one console, and no log is kept.
    `settings` are those that must be the same on all hosts, by dotted names, after the versions of noether and torch;
    empty where they cannot be read.
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
        """How many seconds a parent process stays to refuse the run to hosts that come late; some may never come."""
        return min(self.distributed.init_timeout_s, TELLING_S)


@dataclass(frozen=True)
class WorkerContext:
    """What one worker is given: the facts of the placement that concern its rank.

    `threads` is how many CPU threads the worker may use. `listen_socket` listens at the store's port; only rank 0 of
    several has it (`hold_port` says why). `listener_port` is where the parent process of rank 0 accepts the others, for
    rank 0 to write into the store that a launcher such as torchrun serves; 0 in other processes, and where there are no
    others. `parent` reaches the parent process that watches this worker; without one it does nothing.
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
"""The fields of a report that are words for a user."""


@dataclass(frozen=True)
class WorkerReport:
    """How one rank ended, in its own words, or in the parent process's where the rank could not say.

    `kind` is "finished" (the target returned), "refused" (a NoetherError: text for the user, no traceback),
    "failed" (any other exception), "left" (sys.exit), "interrupted" (by a signal), "died" (no word from the
    rank: a signal, os._exit), "hung" (it did not come where the others waited) or "lost" (its parent is gone, or
    its host). Of a rank that has not ended when another fails, its parent says "busy", or "stopped" (by a signal):
    `message` is what it was doing, `traceback` its stack. `time` is seconds since the epoch on that host; `position` is
    where the rank stood at its last. `code` is that of a NoetherError; of a RequestError, `message` is its summary, and
    `seen`, `expected` and `fix` are its other parts. `follows` says that the rank ended because of others: it had lost
    one, or had waited `waited_s` for one (0: not known how long). `of_host` says that only the host is known:
    `rank` stands for those that it would have had.
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
        """Who reports: "rank 3 on hostB", or "hostB" where its ranks are not known."""
        return self.host if self.of_host else f"rank {self.rank} on {self.host}"

    @property
    def refusal(self) -> RequestError:
        """The refusal that this report is about."""
        return RequestError(self.code, self.message, seen=self.seen, expected=self.expected, fix=self.fix)
