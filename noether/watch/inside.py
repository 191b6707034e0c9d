"""Files of a run's folder, opened for reading only where they really lie inside it. No torch here.

A run may be a stranger's: a link in its folder must not show a file of the reader's own, and a pipe under the name of a
log must not block the page.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


class OutsideRun(OSError):
    """The path is not a plain file inside the run's folder."""


@contextmanager
def opened_inside(root: Path, path: Path) -> Iterator[BinaryIO]:
    """Opens a plain file inside `root` for reading.

    Raises:
        OutsideRun: it is a link, a pipe or a device, or it lies outside.
        OSError: it is missing, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not _lies_in(root, path):
            raise OutsideRun(f"{path} is not a plain file of the run")
        yield file


def is_inside(root: Path, path: Path) -> bool:
    """Whether a path is a plain file, and no link, inside `root`."""
    try:
        return stat.S_ISREG(path.lstat().st_mode) and _lies_in(root, path)
    except OSError:
        return False


def _lies_in(root: Path, path: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())
