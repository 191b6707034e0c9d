"""Write files and folders atomically: readers see a whole file or folder, or none."""

import ctypes
import errno
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from noether.common.errors import RequestError
from noether.common.numbers import strict_json
from noether.common.safe_open import create_plain, open_to_append, refuse_strangers_link

ASIDE = ".replaced"
"""Suffix of an old folder that `Writer.publish` moved aside before it renamed the new one."""


class Writer:
    """Gives finished files and folders their final names, and removes files and folders. This base class never refuses.

    The lease of a run (`noether.runs.lease`) is a Writer that first checks whether the run's attempt may still write.
    """

    def check(self) -> None:
        """Raise an error that gives the reason if this process may not write."""

    def partial(self, path: Path) -> Path:
        """Return an unguessable path beside `path` for a temporary file; create the parent folder if it is missing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_strangers_link(path.parent)
        return _beside(path)

    def publish(self, partial: Path, path: Path) -> None:
        """Rename `partial` to `path`, replacing a file by a file or a folder by a folder.

        A folder swaps names with the folder that it replaces, atomically. If the file system cannot swap names (NFS),
        two renames are made instead; a kill between them leaves the old folder under a name that ends with ASIDE.

        OSError: the disk refuses; `path` is unchanged.
        """
        if not (path.is_dir() and partial.is_dir()):
            partial.replace(path)
            return
        if _swapped(partial, path):
            remove(partial)
            return
        aside = _beside(partial.with_name(path.name), ASIDE)
        path.rename(aside)
        try:
            partial.rename(path)
        except OSError:
            aside.rename(path)
            raise
        shutil.rmtree(aside, ignore_errors=True)

    def drop(self, path: Path) -> None:
        """Remove a file or a folder. It is renamed first, so that an interrupted removal leaves nothing at `path`.

        OSError: the disk refuses; `path` is unchanged.
        """
        doomed = _beside(path, ".removed")
        with suppress(FileNotFoundError):
            path.rename(doomed)
            remove(doomed)


UNFENCED = Writer()


def _swapped(one: Path, other: Path) -> bool:
    """Swap two names by renameat2(2) (AT_FDCWD, RENAME_EXCHANGE); return False if the system cannot."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    return swap is not None and swap(-100, os.fsencode(one), -100, os.fsencode(other), 2) == 0


def _beside(path: Path, ending: str = "") -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{ending}")


def remove(path: Path) -> None:
    """Remove a file or a folder; skip files that the disk refuses to remove."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def write_json(path: Path, content: Any, writer: Writer = UNFENCED) -> None:
    """Write JSON atomically, see `written_whole`."""
    write_whole(path, strict_json(content, indent=2) + "\n", writer)


def write_whole(path: Path, text: str, writer: Writer = UNFENCED) -> None:
    """Write text atomically, see `written_whole`."""
    with written_whole(path, writer) as file:
        file.write(text.encode())


@contextmanager
def written_whole(path: Path, writer: Writer = UNFENCED) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when closed, so that readers see the old file or the new one.

    The file's folder is created if it is missing.

    Raises:
        OSError: the disk refuses; the old file is unchanged, and no temporary file is left.
        NoetherError: `writer` may no longer write; the old file is unchanged.
    """
    partial = writer.partial(path)
    try:
        with create_plain(partial) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        writer.publish(partial, path)
    except Exception as error:
        with suppress(OSError):
            partial.unlink()  # On a full disk, other writes need the space.
        if isinstance(error, OSError):
            say_if_forbidden(writer)
        raise


def say_if_forbidden(writer: Writer) -> None:
    """Raise the error of `writer.check()`, if there is one: it explains a failed write better than an OSError does."""
    with suppress(OSError):
        writer.check()


def flush(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk, because a power cut could otherwise leave an empty file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


ELSEWHERE = "output_path=FOLDER"
"""The setting by which a training command gets another run folder if the disk refuses its run folder."""


class DiskRefusal(RequestError):
    """The disk refuses a write that the run requires."""


DISK_ERRNOS = frozenset(
    (
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.EBUSY, errno.ENODEV),
        *(errno.ENXIO, errno.ENOTCONN, errno.EACCES, errno.EPERM, errno.ENOMEM, errno.ETIMEDOUT, errno.EHOSTDOWN),
        *(errno.EREMOTEIO, errno.EMFILE, errno.ENFILE, errno.ETXTBSY),
    )
)
"""The errno values of a disk or file server that cannot serve a request now; a program's mistake gives other values."""


@contextmanager
def refusals_told(
    folder: Path, errnos: Container[int | None] | None = None, *, elsewhere: str = ELSEWHERE
) -> Iterator[None]:
    """Turn an OSError in a block that uses a run folder into DiskRefusal; `errnos` limits this to some errno values."""
    try:
        yield
    except OSError as error:
        named = error.filename is not None and not str(error.filename).startswith(os.fspath(folder))
        if errnos is not None and (named or error.errno not in errnos):
            raise  # The error may concern another disk, such as the one that holds the data.
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DiskRefusal("disk-refused", f"cannot write to {folder}",
                          seen=f"{error.strerror} ({error.filename or folder})",
                          expected="a writable folder" + (", on a disk with free space" if is_full else ""),
                          fix=f"free disk space, or {elsewhere}" if is_full else elsewhere,
                          mount="" if is_full else str(folder.absolute().parent)) from None  # fmt: skip


MOST_HELD_BACK = 64 * 2**20
"""The maximum number of bytes kept in memory while the disk refuses writes; records beyond it are lost."""


class AppendingFile:
    """Appends records at once; keeps records that the disk refuses in memory, and writes them before the next record.

    No record is cut or duplicated. If the file was replaced, appending continues in the new file; if it was removed,
    it is rewritten from the open descriptor. In both cases, `writer.check` and `warn` are called.
    """

    def __init__(self, path: Path, writer: Writer = UNFENCED, warn: Callable[[str], None] = lambda text: None) -> None:
        self.path, self._writer, self._warn = path, writer, warn
        self._descriptor = open_to_append(path, os.O_RDWR)
        self._held_back = bytearray()
        self._refused = False
        self._lock = threading.Lock()

    def last_byte(self) -> bytes:
        """Return the last byte of the file; b"" if it is empty."""
        return os.pread(self._descriptor, 1, max(0, os.fstat(self._descriptor).st_size - 1))

    def append(self, record: bytes) -> None:
        """Append one record.

        Raises:
            OSError: the disk did not accept the whole record; the rest is kept, and written before the next record.
            NoetherError: `writer` may no longer write.
        """
        with self._lock:
            if len(self._held_back) + len(record) <= MOST_HELD_BACK:
                self._held_back += record
            self._write()

    def sync(self) -> None:
        """Wait until all appended records are on the disk. This raises the same errors as `append`."""
        with self._lock:
            self._write()
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Write the records held back, if the disk accepts them now, and close the file."""
        with self._lock:
            try:
                self._write()
            finally:
                self._close()

    def discard(self) -> None:
        """Close the file and discard the records held back."""
        with self._lock:
            self._held_back.clear()
            self._close()

    def _close(self) -> None:
        # The descriptor may soon belong to another file, which a thread delayed by a slow disk must not flush.
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def _write(self) -> None:
        self._follow_name()
        if self._refused:  # Another attempt may have started since the disk refused these records.
            self._writer.check()
        self._refused = bool(self._held_back)
        while self._held_back:
            del self._held_back[: os.write(self._descriptor, self._held_back)]
        self._refused = False

    def _follow_name(self) -> None:
        """Reopen the file if another file now has its name, or no file has it."""
        own = os.fstat(self._descriptor)
        try:
            named = os.lstat(self.path)
        except FileNotFoundError:
            named = None
        if named is not None and os.path.samestat(own, named):
            return
        self._writer.check()
        if named is None:
            with written_whole(self.path, self._writer) as file:
                file.write(os.pread(self._descriptor, own.st_size, 0))
            self._warn(f"{self.path} was removed during the run, and is written again")
        else:
            self._warn(f"{self.path} was replaced during the run, which continues in the new file")
        reopened = open_to_append(self.path, os.O_RDWR)
        os.close(self._descriptor)
        self._descriptor = reopened
