"""metrics.jsonl: every row of a run, one JSON object a line, written at once."""

import time
from pathlib import Path

from noether.common.appending_file import AppendingFile
from noether.common.strict_json import strict_json
from noether.common.whole_file import write_whole
from noether.runs.records import read_metrics
from noether.tracking.tracker import Row


class MetricsFile:
    """Appends rows to metrics.jsonl.

    A resumed run first drops the rows after the update it resumes from: they will be made again.
    """

    def __init__(self, path: Path, resumed_from: int) -> None:
        if path.exists():
            for left in path.parent.glob(f".{path.name}.*"):
                left.unlink(missing_ok=True)  # By a start that was killed right here: a history may be large.
            kept = [row for row in read_metrics(path) if row.get("update", 0) <= resumed_from]
            write_whole(path, "".join(_line(row) for row in kept))
        self._file = AppendingFile(path)

    def log(self, row: Row) -> None:
        """Writes one row with the time of day."""
        self._file.append(_line({"time": round(time.time(), 3), **row}).encode())

    def advance(self, update: int) -> None:
        """Does nothing."""

    def sync(self) -> None:
        """Returns once every row is on the disk."""
        self._file.sync()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def discard(self) -> None:
        """Closes the file and drops what was not written yet."""
        self._file.discard()


def _line(row: Row) -> str:
    return strict_json(row) + "\n"
