"""Print the output of one rank on the terminal and to the rank's log file."""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from noether.common.processes import ancestors
from noether.common.safe_open import open_to_append
from noether.common.sanitize import shown_text

# The programs of Open MPI and its runtime that start ranks: mpirun on its own host, a daemon on the other hosts.
_MPI_STARTERS = ("mpirun", "mpiexec", "orterun", "prterun", "orted", "prted")


class _Terminal(RichConsole):
    """A terminal, or a pipe whose reader may exit early (`noether train | head`); `shown_text` escapes all output."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else shown_text(text), style, control)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with suppress(OSError, ValueError):
            os.dup2(nowhere, self.file.fileno())  # Also silences prints from elsewhere, and the flush at exit.
        os.close(nowhere)


class Console:
    """Output of one rank: rank 0 writes to the terminal and its log file, the other ranks to their log files only."""

    def __init__(self, log_file: Path | None, *, speaks: bool, stream: Any = None) -> None:
        stream, sizes = stream or sys.stdout, ("COLUMNS", "LINES")
        # Rich raises if a size has non-ASCII digits, or thousands of digits.
        environ = {k: v for k, v in os.environ.items() if k not in sizes or (v.isascii() and len(v) < 6)}
        seen = stream.isatty() and not _is_piped_by_mpirun()
        plain: dict[str, Any] = {} if seen else {"width": 120, "force_terminal": False}
        own = {"file": stream, "quiet": not speaks, "force_jupyter": False}
        self.terminal = _Terminal(**own, highlight=False, _environ=environ, **plain)
        log = os.fdopen(open_to_append(log_file), "w", 1, "utf-8") if log_file else None
        self._log = RichConsole(file=log, width=120, _environ=environ) if log else None
        self.is_live = speaks and self.terminal.is_terminal

    def say(self, *renderables: RenderableType, sep: str = " ") -> None:
        """Print text or tables."""
        with suppress(OSError):  # A log line that the disk refuses is lost; it must not end the run.
            self.terminal.print(*renderables, sep=sep, markup=False)
        self.only_log(*renderables, sep=sep)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.say(Text(f"warning: {text}", style="yellow"))

    def only_log(self, *renderables: RenderableType, sep: str = " ") -> None:
        """Print only to the log file."""
        if self._log is not None:
            with suppress(OSError):
                self._log.print(*renderables, sep=sep, markup=False)


def _is_piped_by_mpirun() -> bool:
    """Return whether the terminal is mpirun's own pseudo-terminal while mpirun itself writes to a file or a pipe."""
    if "OMPI_COMM_WORLD_SIZE" not in os.environ and "PMI_SIZE" not in os.environ:
        return False
    # The parent may be a process of noether that forked this rank, so search all ancestors for mpirun.
    starter = next((pid for pid, name in ancestors() if name in _MPI_STARTERS), None)
    try:
        return starter is None or not os.readlink(f"/proc/{starter}/fd/1").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:  # The starter is another user's daemon.
        return True
