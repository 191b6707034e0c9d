"""Where does a rank stand: three numbers in memory shared with its launcher, written in nanoseconds, read when asked.

A thread beside the training would compete for the interpreter, and could not answer while a C call holds it; shared
memory can be read from outside, even from a rank that is stopped or dead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

COLLECTIVES = (
    "",
    "all_reduce of the gradients",
    "all_reduce of figures",
    "all_reduce of the stop flags",
    "broadcast from rank 0",
    "gather on rank 0",
    "barrier",
)
"""What a rank can wait in, by number; 0 is nothing."""


@dataclass(frozen=True)
class Standing:
    """Where a rank stands: in which update (0: before the first), in which collective, and how many it has entered."""

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


BEFORE_ALL = Standing()


@dataclass(frozen=True)
class Meeting:
    """What a worker hears when it joins: how its launcher reaches that of rank 0, and where the run keeps its logs."""

    address: str
    hub_port: int
    secret: str
    log_folder: str


class LauncherLine:
    """A worker's line to its launcher; one made without arguments leads nowhere."""

    def __init__(self, messages: Connection | None = None, board: Any = None) -> None:
        self._messages = messages
        self._board = board if board is not None else new_board()

    @contextmanager
    def waiting(self, collective: str) -> Iterator[None]:
        """Notes that the rank is in a collective; after an exception it still is, for the report to say so."""
        self._board[2] += 1
        self._board[1] = COLLECTIVES.index(collective)
        yield
        self._board[1] = 0

    def begin_update(self, update: int) -> None:
        """Notes which update is being made."""
        self._board[0] = update

    def tell(self, meeting: Meeting) -> None:
        """Tells the launcher what the meeting brought."""
        if self._messages is not None:
            self._messages.send(meeting)

    def standing(self) -> Standing:
        """Returns where this rank stands."""
        return read_board(self._board)


def new_board(multiprocess: Any = None) -> Any:
    """Returns the three numbers, shared with processes started by `multiprocess` (a context), or private."""
    return [0, 0, 0] if multiprocess is None else multiprocess.RawArray("q", 3)


def read_board(board: Any) -> Standing:
    """Returns what the numbers say."""
    update, collective, entered = board
    return Standing(update, COLLECTIVES[collective], entered)
