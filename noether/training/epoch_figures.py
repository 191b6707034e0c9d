"""What a task counts of the training samples of an epoch, over all ranks: the line at its end."""

from typing import Any

import torch

from noether.distributed.group import Group
from noether.training.update import UpdateFigures


class EpochFigures:
    """Sums up the updates of an epoch without reading the device in between.

    Each sample counts once, as the model was when it learned from it. An update that was skipped counts nothing.
    """

    def __init__(self, group: Group, samples_per_update: int) -> None:
        """`samples_per_update`: of this rank."""
        self._group, self._per_update = group, samples_per_update
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._samples = 0

    def add(self, figures: UpdateFigures) -> None:
        """Counts one update of a task that counts anything."""
        if figures.skipped or not figures.counts:
            return
        sums = {"loss": figures.loss * self._per_update, **figures.counts}
        for name, value in sums.items():
            value = value if value.device.type == "mps" else value.double()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._samples += self._per_update

    def read(self) -> dict[str, Any]:
        """Returns the means over the samples since the last call, and how many they are; {} without any.

        Every rank calls it: all have skipped the same updates.
        """
        if not self._samples:
            return {}
        table = self._group.table([self._samples, *(float(value) for value in self._sums.values())])
        samples, *sums = (sum(column) for column in zip(*table, strict=True))
        means = {name: value / samples for name, value in zip(self._sums, sums, strict=True)}
        self._clear()
        return {"epoch_samples": int(samples), "figures": means}
