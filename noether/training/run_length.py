"""The length of a run in updates, converted from the unit of its settings."""

from dataclasses import dataclass

from noether.common.errors import RequestError
from noether.config.section import Interval
from noether.config.trainer import TrainerConfig
from noether.core.data.order import GlobalOrder


@dataclass(frozen=True)
class RunLength:
    """The length of a run: updates per epoch and in total."""

    updates_per_epoch: int
    total_updates: int
    effective_batch_size: int

    def count_updates(self, interval: Interval) -> int:
        """Convert an interval into a rounded count of updates, at least 1; an interval in `%` may give 0."""
        if interval.unit == "%":
            return round(interval.count / 100 * self.total_updates)
        if interval.unit == "epochs":
            return int(interval.count) * self.updates_per_epoch
        if interval.unit == "samples":
            return max(1, round(interval.count / self.effective_batch_size))
        return int(interval.count)

    def is_due(self, interval: Interval | None, update: int) -> bool:
        """Return whether an action at this interval is due after an update; every action is due after the last."""
        return update == self.total_updates or (interval is not None and update % self.count_updates(interval) == 0)

    @property
    def epochs(self) -> float:
        """The length in epochs."""
        return self.total_updates / self.updates_per_epoch


def plan_length(order: GlobalOrder, trainer: TrainerConfig) -> RunLength:
    """Return the length that the settings give. RequestError: the training split is smaller than one batch."""
    size, updates_per_epoch = order.effective_batch_size, order.updates_per_epoch
    if not updates_per_epoch:
        raise RequestError("too-few-samples", "the training split is smaller than one effective batch",
                           seen=f"{order.samples} training samples, trainer.effective_batch_size={size}",
                           expected="at least one whole batch per epoch",
                           fix=f"trainer.effective_batch_size={max(order.samples, 1)}      (or less)")  # fmt: skip
    if trainer.max_updates is not None:
        total = trainer.max_updates
    elif trainer.max_samples is not None:
        total = max(1, trainer.max_samples // size)
    else:
        assert trainer.max_epochs is not None  # The settings give exactly one of the three lengths.
        total = trainer.max_epochs * updates_per_epoch
    return RunLength(updates_per_epoch, total, size)
