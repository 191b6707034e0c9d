"""The training loop: after each update, it logs, evaluates, saves or stops if that is due."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

from noether.checkpoints.writer import Saver
from noether.core.data.loader import Batch, to_device, training_batches
from noether.core.data.order import RankOrder
from noether.launch.process_group.stop import AgreedStop, StopAgreed
from noether.launch.process_group.torch_internals import Patience
from noether.runs.tracking.tracker import Trackers
from noether.training.build import Run, selection_metric
from noether.training.callbacks import Callback
from noether.training.observers import Observers
from noether.training.time_use import Clock, Part, UpdateProfile
from noether.training.update import Updater


@dataclass
class Loop:
    """The training of a run: `run` makes the remaining updates, or stops at an update on which all ranks agree."""

    built: Run
    stop: AgreedStop
    trackers: Trackers
    saver: Saver
    validate: Callable[[], dict[str, dict[str, float]]]
    profile: UpdateProfile | None = None
    callbacks: Sequence[Callback] = ()
    time_use: dict[str, Any] = field(default_factory=dict, init=False)
    updater: Updater = field(init=False)
    observers: Observers = field(init=False)

    def run(self) -> int:
        """Train on every rank; return 0 if the run is complete, else the reason for which all ranks stopped."""
        built, group, progress = self.built, self.built.group, self.built.state.progress
        updater = self.updater = built.updater()
        observers = self.observers = Observers(built, updater.clock, self.trackers, self.profile, self.callbacks)
        # If a stop cut the last evaluation short, repeat it before the first update.
        here = self._handle(Boundary(evaluate=True, checkpoint=True)) if progress.evaluation_pending else Boundary()
        observers.begin()
        here.leaving = here.leaving or built.is_over()
        for batches in () if here.leaving else update_batches(built, updater.clock, built.length.total_updates):
            group.parent.begin_update(progress.updates + 1)
            built.schedule.set_momentum(built.state.optimizer, progress.updates)
            measured = updater.update(batches, built.schedule(progress.updates))
            group.expect_steady_pace()
            observers.after_update(measured)
            here = self._handle(self._due())
            if here.leaving:
                break
        if not here.leaving:  # All ranks stopped while waiting for a batch.
            here = self._handle(Boundary(checkpoint=True))
        updater.close()
        self.time_use = observers.finish()
        return 0 if built.is_over() else here.reason

    def _due(self) -> "Boundary":
        """Return what is due after the update that was just made."""
        built, trainer, update = self.built, self.built.config.trainer, self.built.state.progress.updates
        evaluate = built.length.is_due(trainer.evaluate_every, update) and bool(built.problem.validation_indices)
        return Boundary(evaluate=evaluate, checkpoint=built.length.is_due(trainer.checkpoint_every, update))

    def _handle(self, here: "Boundary") -> "Boundary":
        """Evaluate, save and log what is due at a boundary; return the boundary, with the reason if the ranks stop."""
        built, updater, progress = self.built, self.updater, self.built.state.progress
        progress.evaluation_pending, metric = here.evaluate, None
        here.reason = self.stop.agreed()
        if here.evaluate and not here.reason:
            updater.clock.switch(Part.EVALUATION)
            updater.settle()
            try:
                metric = self._evaluate()
                improved = built.selected_by.is_better(metric, progress.best_metric)
                here.checkpoint = here.checkpoint or improved
                self._count_without_improvement(improved)
            except StopAgreed as stopped:
                here.reason = stopped.reason
            updater.clock.switch(Part.OTHER)
        self.observers.after_saving(self.saver.news())
        here.leaving = bool(here.reason) or built.is_over()
        if here.checkpoint or here.leaving:
            updater.clock.switch(Part.CHECKPOINT)
            updater.settle()
            self.saver.save(built.state, metric, leaving=here.leaving)
            if here.leaving:
                self.observers.after_saving(self.saver.news())
            updater.clock.switch(Part.OTHER)
        return here

    def _evaluate(self) -> float | None:
        """Evaluate the validation split with every kind of weights; return the selection metric.

        The metric is trainer.select_by under the selected weights (EMA if there are any), the same on every rank.
        StopAgreed: raised on every rank if all agree to stop before the evaluation is complete; the state is unchanged.
        """
        built, progress = self.built, self.built.state.progress
        metrics, selected = self.validate(), built.state.selected_weights
        self.observers.log_evaluation(metrics, selected)
        own = metrics.get(selected)
        metric = built.group.from_first(None if own is None else selection_metric(built, own))
        progress.evaluation_pending = False
        if built.schedule.plateau is not None:
            progress.followed.append(nan if metric is None else metric)
            built.schedule.evaluated(progress.followed[-1])
        self.observers.after_evaluation(own or {})
        return metric

    def _count_without_improvement(self, improved: bool) -> None:
        progress = self.built.state.progress
        count = 0 if improved else progress.evaluations_without_improvement + 1
        progress.evaluations_without_improvement = count
        if progress.updates < self.built.length.total_updates and self.built.is_over() and not progress.ended:
            self.observers.log_end(f"{count} evaluations without a better {self.built.config.trainer.select_by}")


@dataclass
class Boundary:
    """The actions due between two updates. `reason`: the signal or TIME_LIMIT for which all ranks stop; else 0."""

    evaluate: bool = False
    checkpoint: bool = False
    leaving: bool = False
    reason: int = 0


def update_batches(run: Run, clock: Clock, until: int) -> Iterator[list[Batch]]:
    """Yield the micro-batches of each update, on the device, from the state's next update up to `until`."""
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
            except StopAgreed:  # The run stops at the boundary before this update.
                batch = None
            if batch is None:
                return
            clock.switch(Part.COPY)
            batches.append(to_device(batch, group.device, run.precision.weights))
        clock.switch(Part.OTHER)
        yield batches
