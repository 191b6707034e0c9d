"""Makes or checks the data of a run, with a progress bar. No torch."""

from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from noether.common.console import Console
from noether.config.schema import RunConfig
from noether.data.build import prepare_data


def prepare_with_bar(config: RunConfig, console: Console) -> Path | None:
    """Makes or checks the data, with a bar while it is made."""
    progress = Progress(
        TextColumn("making the data set"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("shapes, left"),
        TimeRemainingColumn(),
        console=console.terminal,
        disable=not console.is_live,
        transient=True,
    )
    bar = progress.add_task("data", total=None)
    announced = False

    def report(done: int, total: int) -> None:
        nonlocal announced
        if not announced:
            progress.start()
            if not console.is_live:
                console.say(f"making the data set: {total} shapes")
            announced = True
        progress.update(bar, completed=done, total=total)

    try:
        return prepare_data(config, report)
    finally:
        progress.stop()
