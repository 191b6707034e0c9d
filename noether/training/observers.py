"""The observers of a run's updates: its trackers, its profile, the user's callbacks, and the rows of metrics."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from noether.checkpoints.writer import Written
from noether.core.tasks.base import Task
from noether.runs.tracking.tracker import UNCOUNTED, Trackers
from noether.training.build import Run
from noether.training.callbacks import Callback
from noether.training.time_use import Clock, EpochMetrics, LogWindow, Part, UpdateMetrics, UpdateProfile


class Observers:
    """Everything that observes the updates of a run without changing them. Every rank calls each method."""

    def __init__(
        self, built: Run, clock: Clock, trackers: Trackers, profile: UpdateProfile | None, callbacks: Sequence[Callback]
    ) -> None:
        self._began, self._start_update = time.perf_counter(), built.state.progress.updates
        self._built, self._clock, self._trackers, self._profile = built, clock, trackers, profile
        self._callbacks, task = callbacks, built.problem.task
        self._window = LogWindow(built.group, built.batch.effective, clock, own=task.updates_itself)
        counts = type(task).counts is not Task.counts and not task.updates_itself
        self._epoch = EpochMetrics(built.group, built.batch.per_rank, counts=counts)

    def begin(self) -> None:
        """Call `begin` of the callbacks, before the first update."""
        for callback in self._callbacks:
            callback.begin(self._built)

    def after_update(self, measured: UpdateMetrics) -> None:
        """Add an update to the metrics, pass it to the profile and the callbacks, and write the rows that are due."""
        built, update = self._built, self._built.state.progress.updates
        self._window.add(measured)
        self._epoch.add(measured)
        self._trackers.advance(update)
        self._clock.switch(Part.LOGGING)
        if self._profile is not None:
            self._profile.after_update()
        for callback in self._callbacks:
            callback.after_update(built, measured)
        if measured.skipped:
            self._log("note", text=measured.skipped)
        if built.length.is_due(built.config.trainer.log_every, update):
            self._log("training", learning_rate=built.schedule(update - 1), **self._window.read())
        if update % built.length.updates_per_epoch == 0 and (means := self._epoch.read()):
            self._log("epoch", **means)
        self._clock.switch(Part.OTHER)

    def log_evaluation(self, metrics: Mapping[str, Mapping[str, float]], selected: str) -> None:
        """Write a row for each kind of weights that was evaluated."""
        for weights, values in metrics.items():
            self._log("evaluation", split="validation", weights=weights, selected=weights == selected, metrics=values)

    def after_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Call the callbacks; end the run if a callback on rank 0 returns True."""
        if not self._callbacks:
            return
        ending = [type(one).__name__ for one in self._callbacks if one.after_evaluation(self._built, metrics)]
        if ending := self._built.group.from_first(ending) or []:
            self._built.state.progress.ended = True
            self.log_end(f"{', '.join(ending)} requested it")

    def after_saving(self, news: Sequence[Written]) -> None:
        """Write a row for each checkpoint that has reached the disk."""
        for written in news:
            update = written.checkpoint.updates
            epoch = update / self._built.length.updates_per_epoch
            row = {"kind": "checkpoint", "update": update, "epoch": epoch, "seconds": written.seconds}
            self._trackers.log({**row, "metric": written.metric, "path": str(written.checkpoint.path)})

    def log_end(self, why: str) -> None:
        """Write a note that the run ends early."""
        text = f"the run ends after update {self._built.state.progress.updates}: {why}"
        self._log("note", text=text, asked_for=True)

    def finish(self) -> dict[str, Any]:
        """Close the profile; return how this attempt's time was used, and log it if an update was made."""
        if self._profile is not None:
            self._clock.switch(Part.LOGGING)
            self._profile.close()
        made, seconds = self._built.state.progress.updates - self._start_update, time.perf_counter() - self._began
        time_use = {"updates": made, "seconds": seconds, **self._window.finish().as_dict()}
        if made:  # Readers use the last row of this kind, which must come from training.
            self._log("time_use", **time_use)
        return time_use

    def _log(self, kind: str, **values: Any) -> None:
        progress = self._built.state.progress
        progress.rows += kind not in UNCOUNTED
        epoch = progress.updates / self._built.length.updates_per_epoch
        position = {"update": progress.updates, "epoch": epoch, "samples": progress.samples}
        self._trackers.log({"kind": kind, **position, **values})
