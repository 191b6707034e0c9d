"""Open files in folders that other users may write to: only regular files, never through a symbolic link.

A pipe with the name of a record would block its reader forever, /dev/zero would never end, and a link would expose or
overwrite a file elsewhere. All code that reads or writes a run folder therefore opens its files here.
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
"""The maximum size in bytes of a file that is read whole. Only a run's history grows so large; it has its own limit."""
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotPlainFile(OSError):
    """The path is a link, pipe, device or folder, is too large to read, or lies below another user's link."""


def is_plain(path: Path) -> bool:
    """Return whether a path is a regular file and not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):  # ValueError: the path contains "\0".
        return False


def open_plain(path: Path) -> BufferedReader:
    """Open a regular file for reading. OSError: it does not exist; NotPlainFile: it is not a regular file."""
    return open(_open(path, os.O_RDONLY), "rb")


def read_plain(path: Path, most: int = LARGEST) -> bytes:
    """Read a regular file. OSError: it does not exist; NotPlainFile: it is not regular, or exceeds `most` bytes."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise NotPlainFile(errno.EFBIG, f"larger than {most:,} bytes", str(path))
        return file.read(size)


def read_given(path: Path, most: int = LARGEST) -> bytes:
    """Read a file that the user named. It may be a link, or a pipe such as `<(…)`, which is read to its end.

    OSError: it does not exist; NotPlainFile: it is a folder or a device, or larger than `most` bytes.
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
    """Open a new file for writing, after removing any file of that name. OSError: the disk refuses."""
    refuse_strangers_link(path.parent)
    with suppress(FileNotFoundError):
        path.unlink()
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFULLY, 0o666), "wb")


def open_to_append(path: Path, flags: int = os.O_WRONLY) -> int:
    """Open a regular file to append to it, or create it; return its descriptor. Errors are those of `open_plain`."""
    refuse_strangers_link(path.parent)
    return _open(path, flags | os.O_CREAT | os.O_APPEND)


def make_folder(path: Path) -> None:
    """Create a folder if missing, but not its parent. NotPlainFile: the folder or its parent is another user's link."""
    refuse_strangers_link(path.parent)
    path.mkdir(exist_ok=True)
    refuse_strangers_link(path)


def refuse_strangers_link(folder: Path) -> None:
    """Raise NotPlainFile if a folder is another user's link; the user's own links are followed."""
    with suppress(FileNotFoundError):
        about = folder.lstat()
        if stat.S_ISLNK(about.st_mode) and about.st_uid != os.geteuid():
            raise NotPlainFile(errno.ELOOP, f"a link that user {about.st_uid} has made", str(folder))


def _open(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | _CAREFULLY, 0o666)
    except OSError as error:
        # ELOOP: a link (O_NOFOLLOW); ENXIO and EISDIR: sockets, pipes without a reader, and folders.
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise NotPlainFile(error.errno, "not a plain file", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainFile(errno.EINVAL, "not a plain file", str(path))
    return descriptor


@dataclass(frozen=True)
class StampedFile:
    """A file that was verified, with a stamp that changes whenever its content does.

    The stamp consists of boot id, file system, inode, size, mtime and ctime; no program can set ctime back. On another
    host the stamp never matches: verifying a file on one host proves nothing about a copy on another.
    """

    path: Path
    stamp: tuple[str | int, ...]

    def is_unchanged(self) -> bool:
        """Return whether the file still has this stamp; False if it cannot be examined."""
        try:
            return stamped(self.path) == self
        except OSError:
            return False


def stamped(path: Path) -> StampedFile:
    """Return a file with its current stamp. OSError: the file does not exist."""
    about = path.stat()
    times = about.st_mtime_ns, about.st_ctime_ns
    return StampedFile(path, (boot_id(), about.st_dev, about.st_ino, about.st_size, *times))
