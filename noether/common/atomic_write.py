"""Files and folders that readers see whole or not at all."""

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
"""Ends the name of a folder that was put aside for a new one; `Writer.publish` says when."""


class Writer:
    """Publishes finished files and folders by renaming them, and removes them. This class lets anybody write.

    The lease of a run is one that first checks whether its start may still write (`noether.runs.lease`).
    """

    def check(self) -> None:
        """Return where this process may write; raise what forbids it."""

    def partial(self, path: Path) -> Path:
        """Return where `path` is written before it gets its name, which nobody can guess; make the folder above."""
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_strangers_link(path.parent)
        return _beside(path)

    def publish(self, partial: Path, path: Path) -> None:
        """Rename `partial` to `path`. A file that has the name is replaced by a file, a folder by a folder.

        Folders swap their names at once. Where the file system cannot (NFS), a kill between two renames leaves the old
        one under another name, which ends with ASIDE.

        OSError: where the disk refuses; `path` is as it was.
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
        """Remove a file or a folder. A removal that is cut short leaves nothing under the name.

        OSError: where the disk refuses; `path` is as it was.
        """
        doomed = _beside(path, ".removed")
        with suppress(FileNotFoundError):
            path.rename(doomed)
            remove(doomed)


UNFENCED = Writer()


def _swapped(one: Path, other: Path) -> bool:
    """Swap two names; return whether system and file system can: renameat2(2), AT_FDCWD, RENAME_EXCHANGE."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    return swap is not None and swap(-100, os.fsencode(one), -100, os.fsencode(other), 2) == 0


def _beside(path: Path, ending: str = "") -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{ending}")


def remove(path: Path) -> None:
    """Remove a file or a folder as far as the disk lets it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def write_json(path: Path, content: Any, writer: Writer = UNFENCED) -> None:
    """Write JSON as `written_whole` does."""
    write_whole(path, strict_json(content, indent=2) + "\n", writer)


def write_whole(path: Path, text: str, writer: Writer = UNFENCED) -> None:
    """Write a text as `written_whole` does."""
    with written_whole(path, writer) as file:
        file.write(text.encode())


@contextmanager
def written_whole(path: Path, writer: Writer = UNFENCED) -> Iterator[BinaryIO]:
    """Open a file to write that then gets its name, so that readers see the old one or the new one, never half of it.

    Makes the file's folder.

    Raises:
        OSError: where the disk refuses; the old file is as it was, and nothing is left beside it.
        NoetherError: where `writer` may not write any more; likewise.
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
            partial.unlink()  # On a full disk its bytes are what others wait for.
        if isinstance(error, OSError):
            say_if_forbidden(writer)
        raise


def say_if_forbidden(writer: Writer) -> None:
    """Raise what forbids a publisher to write, where that explains an error: its own folder may be gone with it."""
    with suppress(OSError):
        writer.check()


def flush(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder: a power cut may else leave a name on an empty file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


ELSEWHERE = "output_path=FOLDER"
"""What a start writes where the disk refuses its run."""


class DiskRefusal(RequestError):
    """The disk refuses a write that the run needs."""


DISK_ERRNOS = frozenset(
    (
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.EBUSY, errno.ENODEV),
        *(errno.ENXIO, errno.ENOTCONN, errno.EACCES, errno.EPERM, errno.ENOMEM, errno.ETIMEDOUT, errno.EHOSTDOWN),
        *(errno.EREMOTEIO, errno.EMFILE, errno.ENFILE, errno.ETXTBSY),
    )
)
"""What a disk or its server answers that cannot serve now: no mistake of the program's, whatever it was doing."""


@contextmanager
def refusals_told(
    folder: Path, errnos: Container[int | None] | None = None, *, elsewhere: str = ELSEWHERE
) -> Iterator[None]:
    """Turn an OSError of required reading and writing in a run folder into DiskRefusal; `errnos`: these alone."""
    try:
        yield
    except OSError as error:
        named = error.filename is not None and not str(error.filename).startswith(os.fspath(folder))
        if errnos is not None and (named or error.errno not in errnos):
            raise  # Of another disk, such as the data's.
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DiskRefusal("disk-refused", f"cannot write to {folder}",
                          seen=f"{error.strerror} ({error.filename or folder})",
                          expected="a writable folder" + (", on a disk with room" if is_full else ""),
                          fix=f"make room, or {elsewhere}" if is_full else elsewhere,
                          mount="" if is_full else str(folder.absolute().parent)) from None  # fmt: skip


MOST_HELD_BACK = 64 * 2**20
"""Bytes kept in memory while the disk takes none; what comes after them is lost, and said so."""


class AppendingFile:
    """Appends records at once; what the disk refuses is held back in memory and written before the next record.

    No record is cut or doubled. Where the file was replaced under its name, the records go on in the new one; one that
    was removed is written again from what this process has open. `writer` is asked first, and `warn` is told.
    """

    def __init__(self, path: Path, writer: Writer = UNFENCED, warn: Callable[[str], None] = lambda text: None) -> None:
        self.path, self._writer, self._warn = path, writer, warn
        self._descriptor = open_to_append(path, os.O_RDWR)
        self._held_back = bytearray()
        self._refused = False
        self._lock = threading.Lock()

    def last_byte(self) -> bytes:
        """Return the last byte of the file; none of an empty one."""
        return os.pread(self._descriptor, 1, max(0, os.fstat(self._descriptor).st_size - 1))

    def append(self, record: bytes) -> None:
        """Append one record.

        Raises:
            OSError: where the disk did not take all of it; it is kept, and written with the next one.
            NoetherError: where `writer` may not write any more.
        """
        with self._lock:
            if len(self._held_back) + len(record) <= MOST_HELD_BACK:
                self._held_back += record
            self._write()

    def sync(self) -> None:
        """Return once everything appended is on the disk. Raises as `append` does."""
        with self._lock:
            self._write()
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Write what is held back, if the disk takes it now, and close the file."""
        with self._lock:
            try:
                self._write()
            finally:
                self._close()

    def discard(self) -> None:
        """Close the file without what is held back."""
        with self._lock:
            self._held_back.clear()
            self._close()

    def _close(self) -> None:
        # Its number may be another file's soon, and a thread that a slow disk has kept may still ask for a flush.
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def _write(self) -> None:
        self._follow_name()
        if self._refused:  # The rest of an older time: a newer start may have begun since it was refused.
            self._writer.check()
        self._refused = bool(self._held_back)
        while self._held_back:
            del self._held_back[: os.write(self._descriptor, self._held_back)]
        self._refused = False

    def _follow_name(self) -> None:
        """Go on in the file that has the name now."""
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
            self._warn(f"{self.path} was removed under the run, and is written again")
        else:
            self._warn(f"{self.path} was replaced during the run, which continues in the new file")
        reopened = open_to_append(self.path, os.O_RDWR)
        os.close(self._descriptor)
        self._descriptor = reopened
