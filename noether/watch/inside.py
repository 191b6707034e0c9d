"""Files of a run's folder, opened for reading only where they really lie inside it. No torch here.

A run may be a stranger's: a link in its folder must not show a file of the reader's own, and a pipe under the name of a
log must not block the page.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")


@contextmanager
def opened_inside(root: Path, path: Path) -> Iterator[BinaryIO]:
    """Opens a plain file inside `root` for reading.

    Raises:
        OSError: it is missing, cannot be read, is a link, a pipe or a device, or lies outside.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not _lies_in(root, path):
            raise OSError(f"{path} is not a plain file of the run")
        yield file


def is_inside(root: Path, path: Path) -> bool:
    """Whether a path is a plain file, and no link, inside `root`."""
    try:
        return stat.S_ISREG(path.lstat().st_mode) and _lies_in(root, path)
    except OSError:
        return False


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
