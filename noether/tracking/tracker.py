"""Numbers → people and files: every row of a run goes to each tracker."""

from collections.abc import Sequence
from typing import Any, Protocol

Row = dict[str, Any]
"""One line of a run's history: `kind` (training, evaluation, checkpoint, …), `update`, `epoch`, `samples`, values."""


class Tracker(Protocol):
    """What takes the rows of a run."""

    def log(self, row: Row) -> None:
        """Takes one row."""

    def advance(self, update: int) -> None:
        """Hears that an update was made; called very often, so it must be cheap."""

    def close(self) -> None:
        """Writes out what is held back."""


class Trackers:
    """Hands every row to each tracker."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(trackers)

    def log(self, row: Row) -> None:
        """Takes one row."""
        for tracker in self._trackers:
            tracker.log(row)

    def advance(self, update: int) -> None:
        """Hears that an update was made."""
        for tracker in self._trackers:
            tracker.advance(update)

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes each tracker."""
        for tracker in self._trackers:
            tracker.close()
