"""Divides the samples of one update over the ranks, and each rank's share into micro-batches that fit on a device."""

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from noether.common.errors import RequestError
from noether.config.interval import Interval

if TYPE_CHECKING:
    from noether.config.trainer import TrainerConfig
    from noether.core.data.order import GlobalOrder


@dataclass(frozen=True)
class BatchPlan:
    """How the samples of one update are divided: effective = per_rank × world_size.

    micro: samples in the largest micro-batch. accumulation_steps: micro-batches per update, on each rank.
    """

    effective: int
    per_rank: int
    micro: int
    accumulation_steps: int

    def with_room_for(self, samples: int) -> "BatchPlan":
        """Returns the plan where a rank has room for so many samples at once.

        Equal micro-batches waste the least: with room for 8, 10 samples run as 5 + 5, not 8 + 2.
        """
        steps = ceil(self.per_rank / samples)
        return replace(self, micro=ceil(self.per_rank / steps), accumulation_steps=steps)

    def micro_batch_sizes(self) -> tuple[int, ...]:
        """Returns the sizes of the micro-batches in order: all are `micro`, except that the last may be smaller."""
        full, rest = divmod(self.per_rank, self.micro)
        return (self.micro,) * full + ((rest,) if rest else ())

    def describe(self, world_size: int) -> str:
        """Returns the plan in one line: "8 samples per update = 2 ranks × 4; per rank 1 micro-batch of 4"."""
        samples = f"{self.effective:,} sample{'' if self.effective == 1 else 's'} per update"
        ranks = f"{world_size:,} rank{'' if world_size == 1 else 's'} × {self.per_rank}"
        micro = f"{self.accumulation_steps:,} micro-batch{'' if self.accumulation_steps == 1 else 'es'}"
        largest = "" if self.per_rank == self.micro * self.accumulation_steps else "at most "
        return f"{samples} = {ranks}; per rank {micro} of {largest}{self.micro}"


def plan_batches(effective_batch_size: int, max_batch_size: int | None, world_size: int) -> BatchPlan:
    """Divides the effective batch over the ranks, and each rank's share into micro-batches of at most `max_batch_size`.

    Raises:
        RequestError: the batch cannot be shared equally. The error gives the nearest sizes that can be.
    """
    per_rank, rest = divmod(effective_batch_size, world_size)
    if rest:
        valid = [size for size in (per_rank * world_size, (per_rank + 1) * world_size) if size]
        raise RequestError(
            "batch-not-divisible",
            f"an effective batch of {effective_batch_size} cannot be shared equally by {world_size} ranks",
            seen=f"trainer.effective_batch_size={effective_batch_size}, {world_size} ranks",
            expected=f"a multiple of {world_size}; the nearest are {' and '.join(map(str, valid))}",
            fix="      or ".join(f"trainer.effective_batch_size={size}" for size in valid),
        )
    return BatchPlan(effective_batch_size, per_rank, per_rank, 1).with_room_for(max_batch_size or per_rank)


@dataclass(frozen=True)
class RunLength:
    """The length of a run: updates per epoch and in total."""

    updates_per_epoch: int
    total_updates: int
    effective_batch_size: int

    def count_updates(self, interval: Interval) -> int:
        """Converts an interval into updates of this run, at least 1 (`%` may give 0); samples to the nearest update."""
        if interval.unit == "%":
            return round(interval.count / 100 * self.total_updates)
        if interval.unit == "epochs":
            return int(interval.count) * self.updates_per_epoch
        if interval.unit == "samples":
            return max(1, round(interval.count / self.effective_batch_size))
        return int(interval.count)

    @property
    def epochs(self) -> float:
        """The length in epochs."""
        return self.total_updates / self.updates_per_epoch


def plan_length(order: "GlobalOrder", trainer: "TrainerConfig") -> RunLength:
    """Converts the length that the settings give (epochs, updates or samples) into updates.

    Raises:
        RequestError: the training split is smaller than one effective batch.
    """
    effective_batch_size, updates_per_epoch = order.effective_batch_size, order.updates_per_epoch
    if not updates_per_epoch:
        raise RequestError(
            "too-few-samples",
            "the training split is smaller than one effective batch",
            seen=f"{order.samples} training samples, trainer.effective_batch_size={effective_batch_size}",
            expected="at least one whole batch per epoch",
            fix=f"trainer.effective_batch_size={max(order.samples, 1)}      (or less)",
        )
    if trainer.max_updates is not None:
        total = trainer.max_updates
    elif trainer.max_samples is not None:
        total = max(1, trainer.max_samples // effective_batch_size)
    else:
        assert trainer.max_epochs is not None  # The settings give exactly one of the three.
        total = trainer.max_epochs * updates_per_epoch
    return RunLength(updates_per_epoch, total, effective_batch_size)
