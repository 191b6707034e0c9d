"""The loop: batches → weights, and at update boundaries what is due: log, evaluation, checkpoint, stop."""

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from noether.checkpoints.saver import Saver
from noether.checkpoints.state import TrainingState
from noether.config.interval import Interval
from noether.config.schema import RunConfig
from noether.data.loader import Batch, to_device, training_batches
from noether.data.order import GlobalOrder, RankOrder
from noether.distributed.group import Group
from noether.distributed.stop import AgreedStop, StopAgreed
from noether.evaluation.evaluate import evaluate_samples
from noether.learning.precision import Precision
from noether.learning.setup import Problem
from noether.planning.batches import BatchPlan, RunLength
from noether.tracking.tracker import Trackers
from noether.training.schedules import Schedule
from noether.training.update import UpdateFigures, Updater


@dataclass
class Loop:
    """Everything a run trains with; `run` goes from the state's progress to the end, or to an agreed stop.

    `saver` is asked for checkpoints on every rank, and rank 0's writes them.
    """

    config: RunConfig
    problem: Problem
    state: TrainingState
    plan: BatchPlan
    length: RunLength
    schedule: Schedule
    precision: Precision
    group: Group
    stop: AgreedStop
    trackers: Trackers
    saver: Saver

    def run(self) -> int:
        """Trains. Every rank calls it.

        Returns:
            0 where the run is complete, else why all ranks stopped (a signal, or TIME_LIMIT), with everything saved.
        """
        trainer, progress = self.config.trainer, self.state.progress
        updater = Updater(self.state, self.group, trainer, self.precision, self.plan.accumulation_steps)
        due_log, due_evaluation = self._due(trainer.log_every), self._due(trainer.evaluate_every)
        due_checkpoint = self._due(trainer.checkpoint_every)
        window = LogWindow(self.group, self.plan.effective)
        # An evaluation that the stop before this start cut short comes first.
        reason = self._boundary(updater, checkpoint=True) if progress.evaluation_pending else 0
        for batches in self._batches() if not reason else ():
            self.group.begin_update(progress.updates + 1)
            window.add(figures := updater.update(batches, self.schedule(progress.updates)))
            self.group.expect_steady_pace()
            update, last = progress.updates, progress.updates == self.length.total_updates
            self.trackers.advance(update)
            if figures.skipped:
                self._log("note", text=figures.skipped)
            if due_log(update) or last:
                self._log("training", learning_rate=self.schedule(update - 1), **window.read())
            progress.evaluation_pending = bool(self.problem.validation_indices) and (last or due_evaluation(update))
            reason = self._boundary(updater, checkpoint=last or due_checkpoint(update))
            window.resume()
            if reason:
                break
        updater.close()
        complete = progress.updates == self.length.total_updates and not progress.evaluation_pending
        return 0 if complete else reason

    def _boundary(self, updater: Updater, *, checkpoint: bool) -> int:
        """Does what is due between two updates; returns why all ranks stop here, or 0."""
        progress = self.state.progress
        metric, best = None, progress.best_metric
        reason = self.stop.agreed()
        if progress.evaluation_pending and not reason:
            updater.settle()
            try:
                metric = self.evaluate()
            except StopAgreed as stopped:
                reason = stopped.reason
        self._tell_of_checkpoints()
        leaving = bool(reason) or progress.updates == self.length.total_updates
        if checkpoint or leaving or progress.best_metric != best:
            updater.settle()
            self.saver.save(self.state, metric, leaving=leaving)
            if leaving:
                self._tell_of_checkpoints()
        return reason

    def _tell_of_checkpoints(self) -> None:
        for written in self.saver.news():
            epoch = written.updates / self.length.updates_per_epoch
            row = {"kind": "checkpoint", "update": written.updates, "epoch": epoch, "seconds": written.seconds}
            self.trackers.log({**row, "path": str(written.checkpoint.path)})

    def evaluate(self) -> float | None:
        """Evaluates the validation split with every kind of weights; returns the selection metric.

        The metric is the loss under the selected weights (averaged if there are any), the same on every rank.

        Raises:
            StopAgreed: on every rank, where the ranks agreed to stop before it was through; nothing has changed.
        """
        summaries = {}
        for weights, model in self.state.evaluation_models().items():
            # Running statistics are each rank's own; rank 0's are what a checkpoint holds.
            self.group.copy_from_first(model.buffers())
            figures = evaluate_samples(
                model,
                self.problem.task,
                self.problem.splits.train,
                self.problem.validation_indices,
                self.problem.draw,
                self.group,
                self.precision,
                batch_size=self.config.trainer.evaluation_batch_size or self.plan.micro,
                chunk_size=self.config.trainer.evaluation_chunk_size,
                num_workers=self.config.num_workers,
                at_boundary=self.stop.check,
            )
            if self.group.is_first:
                summaries[weights] = self.problem.task.summarise(figures)
        # Logged together: one that is cut short leaves no row that would come again.
        for weights, summary in summaries.items():
            self._log("evaluation", split="validation", weights=weights, figures=summary)
        metric = self.group.from_first(next((summary["loss"] for summary in summaries.values()), None))
        progress = self.state.progress
        if metric is not None and metric == metric and (progress.best_metric is None or metric < progress.best_metric):
            progress.best_metric = metric
        progress.evaluation_pending = False
        return metric

    def _batches(self) -> Iterator[list[Batch]]:
        """Yields each update's micro-batches, on the device."""
        indices = self.problem.train_indices
        order = RankOrder(
            GlobalOrder(len(indices), self.plan.effective, self.config.seed),
            self.plan.micro_batch_sizes(),
            self.group.rank,
            self.state.progress.updates,
            self.length.total_updates,
        )
        stream = training_batches(
            self.problem.splits.train,
            indices,
            order,
            self.problem.draw,
            num_workers=self.config.num_workers,
            pin_memory=self.group.device.type == "cuda",
        )
        moved = (to_device(batch, self.group.device, self.precision.weights) for batch in stream)
        while batches := list(islice(moved, self.plan.accumulation_steps)):
            yield batches

    def _due(self, interval: Interval | None) -> Callable[[int], bool]:
        if interval is None:
            return lambda update: False
        every = interval.in_updates(
            updates_per_epoch=self.length.updates_per_epoch,
            effective_batch_size=self.length.effective_batch_size,
            total_updates=self.length.total_updates,
        )
        return lambda update: update % every == 0

    def _log(self, kind: str, **values: Any) -> None:
        progress = self.state.progress
        progress.rows += 1
        position = {
            "update": progress.updates,
            "epoch": progress.updates / self.length.updates_per_epoch,
            "samples": progress.samples,
        }
        self.trackers.log({"kind": kind, **position, **values})


class LogWindow:
    """Sums up the updates since the last log line without reading the device in between.

    Only training is timed: the clock stands between the end of an update and `resume`.
    """

    def __init__(self, group: Group, effective_batch_size: int) -> None:
        self._group, self._effective = group, effective_batch_size
        self._clear()
        self.resume()

    def _clear(self) -> None:
        self._loss: torch.Tensor | None = None
        self._updates = 0
        self._seconds = self._busy = 0.0

    def resume(self) -> None:
        """Lets the clock run again, once what is due at the boundary is done."""
        self._started, self._started_busy = time.perf_counter(), time.process_time()

    def add(self, figures: UpdateFigures) -> None:
        """Counts one update."""
        self._loss = figures.loss if self._loss is None else self._loss + figures.loss
        self._norm = figures.gradient_norm
        self._updates += 1
        self._seconds += time.perf_counter() - self._started
        self._busy += time.process_time() - self._started_busy

    def read(self) -> dict[str, float | None]:
        """Returns the means since the last call, over all ranks, and starts anew. Every rank calls it."""
        assert self._loss is not None
        loss = self._group.sum(self._loss / (self._updates * self._group.world_size))
        row = {
            "loss": float(loss),
            "gradient_norm": float(self._norm),
            "samples_per_second": self._updates * self._effective / self._seconds,
            "memory_mib": peak_memory_mib(self._group.device),
            "device_use": self._device_use(),
        }
        self._clear()
        return row

    def _device_use(self) -> float | None:
        """Share of the time that this rank's device computed, 0 to 1: the driver's figure, or CPU time."""
        if self._group.device.type == "cuda":
            try:
                return torch.cuda.utilization(self._group.device) / 100
            except Exception:
                # NVML's errors are of their own kind; it has no such figure for MIG, nor without its library.
                return None
        return min(1.0, self._busy / (self._seconds * torch.get_num_threads()))


def peak_memory_mib(device: torch.device) -> float:
    """Returns the most memory used so far, in MiB: the device's on a GPU, else this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
