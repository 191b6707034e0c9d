"""Files in a folder that other users may write to: opened only where they are plain files, never through a link.

A pipe under the name of a record would block its reader for ever, /dev/zero would never end, and a link would show or
overwrite a file elsewhere. So whatever reads from a run folder, or writes into it, opens its files here.
"""

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter
from pathlib import Path

from noether.common.processes import boot_id

LARGEST = 2**26
"""Bytes of a file that is read whole; none of ours comes near it but a history, which has a limit of its own."""
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotPlainFile(OSError):
    """Under the name is a link, a pipe, a device or a folder, a file too large to read, or a stranger's link above."""


def is_plain(path: Path) -> bool:
    """Return whether a path is a plain file, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):  # No path holds "\0".
        return False


def open_plain(path: Path) -> BufferedReader:
    """Open a plain file for reading. OSError: there is none; NotPlainFile: something else has its name."""
    return open(_open(path, os.O_RDONLY), "rb")


def read_plain(path: Path, most: int = LARGEST) -> bytes:
    """Return the content of a plain file. OSError: there is none; NotPlainFile: not plain, or above `most` bytes."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise NotPlainFile(errno.EFBIG, f"larger than {most:,} bytes", str(path))
        return file.read(size)


def read_given(path: Path, most: int = LARGEST) -> bytes:
    """Return the content of a file that a user names: through links, and of a pipe, `<(…)`, to its end.

    OSError: there is none; NotPlainFile: a folder or a device, or above `most` bytes.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise NotPlainFile(errno.EINVAL, "neither a file nor a pipe", str(path))
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise NotPlainFile(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return content


def create_plain(path: Path) -> BufferedWriter:
    """Open a new file for writing; whatever has the name is removed first. OSError: the disk refuses."""
    refuse_strangers_link(path.parent)
    with suppress(FileNotFoundError):
        path.unlink()
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFULLY, 0o666), "wb")


def open_to_append(path: Path, flags: int = os.O_WRONLY) -> int:
    """Return a descriptor that appends to a plain file; make it where there is none. Raises as `open_plain`."""
    refuse_strangers_link(path.parent)
    return _open(path, flags | os.O_CREAT | os.O_APPEND)


def make_folder(path: Path) -> None:
    """Make a folder where there is none, in one that is there. Raises as `refuse_strangers_link`, before it does."""
    refuse_strangers_link(path.parent)
    path.mkdir(exist_ok=True)
    refuse_strangers_link(path)


def refuse_strangers_link(folder: Path) -> None:
    """Raise NotPlainFile where another user put a link in a folder's place; one's own is followed, as to a disk."""
    with suppress(FileNotFoundError):
        about = folder.lstat()
        if stat.S_ISLNK(about.st_mode) and about.st_uid != os.geteuid():
            raise NotPlainFile(errno.ELOOP, f"a link that user {about.st_uid} has made", str(folder))


def _open(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | _CAREFULLY, 0o666)
    except OSError as error:
        # What O_NOFOLLOW answers to a link, and the others to sockets, pipes without a reader and folders.
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise NotPlainFile(error.errno, "not a plain file", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainFile(errno.EINVAL, "not a plain file", str(path))
    return descriptor


@dataclass(frozen=True)
class StampedFile:
    """A file that is known again as the one that was verified: `stamp` changes whenever its content does.

    Boot of this machine, file system, inode, size, and times of the last changes; no program can set back the last one,
    ctime. On another host it never fits: what was verified there tells nothing of a copy here.
    """

    path: Path
    stamp: tuple[str | int, ...]

    def is_unchanged(self) -> bool:
        """Return whether the file is still the one that was stamped; not where it cannot be looked at."""
        try:
            return stamped(self.path) == self
        except OSError:
            return False


def stamped(path: Path) -> StampedFile:
    """Return a file with its stamp as it is now. OSError: there is none."""
    about = path.stat()
    times = about.st_mtime_ns, about.st_ctime_ns
    return StampedFile(path, (boot_id(), about.st_dev, about.st_ino, about.st_size, *times))
