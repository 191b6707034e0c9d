"""Files of a run's folder, opened only where they really lie inside it, and the ends of its logs. No torch here.

A run may be a stranger's: a link in its folder, or a folder that is one, must not show a file of the reader's own.
"""

import codecs
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from noether.common.plain_file import NotPlainFile, is_plain, open_plain
from noether.common.shown import shown_log
from noether.runs.folder import RunFolder

T = TypeVar("T")


@contextmanager
def opened_inside(root: Path, path: Path) -> Iterator[BinaryIO]:
    """Opens a plain file inside `root` for reading.

    OSError: it is missing, cannot be read, is a link, a pipe or a device, or lies outside.
    """
    with open_plain(path) as file:
        if not _lies_in(root, path):
            raise NotPlainFile(f"{path} is not a file of the run")
        yield file


def is_inside(root: Path, path: Path) -> bool:
    """Whether a path is a plain file, and no link, inside `root`."""
    return is_plain(path) and _lies_in(root, path)


def changed(path: Path) -> float | None:
    """Returns when a file was last written, in seconds since the epoch; None where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


class KeptReadings:
    """What was read of the files of a run, each read again once it has changed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kept: dict[Path, tuple[tuple[int, int, int], Any]] = {}

    def of(self, path: Path, read: Callable[[Path], T], empty: T) -> T:
        """Returns what `read` returns of a file; `empty` where it is no plain file of the run, or cannot be read."""
        if not is_inside(self._root, path):
            return empty
        try:
            status = path.stat()
            signature = (status.st_ino, status.st_size, status.st_mtime_ns)
            if path not in self._kept or self._kept[path][0] != signature:
                self._kept[path] = (signature, read(path))
        except OSError:
            return empty
        found: T = self._kept[path][1]
        return found


def _lies_in(root: Path, path: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


TAIL = 2**16
"""Bytes of a log that a page begins with, and the most it is given at once."""


def log_part(folder: RunFolder, path: Path, start: int | None) -> dict[str, Any]:
    """Returns what stands in a log from `start` on: `text`, `from` and `next`, in bytes.

    Without a start, or where the file is shorter than it or has grown by more than TAIL since, the text is the file's
    end, from the beginning of a line on. A character that is not whole yet is left for the next time.

    OSError: it cannot be read.
    """
    with opened_inside(folder.path, path) as file:
        size = os.fstat(file.fileno()).st_size
        begin = start if start is not None and size - TAIL <= start <= size else max(0, size - TAIL)
        file.seek(begin)
        content = file.read(TAIL)
    if begin and begin != start:
        cut = content.find(b"\n") + 1
        begin, content = begin + cut, content[cut:]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(content)
    unfinished = len(decoder.getstate()[0])
    return {"text": shown_log(text), "from": begin, "next": begin + len(content) - unfinished}
