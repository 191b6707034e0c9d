"""Trackers: they receive every row of a run, and show it or write it to a file."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from noether.common.atomic_write import UNFENCED, AppendingFile, Writer, write_whole
from noether.common.errors import NoetherError
from noether.runs.records import Row, metrics_of_row, read_metrics, row_line, rows_text


def group_name(split: str, weights: str) -> str:
    """Return the group name for metrics of a split and, if given, of weights: training, validation (ema)."""
    return f"{split} ({weights})" if weights else split


def logged(row: Row) -> list[tuple[str, str, float]]:
    """Return the group, name and value of each of a row's metrics, except metrics that are None; [] if none is left."""
    if row["kind"] not in ("training", "evaluation", "epoch"):
        return []
    split, weights, values = metrics_of_row(row)
    group = group_name(split, weights)
    return [(group, name, float(value)) for name, value in values.items() if value is not None]


class Tracker:
    """Receives a run's rows: `kind`, `update`, `epoch`, `samples` and values. `file`: its output file, or None."""

    file: AppendingFile | None = None

    def log(self, row: Row) -> None:
        """Write one row. OSError: it cannot be written; training continues."""
        raise NotImplementedError

    def advance(self, update: int) -> None:
        """Record that an update was made. This must be cheap, because it is called after every update."""

    def sync(self) -> None:
        """Wait until every row is on disk; the checkpoint-writing thread calls this."""
        if self.file is not None:
            self.file.sync()

    def close(self) -> None:
        """Write the rows not written yet, and close."""
        if self.file is not None:
            self.file.close()

    def discard(self) -> None:
        """Close, if possible without writing anything more."""
        if self.file is not None:
            self.file.discard()
        else:
            self.close()


class Trackers:
    """Passes every row to each tracker. A disk that refuses rows is reported once and does not end the run.

    check: called before each write; raises a NoetherError if this process may no longer write.
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
        with suppress(OSError):  # If the check fails now, it is repeated before the next row.
            self._check()
        for number, tracker in enumerate(self._trackers):
            try:
                tracker.log(row)
            except OSError as error:
                if number not in self._failing:
                    self._failing.add(number)
                    self._warn(f"rows are held back, because {type(tracker).__name__} cannot write: {error.strerror}")
            else:
                self._failing.discard(number)

    def advance(self, update: int) -> None:
        """Tell each tracker that an update was made."""
        for tracker in self._trackers:
            tracker.advance(update)

    def sync(self) -> None:
        """Wait until every row so far is on disk. OSError: a row cannot be written."""
        self._check()  # `sync` may write rows that were held back.
        for tracker in self._trackers:
            tracker.sync()

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with suppress(*(() if error is None else (NoetherError,))):
            self._close()

    def _close(self) -> None:
        """Close each tracker. If a newer attempt owns the run, drop the rows that are not written yet."""
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
"""Kinds of rows that are written after their update's checkpoint, so that the checkpoint's row count excludes them."""


class MetricsFile(Tracker):
    """Tracker that appends rows to metrics.jsonl.

    A resumed run first drops the rows after the update from which it resumes, because it will log them again. Each
    attempt writes a new file, so that anything that an earlier attempt still appends goes to the old file.
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
        """Open a run's history and keep its rows up to `start_update`: `rows` rows, not counting `UNCOUNTED` kinds.

        warn: receives a warning if rows are unreadable or missing, or if the file is removed during the run.
        """
        kept = [row for row in read_metrics(path, warn) if row["update"] <= start_update]
        self._saved = {row["update"] for row in kept if row["kind"] == "checkpoint"}
        missing = rows - sum(row["kind"] not in UNCOUNTED for row in kept)
        if missing > 0:
            warn(f"{path} has lost {missing} of its {rows} rows up to update {start_update}; the run continues")
        write_whole(path, rows_text(kept), writer)
        self.file = AppendingFile(path, writer, warn)

    def log(self, row: Row) -> None:
        """Write one row with its time in seconds since the epoch.

        Skip the second row of a checkpoint that was rewritten after a stop had cut its evaluation short.
        """
        if row["kind"] == "checkpoint":
            if row["update"] in self._saved:
                return
            self._saved.add(row["update"])
        self.file.append(row_line({"time": round(time.time(), 3), **row}).encode())
