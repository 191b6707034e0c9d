"""Reads the rows of a file that grows, each once. No torch here."""

import os
from pathlib import Path
from typing import BinaryIO

from noether.runs.records import Row, is_metrics_row, last_evaluation, parse_row
from noether.watch.inside import opened_inside

MOST_PER_READ = 4 * 2**20
"""Bytes read at a time: about a tenth of a second of parsing, after which a page can be answered."""
LONGEST_LINE = 2**20
"""Bytes; a longer line was not written by this program and is skipped."""
FURTHEST_BACK = 2**26
"""Bytes from the end of a history in which its last evaluation is looked for."""
_FINGERPRINT = 64


class FollowedRows:
    """The rows of a metrics.jsonl, read on from where the last reading stopped.

    A file that was replaced (a resumed run writes a new one), truncated, or rewritten in place is read anew from its
    start; `generation` counts how often.
    """

    def __init__(self, root: Path, path: Path) -> None:
        self.root, self.path = root, path
        self.generation = 0
        self.damaged = 0
        self.offset, self.size = 0, 0
        self._file_id: tuple[int, int] | None = None
        self._seen = b""
        self._rest = b""
        self._skipping = False

    def read(self) -> tuple[list[Row], bool]:
        """Returns the next rows, and whether the file has been read anew from its start.

        A last line without an end is kept until its end is there; lines that are damaged are counted. At most
        MOST_PER_READ bytes are read: `offset` < `size` says that more is there.
        """
        try:
            with opened_inside(self.root, self.path) as file:
                anew = self._begin(file)
                file.seek(self.offset)
                content = file.read(MOST_PER_READ)
        except OSError:
            anew = self._file_id is not None
            self._forget(None)
            return [], anew
        self.offset += len(content)
        self._seen = (self._seen + content)[-_FINGERPRINT:]
        return self._rows(content), anew

    def _begin(self, file: BinaryIO) -> bool:
        status = os.fstat(file.fileno())
        self.size = status.st_size
        file_id = (status.st_dev, status.st_ino)
        file.seek(self.offset - len(self._seen))
        as_before = file_id == self._file_id and self.size >= self.offset and file.read(len(self._seen)) == self._seen
        if as_before:
            return False
        is_first = self._file_id is None
        self._forget(file_id)
        return not is_first

    def _forget(self, file_id: tuple[int, int] | None) -> None:
        if self._file_id is not None:
            self.generation += 1
        self._file_id = file_id
        self.offset, self.damaged = 0, 0
        self._seen = self._rest = b""
        self._skipping = False

    def _rows(self, content: bytes) -> list[Row]:
        *lines, rest = (self._rest + content).split(b"\n")
        if self._skipping and lines:
            lines, self._skipping = lines[1:], False
        if len(rest) > LONGEST_LINE:
            self.damaged += not self._skipping
            rest, self._skipping = b"", True
        self._rest = b"" if self._skipping else rest
        rows = [_metrics_row(line) for line in lines if line.strip()]
        self.damaged += rows.count(None)
        return [row for row in rows if row is not None]


def _metrics_row(line: bytes) -> Row | None:
    """Returns the row of a line; None where it is damaged."""
    try:
        row = parse_row(line)
    except ValueError:
        return None
    return row if is_metrics_row(row) else None


def last_rows(root: Path, path: Path, size: int = 2**16) -> list[Row]:
    """Returns the rows in the last `size` bytes of a file, for a list of many runs; none where it cannot be read.

    Where no evaluation of the selected weights is among them, those before them are looked for too.
    """
    rows: list[Row] = []
    cut = b""  # The end of a line that begins further back.
    try:
        with opened_inside(root, path) as file:
            end = length = os.fstat(file.fileno()).st_size
            while end > 0 and not last_evaluation(rows) and length - end < FURTHEST_BACK:
                start = max(0, end - (size if end == length else MOST_PER_READ))
                file.seek(start)
                cut, *lines = (file.read(end - start) + cut).split(b"\n")
                lines = lines if start else [cut, *lines]
                # What follows the last end is not whole yet.
                lines = lines[:-1] if end == length else [line for line in lines if b'"evaluation"' in line]
                rows = [row for line in lines if (row := _metrics_row(line)) is not None] + rows
                end = start
    except OSError:
        return []
    return rows
