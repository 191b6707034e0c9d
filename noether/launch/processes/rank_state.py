"""A rank's position, and where it must stop: numbers in memory shared with its parent process, and a pipe.

A thread beside the training would compete for the interpreter, and could not answer during a C call that holds it;
shared memory can be read from outside, even when the rank is stopped or dead.
"""

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from noether.common.numbers import first_of

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


BEFORE_ALL = RankPosition()


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
class RankNote:
    """What a worker tells its parent process before its report.

    `kind` is "arrived" (ready to meet the others), "listener" (it has read, in a launcher's store, the port where the
    parent of rank 0 accepts others) or "stop" (it was asked to: by a signal of this number, or for another reason).
    """

    kind: Literal["arrived", "listener", "stop"]
    number: int = 0


def listed(ranks: Iterable[int], most: int = 16) -> str:
    """Returns "1, 2, 3", or "1, 2 and 9 more" where they are more than `most`."""
    return first_of([str(rank) for rank in sorted(ranks)], most)


def named_ranks(ranks: Collection[int], most: int = 16) -> str:
    """Returns ranks with their noun: "rank 2", "ranks 0, 1"."""
    return f"rank{'s' * (len(ranks) > 1)} {listed(ranks, most)}"


WAIT_STEP_S = 0.0005
"""How often a rank looks for the boundary that the parent processes agree on; they need a few milliseconds."""

# The counters of a rank by number: the first four are written by the rank, the others by its parent process.
UPDATE, COLLECTIVE, ENTERED, BOUNDARY, HELD, STOP_AT, STOP_REASON = range(7)


class ParentLink:
    """A worker's line to its parent process; one made without arguments leads nowhere."""

    def __init__(self, messages: Connection | None = None, counters: Any = None) -> None:
        self._messages = messages
        self._counters = counters if counters is not None else new_counters()
        self._asked_to_stop = False

    @contextmanager
    def waiting(self, collective: str) -> Iterator[None]:
        """Notes that the rank is in a collective; after an exception it still is, for the report to say so."""
        self._counters[ENTERED] += 1
        self._counters[COLLECTIVE] = COLLECTIVES.index(collective)
        yield
        self._counters[COLLECTIVE] = 0

    def begin_update(self, update: int) -> None:
        """Notes which update is being made."""
        self._counters[UPDATE] = update

    def pass_boundary(self, reason: int) -> int:
        """Returns why all ranks stop at this boundary, or 0.

        Costs two looks at shared memory while nobody wants to stop. When somebody does, the parents hold the ranks
        at their next boundary for a few milliseconds, and agree on one that no rank has passed. `reason` is why this
        rank wants to stop; 0 where it does not.
        """
        counters = self._counters
        counters[BOUNDARY] += 1
        if reason and not self._asked_to_stop:
            self._asked_to_stop = True
            self.tell(RankNote("stop", reason))
        if not counters[HELD] and not self._asked_to_stop:
            return 0
        while not counters[STOP_AT]:
            time.sleep(WAIT_STEP_S)
        return int(counters[STOP_REASON]) if counters[BOUNDARY] >= counters[STOP_AT] else 0

    def tell(self, message: RankNote) -> None:
        """Tells the parent process something, where there is one."""
        if self._messages is not None:
            self._messages.send(message)

    def meet(self, limit_s: float) -> MeetingPoint:
        """Says that this rank has come, and returns where all meet, once all have come.

        RuntimeError: the parent process says nothing for `limit_s` seconds, or there is none.
        """
        if self._messages is None:
            raise RuntimeError("a rank of several needs a parent process to meet the others")
        self._messages.send(RankNote("arrived"))
        with self.waiting("meeting of all ranks"):
            if not self._messages.poll(limit_s):
                raise RuntimeError(f"the parent process of this rank has said nothing for {limit_s:g} s")
            meeting: MeetingPoint = self._messages.recv()
        return meeting


def new_counters(multiprocess: Any = None) -> Any:
    """Returns the counters of a rank, shared with processes started by `multiprocess` (a context), or private."""
    return [0] * 7 if multiprocess is None else multiprocess.RawArray("q", 7)


def read_position(counters: Any) -> RankPosition:
    """Returns where the rank of these counters is."""
    return RankPosition(counters[UPDATE], COLLECTIVES[counters[COLLECTIVE]], counters[ENTERED])
