"""Prints the output of one rank: on the terminal and in its log file."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.text import Text


class Console:
    """Speaks for one rank: rank 0 on the terminal and in its log file, the others in their log files only."""

    def __init__(self, log_file: Path | None, *, speaks: bool, stream: Any = None) -> None:
        stream = stream or sys.stdout
        seen = stream.isatty() and not _is_piped_by_mpirun()
        self.terminal = RichConsole(
            file=stream,
            quiet=not speaks,
            highlight=False,
            width=None if seen else 120,
            force_terminal=None if seen else False,
        )
        self._log = RichConsole(file=log_file.open("a", buffering=1), width=120) if log_file else None
        self.is_live = speaks and self.terminal.is_terminal

    def say(self, *renderables: RenderableType, sep: str = " ") -> None:
        """Prints text or tables."""
        with _full_disk_ignored():
            self.terminal.print(*renderables, sep=sep, markup=False)
        if self._log is not None:
            with _full_disk_ignored():
                self._log.print(*renderables, sep=sep, markup=False)

    def warn(self, text: str) -> None:
        """Prints a warning."""
        self.say(Text(f"warning: {text}", style="yellow"))

    def only_log(self, text: str) -> None:
        """Writes a line to the log file alone."""
        if self._log is not None:
            with _full_disk_ignored():
                self._log.print(text)


def _is_piped_by_mpirun() -> bool:
    """Returns whether a terminal is only mpirun's: it gives each rank one, and may write to a file or a pipe itself."""
    if "OMPI_COMM_WORLD_SIZE" not in os.environ and "PMI_SIZE" not in os.environ:
        return False
    try:
        return not os.readlink(f"/proc/{os.getppid()}/fd/1").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:  # Another system, or a daemon of another user.
        return True


@contextmanager
def _full_disk_ignored() -> Iterator[None]:
    """Ignores a full disk: losing log lines does not end a run."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
            raise
