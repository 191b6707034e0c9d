"""Numbers → people and files: every row of a run goes to each tracker."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from noether.common.atomic_write import UNFENCED, AppendingFile, Writer, write_whole
from noether.common.errors import NoetherError
from noether.runs.records import Row, metrics_of_row, read_metrics, row_line, rows_text


def group_name(split: str, weights: str) -> str:
    """Return the group of what some weights, or none, had on a split: training, validation (ema)."""
    return f"{split} ({weights})" if weights else split


def logged(row: Row) -> list[tuple[str, str, float]]:
    """Return the group, name and value of each metric of a row; nothing of other rows."""
    if row["kind"] not in ("training", "evaluation", "epoch"):
        return []
    split, weights, values = metrics_of_row(row)
    group = group_name(split, weights)
    return [(group, name, float(value)) for name, value in values.items() if value is not None]


class Tracker:
    """Receives the rows of a run, `kind`, `update`, `epoch`, `samples` and values. `file` is where it appends them."""

    file: AppendingFile | None = None

    def log(self, row: Row) -> None:
        """Write one row. Raises OSError where that fails; training goes on without it."""
        raise NotImplementedError

    def advance(self, update: int) -> None:
        """Called after every update, so it must be cheap."""

    def sync(self) -> None:
        """Return once every row is on the disk; called by the thread that writes checkpoints."""
        if self.file is not None:
            self.file.sync()

    def close(self) -> None:
        """Write what was not written yet, and close."""
        if self.file is not None:
            self.file.close()

    def discard(self) -> None:
        """Close without writing anything more, as far as that can be helped."""
        if self.file is not None:
            self.file.discard()
        else:
            self.close()


class Trackers:
    """Passes every row to each tracker. A disk that refuses a row is reported once, and does not end the run.

    `check` is called before anything is written; it raises a NoetherError where nothing may be, from now on.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        warn: Callable[[str], None] = lambda text: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._trackers = tuple(trackers)
        self._warn, self._check = warn, check
        self._failing: set[int] = set()

    def log(self, row: Row) -> None:
        """Pass a row to each tracker."""
        with suppress(OSError):  # What cannot be read now is asked again before the next row.
            self._check()
        for number, tracker in enumerate(self._trackers):
            try:
                tracker.log(row)
            except OSError as error:
                if number not in self._failing:
                    self._failing.add(number)
                    self._warn(f"rows are held back, {type(tracker).__name__} cannot be written: {error.strerror}")
            else:
                self._failing.discard(number)

    def advance(self, update: int) -> None:
        """Pass on that an update was made."""
        for tracker in self._trackers:
            tracker.advance(update)

    def sync(self) -> None:
        """Return once every row so far is on the disk. Raises OSError where one cannot be."""
        self._check()  # Rows that were held back may be about to be written.
        for tracker in self._trackers:
            tracker.sync()

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with suppress(*(() if error is None else (NoetherError,))):
            self._close()

    def _close(self) -> None:
        """Close each tracker; where a newer start owns the run, rows not yet written are dropped."""
        try:
            with suppress(OSError):
                self._check()
        except NoetherError:
            for tracker in self._trackers:
                tracker.discard()
            raise
        for tracker in self._trackers:
            try:
                tracker.close()
            except OSError as error:
                self._warn(f"the last rows of {type(tracker).__name__} are lost: {error.strerror}")


UNCOUNTED = ("checkpoint", "time_use")
"""Kinds of rows that are written after the checkpoint of their update, which counts the rows before it."""


class MetricsFile(Tracker):
    """Appends rows to metrics.jsonl.

    A resumed run first drops the rows after the update it resumes from: they will be made again. The file is always a
    new one, so that what an earlier start of the run may still append goes to the old one.
    """

    file: AppendingFile

    def __init__(
        self,
        path: Path,
        start_update: int,
        writer: Writer = UNFENCED,
        warn: Callable[[str], None] = lambda text: None,
        *,
        rows: int = 0,
    ) -> None:
        """Open the history of a run that goes on after an update: `rows` is how many there were, `UNCOUNTED` left out.

        `warn` is told of rows that cannot be read or are missing, and of a file that is removed under the run.
        """
        kept = [row for row in read_metrics(path, warn) if row["update"] <= start_update]
        self._saved = {row["update"] for row in kept if row["kind"] == "checkpoint"}
        missing = rows - sum(row["kind"] not in UNCOUNTED for row in kept)
        if missing > 0:
            warn(f"{path} has lost {missing} of its {rows} rows up to update {start_update}; the run goes on without")
        write_whole(path, rows_text(kept), writer)
        self.file = AppendingFile(path, writer, warn)

    def log(self, row: Row) -> None:
        """Write one row with the time of day.

        A checkpoint that is written a second time, after an evaluation that a stop cut short, is told of once.
        """
        if row["kind"] == "checkpoint":
            if row["update"] in self._saved:
                return
            self._saved.add(row["update"])
        self.file.append(row_line({"time": round(time.time(), 3), **row}).encode())
