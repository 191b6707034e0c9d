"""Show a run while it trains: a live display on a terminal, one line per log interval elsewhere."""

from collections.abc import Iterable, Mapping
from datetime import timedelta

from rich.columns import Columns
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from noether.common.console import Console
from noether.runs.metrics import OF_THE_LOOP, Metrics, weights_name
from noether.runs.records import Row, metrics_of_row
from noether.runs.tracking.tracker import Tracker

LOOPS = {metric.name for metric in OF_THE_LOOP}
"""Names of the metrics that the loop logs in every run. All other metrics come from a task's own update."""


class _Display(Progress):
    """A progress bar, with facts below it in as many columns as fit. No fact is omitted or cut."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the progress bar and the facts below it."""
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            left = "–:––" if task.time_remaining is None else timedelta(seconds=int(task.time_remaining))
            times = f"{timedelta(seconds=int(task.elapsed or 0))} elapsed", f"{left} left"
            yield Columns([Text(fact, no_wrap=True) for fact in (*task.fields["facts"], *times)], padding=(0, 2))


class ConsoleTracker(Tracker):
    """Tracker that shows a run's rows on the console."""

    def __init__(
        self, console: Console, *, described: Metrics, start_update: int, total_updates: int, total_epochs: float
    ) -> None:
        self._console, self._described = console, described
        self._total_updates, self._total_epochs = total_updates, total_epochs
        self._progress: Progress | None = None
        if console.is_live:
            columns = TextColumn("[bold]{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn()
            self._progress = _Display(*columns, console=console.terminal, refresh_per_second=4, expand=True)
            self._bar = self._progress.add_task("training", total=total_updates, completed=start_update, facts=())
            self._progress.start()

    def advance(self, update: int) -> None:
        """Move the progress bar."""
        if self._progress is not None:
            self._progress.update(self._bar, completed=update)

    def log(self, row: Row) -> None:
        """Show a row: in the live display, or as a line of text."""
        if row["kind"] == "training":
            self._log_training(row)
        elif row["kind"] == "evaluation":
            place = f"update {row['update']:>7}  {row['split']} ({weights_name(row['weights'])})"
            self._console.say(f"{place}  {self._values(row['metrics'])}")
        elif row["kind"] == "epoch":
            place = f"epoch  {row['epoch']:>7.0f}/{self._total_epochs:.0f}  training"
            self._console.say(f"{place}  {self._values(row['metrics'])}  {row['epoch_samples']:,} samples")
        elif row["kind"] == "checkpoint":
            self._console.only_log(f"update {row['update']:>7}  checkpoint written: {row['path']}")
        elif row["kind"] == "time_use":
            self._console.say(time_line(row))
        elif row["kind"] == "note":
            (self._console.say if row.get("asked_for") else self._console.warn)(row["text"])

    def _values(self, values: Mapping[str, float]) -> str:
        """Format the loss, followed by the headline metrics."""
        beside = {name: value for name, value in values.items() if name != "loss"}
        return "  ".join([*self._loss(values), *map(" ".join, self._described.headlines(beside))])

    def _loss(self, values: Mapping[str, float]) -> list[str]:
        """Format the loss; return [] if `values` contains no loss."""
        return [f"loss {self._described['loss'].text(values['loss'])}"] if "loss" in values else []

    def _log_training(self, row: Row) -> None:
        names = ("learning_rate", "samples_per_second", "memory_mib")
        rate, pace, memory = (self._described[name].text(row[name]) for name in names)
        own = {name: value for name, value in metrics_of_row(row)[2].items() if name not in LOOPS}
        beside = map(" ".join, self._described.headlines(own)) if own else ()
        facts = (*self._loss(row), *beside, f"lr {rate}", pace, memory)
        line = f"update {row['update']:>7}/{self._total_updates}  epoch {row['epoch']:>6.2f}  " + "  ".join(facts)
        if self._progress is None:
            self._console.say(line)
            return
        description = f"epoch {min(int(row['epoch']) + 1, round(self._total_epochs) or 1)}/{self._total_epochs:.0f}"
        self._progress.update(self._bar, description=description, facts=facts)
        self._console.only_log(line)

    def close(self) -> None:
        """Stop the live display and leave it on the screen."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def time_line(row: Row) -> str:
    """Format a row of kind `time_use` in one line: shares of the time, and the slowest rank if there are several."""
    parts = row["parts"]
    total = sum(parts.values()) or 1.0
    shares = sorted(((value / total, name) for name, value in parts.items()), reverse=True)
    line = f"time {total:.1f} s: " + ", ".join(f"{name} {share:.0%}" for share, name in shares if share >= 0.015)
    slowest = row.get("slowest")
    if slowest is not None:
        line += f"; slowest rank {slowest['rank']} on {slowest['host']}, {slowest['behind']:.1%} behind the others"
    return line
