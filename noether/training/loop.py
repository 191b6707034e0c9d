"""The loop: batches → weights, and at update boundaries what is due: log, evaluation, checkpoint, stop."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

from noether.checkpoints.writer import Saver
from noether.config.section import Interval
from noether.core.data.loader import Batch, to_device, training_batches
from noether.core.data.order import RankOrder
from noether.core.tasks.base import Task
from noether.launch.process_group.stop import AgreedStop, StopAgreed
from noether.launch.process_group.torch_internals import Patience
from noether.runs.tracking.tracker import UNCOUNTED, Trackers
from noether.training.build import Run, selection_metric
from noether.training.callbacks import Callback
from noether.training.time_use import Clock, EpochMetrics, LogWindow, Part, UpdateProfile
from noether.training.update import Updater


@dataclass
class Loop:
    """Everything a run trains with; `run` goes from the state's progress to the end, or to an agreed stop.

    `saver` is asked for checkpoints on every rank, and rank 0's writes them. `validate` evaluates the validation split:
    on rank 0 it returns metrics by the name of the weights. `time_use`, once `run` has returned: of its seconds.
    """

    built: Run
    stop: AgreedStop
    trackers: Trackers
    saver: Saver
    validate: Callable[[], dict[str, dict[str, float]]]
    profile: UpdateProfile | None = None
    callbacks: Sequence[Callback] = ()
    time_use: dict[str, Any] = field(default_factory=dict, init=False)

    def run(self) -> int:
        """Trains. Every rank calls it.

        Returns 0 where the run is complete, else why all ranks stopped (a signal or TIME_LIMIT), with all saved.
        """
        built, group = self.built, self.built.group
        trainer, progress = built.config.trainer, built.state.progress
        updater = built.updater()
        began, clock, start_update = time.perf_counter(), updater.clock, progress.updates
        task = built.problem.task
        window = LogWindow(group, built.batch.effective, clock, own=task.updates_itself)
        counts = type(task).counts is not Task.counts and not task.updates_itself
        epoch = EpochMetrics(group, built.batch.per_rank, counts=counts)
        # An evaluation that the stop before this start cut short comes first.
        reason = self._boundary(updater, checkpoint=True) if progress.evaluation_pending else 0
        last_update = built.length.total_updates
        for callback in self.callbacks:
            callback.begin(built)
        for batches in update_batches(built, clock, last_update) if not (reason or built.is_over()) else ():
            group.parent.begin_update(progress.updates + 1)
            built.schedule.set_momentum(built.state.optimizer, progress.updates)
            window.add(measured := updater.update(batches, built.schedule(progress.updates)))
            epoch.add(measured)
            group.expect_steady_pace()
            update, last = progress.updates, progress.updates == last_update
            self.trackers.advance(update)
            clock.switch(Part.LOGGING)
            if self.profile is not None:
                self.profile.after_update()
            for callback in self.callbacks:
                callback.after_update(built, measured)
            if measured.skipped:
                self._log("note", text=measured.skipped)
            if last or self._is_due(trainer.log_every, update):
                self._log("training", learning_rate=built.schedule(update - 1), **window.read())
            if update % built.length.updates_per_epoch == 0 and (means := epoch.read()):
                self._log("epoch", **means)
            clock.switch(Part.OTHER)
            is_due = last or self._is_due(trainer.evaluate_every, update)
            progress.evaluation_pending = bool(built.problem.validation_indices) and is_due
            reason = self._boundary(updater, checkpoint=last or self._is_due(trainer.checkpoint_every, update))
            if reason or built.is_over():
                break
        else:
            # Every update is made in its boundary; a stop while a batch did not come is not.
            reason = reason or (0 if built.is_over() else self._boundary(updater, checkpoint=True))
        updater.close()
        if self.profile is not None:
            clock.switch(Part.LOGGING)
            self.profile.close()
        made, seconds = progress.updates - start_update, time.perf_counter() - began
        self.time_use = {"updates": made, "seconds": seconds, **window.finish().as_dict()}
        if made:  # Who reads the last such row wants that of the training.
            self._log("time_use", **self.time_use)
        return 0 if built.is_over() else reason

    def _boundary(self, updater: Updater, *, checkpoint: bool) -> int:
        """Does what is due between two updates; returns why all ranks stop here, or 0."""
        progress = self.built.state.progress
        metric, improved = None, False
        reason = self.stop.agreed()
        if progress.evaluation_pending and not reason:
            updater.clock.switch(Part.EVALUATION)
            updater.settle()
            try:
                metric = self._evaluate()
                improved = self.built.selected_by.is_better(metric, progress.best_metric)
                self._count_in_vain(improved)
            except StopAgreed as stopped:
                reason = stopped.reason
            updater.clock.switch(Part.OTHER)
        self._tell_of_checkpoints()
        leaving = bool(reason) or self.built.is_over()
        if checkpoint or leaving or improved:
            updater.clock.switch(Part.CHECKPOINT)
            updater.settle()
            self.saver.save(self.built.state, metric, leaving=leaving)
            if leaving:
                self._tell_of_checkpoints()
            updater.clock.switch(Part.OTHER)
        return reason

    def _tell_of_checkpoints(self) -> None:
        for written in self.saver.news():
            update = written.checkpoint.updates
            epoch = update / self.built.length.updates_per_epoch
            row = {"kind": "checkpoint", "update": update, "epoch": epoch, "seconds": written.seconds}
            self.trackers.log({**row, "metric": written.metric, "path": str(written.checkpoint.path)})

    def _evaluate(self) -> float | None:
        """Evaluates the validation split with every kind of weights; returns the selection metric.

        The metric is trainer.select_by under the selected weights (EMA if there are any), the same on every rank.
        StopAgreed: on every rank, where the ranks agreed to stop before it was through; nothing has changed.
        """
        metrics, selected = self.validate(), self.built.state.selected_weights
        for weights, values in metrics.items():
            self._log("evaluation", split="validation", weights=weights, selected=weights == selected, metrics=values)
        own = metrics.get(selected)
        metric = None if own is None else selection_metric(self.built, own)
        metric = self.built.group.from_first(metric)
        progress = self.built.state.progress
        progress.evaluation_pending = False
        if self.built.schedule.plateau is not None:
            progress.followed.append(nan if metric is None else metric)
            self.built.schedule.evaluated(progress.followed[-1])
        self._tell_callbacks(own or {})
        return metric

    def _tell_callbacks(self, metrics: Mapping[str, float]) -> None:
        if not self.callbacks:
            return
        progress = self.built.state.progress
        ending = [type(one).__name__ for one in self.callbacks if one.after_evaluation(self.built, metrics)]
        if ending := self.built.group.from_first(ending) or []:
            progress.ended = True
            text = f"the run ends after update {progress.updates}: {', '.join(ending)} said so"
            self._log("note", text=text, asked_for=True)

    def _count_in_vain(self, improved: bool) -> None:
        progress, trainer = self.built.state.progress, self.built.config.trainer
        progress.evaluations_without_improvement = 0 if improved else progress.evaluations_without_improvement + 1
        if progress.updates < self.built.length.total_updates and self.built.is_over() and not progress.ended:
            what = f"{progress.evaluations_without_improvement} evaluations without a better {trainer.select_by}"
            self._log("note", text=f"the run ends after update {progress.updates}: {what}", asked_for=True)

    def _is_due(self, interval: Interval | None, update: int) -> bool:
        return interval is not None and update % self.built.length.count_updates(interval) == 0

    def _log(self, kind: str, **values: Any) -> None:
        progress = self.built.state.progress
        progress.rows += kind not in UNCOUNTED
        position = {
            "update": progress.updates,
            "epoch": progress.updates / self.built.length.updates_per_epoch,
            "samples": progress.samples,
        }
        self.trackers.log({"kind": kind, **position, **values})


def update_batches(run: Run, clock: Clock, until: int) -> Iterator[list[Batch]]:
    """Yields the micro-batches of each update from the state's progress to update `until`, on the device."""
    problem, group, config, done = run.problem, run.group, run.config, run.state.progress.updates
    order = RankOrder(run.order, run.batch.micro_batch_sizes(), group.rank, done, until)
    stream = training_batches(
        problem.splits.train, problem.train_indices, order, problem.draw,
        num_workers=config.num_workers, pin_memory=group.device.type == "cuda",
        patience=Patience(config.distributed.init_timeout_s, group.parent.while_waiting),
    )  # fmt: skip
    while True:
        batches = []
        for _ in range(run.batch.accumulation_steps):
            clock.switch(Part.DATA)
            try:
                batch = next(stream, None)
            except StopAgreed:  # The boundary before is where the run stops.
                batch = None
            if batch is None:
                return
            clock.switch(Part.COPY)
            batches.append(to_device(batch, group.device, run.precision.weights))
        clock.switch(Part.OTHER)
        yield batches
