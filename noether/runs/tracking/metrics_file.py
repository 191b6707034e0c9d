"""metrics.jsonl: every row of a run, one JSON object a line, written at once."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from noether.common.appending_file import AppendingFile
from noether.common.whole_file import UNFENCED, Publisher, remove, write_whole
from noether.runs.records import Row, read_metrics, row_line, rows_text
from noether.runs.tracking.tracker import Tracker

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
        by: Publisher = UNFENCED,
        warn: Callable[[str], None] = lambda text: None,
        *,
        rows: int = 0,
    ) -> None:
        """Opens the history of a run that goes on after an update: `rows` is how many there were, `UNCOUNTED` left out.

        `warn` is told of rows that cannot be read or are missing, and of a file that is removed under the run.
        """
        with suppress(OSError):
            for left in path.parent.glob(f".{path.name}.*"):
                remove(left)  # By a start that was killed right here: a history may be large.
        kept = [row for row in read_metrics(path, warn) if row["update"] <= start_update]
        self._saved = {row["update"] for row in kept if row["kind"] == "checkpoint"}
        missing = rows - sum(row["kind"] not in UNCOUNTED for row in kept)
        if missing > 0:
            warn(f"{path} has lost {missing} of its {rows} rows up to update {start_update}; the run goes on without")
        write_whole(path, rows_text(kept), by)
        self.file = AppendingFile(path, by, warn)

    def log(self, row: Row) -> None:
        """Writes one row with the time of day.

        A checkpoint that is written a second time, after an evaluation that a stop cut short, is told of once.
        """
        if row["kind"] == "checkpoint":
            if row["update"] in self._saved:
                return
            self._saved.add(row["update"])
        self.file.append(row_line({"time": round(time.time(), 3), **row}).encode())
