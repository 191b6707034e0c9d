"""A file that grows by whole records, and that a full disk does not break."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from noether.common.plain_file import open_to_append
from noether.common.whole_file import UNFENCED, Publisher, written_whole

MOST_HELD_BACK = 64 * 2**20
"""Bytes kept in memory while the disk takes none; what comes after them is lost, and said so."""


class AppendingFile:
    """Appends records at once; what the disk refuses is held back in memory and written before the next record.

    No record is cut or doubled. Where the file was replaced under its name, the records go on in the new one; one that
    was removed is written again from what this process has open. `by` is asked first, and `warn` is told.
    """

    def __init__(self, path: Path, by: Publisher = UNFENCED, warn: Callable[[str], None] = lambda text: None) -> None:
        self.path, self._by, self._warn = path, by, warn
        self._descriptor = open_to_append(path, os.O_RDWR)
        self._held_back = bytearray()
        self._refused = False
        self._lock = threading.Lock()

    def last_byte(self) -> bytes:
        """Returns the last byte of the file; none of an empty one."""
        return os.pread(self._descriptor, 1, max(0, os.fstat(self._descriptor).st_size - 1))

    def append(self, record: bytes) -> None:
        """Appends one record.

        Raises:
            OSError: where the disk did not take all of it; it is kept, and written with the next one.
            NoetherError: where `by` may not write any more.
        """
        with self._lock:
            if len(self._held_back) + len(record) <= MOST_HELD_BACK:
                self._held_back += record
            self._write()

    def sync(self) -> None:
        """Returns once everything appended is on the disk. Raises as `append` does."""
        with self._lock:
            self._write()
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Writes what is held back, if the disk takes it now, and closes the file."""
        with self._lock:
            try:
                self._write()
            finally:
                self._close()

    def discard(self) -> None:
        """Closes the file without what is held back."""
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
            self._by.check()
        self._refused = bool(self._held_back)
        while self._held_back:
            del self._held_back[: os.write(self._descriptor, self._held_back)]
        self._refused = False

    def _follow_name(self) -> None:
        """Goes on in the file that has the name now."""
        own = os.fstat(self._descriptor)
        try:
            named = os.lstat(self.path)
        except FileNotFoundError:
            named = None
        if named is not None and os.path.samestat(own, named):
            return
        self._by.check()
        if named is None:
            with written_whole(self.path, self._by) as file:
                file.write(os.pread(self._descriptor, own.st_size, 0))
            self._warn(f"{self.path} was removed under the run, and is written again")
        else:
            self._warn(f"{self.path} was replaced during the run, which continues in the new file")
        reopened = open_to_append(self.path, os.O_RDWR)
        os.close(self._descriptor)
        self._descriptor = reopened
