"""The bar of long work on data: on a terminal a bar, elsewhere a line every tenth of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from noether.common.console import Console


@contextmanager
def progress_bar(console: Console, what: str, things: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for long work, on a terminal; a line every tenth of it elsewhere. Yields what is called as it goes on."""
    progress = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{things}, left"),
        TimeRemainingColumn(),
        console=console.terminal,
        disable=not console.is_live,
        transient=True,
    )
    bar = progress.add_task(what, total=None)
    last = -1

    def report(done: int, total: int) -> None:
        nonlocal last
        if last < 0:
            progress.start()
        progress.update(bar, completed=done, total=total)
        tenth = 10 * done // max(total, 1)
        if not console.is_live and tenth > last and total > 20:
            console.say(f"{what}: {done} of {total} {things}")
        last = max(last, tenth)

    try:
        yield report
    finally:
        progress.stop()
