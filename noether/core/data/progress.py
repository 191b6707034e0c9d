"""Long work on data with its progress: a bar on a terminal, elsewhere a line after every tenth."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from noether.common.console import Console
from noether.config.schema import RunConfig
from noether.core.data.build import prepare_data


def prepare_with_bar(config: RunConfig, console: Console) -> Path | None:
    """Makes or checks the data of a run, as `prepare_data` does, with a bar while it is made."""
    with progress_bar(console, "preparing the data", "samples") as report:
        return prepare_data(config, report)


@contextmanager
def progress_bar(console: Console, what: str, things: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar on a terminal, elsewhere a line after every tenth. Yields the function to report progress to."""
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
