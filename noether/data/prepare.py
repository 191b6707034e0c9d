"""Makes or checks the data of a run, with a progress bar. No torch."""

from pathlib import Path

from noether.common.console import Console
from noether.config.schema import RunConfig
from noether.data.build import prepare_data
from noether.data.progress import progress_bar


def prepare_with_bar(config: RunConfig, console: Console) -> Path | None:
    """Makes or checks the data, with a bar while it is made."""
    with progress_bar(console, "making the data set", "samples") as report:
        return prepare_data(config, report)
