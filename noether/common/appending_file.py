"""A file that grows by whole records, and that a full disk does not break."""

import os
import threading
from pathlib import Path

MOST_HELD_BACK = 64 * 2**20
"""Bytes kept in memory while the disk takes none; what comes after them is lost, and said so."""


class AppendingFile:
    """Appends records at once; what the disk refuses is held back in memory and written before the next record.

    A write that was taken in part is continued where it stopped, so that no record is cut or doubled.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._held_back = bytearray()
        self._lock = threading.Lock()

    def append(self, record: bytes) -> None:
        """Appends one record.

        Raises:
            OSError: where the disk did not take all of it; it is kept, and written with the next one.
        """
        with self._lock:
            if len(self._held_back) + len(record) <= MOST_HELD_BACK:
                self._held_back += record
            self._write()

    def sync(self) -> None:
        """Returns once everything appended is on the disk. Raises OSError where it cannot be."""
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
        while self._held_back:
            del self._held_back[: os.write(self._descriptor, self._held_back)]
