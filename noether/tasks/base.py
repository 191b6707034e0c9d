"""What a task must offer: it turns a model's predictions into a loss and into figures."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from noether.data.loader import Batch

Predictions = dict[str, Tensor]
SampleFigures = dict[str, Tensor]
"""Figures of each sample of a batch, (B,) by name: gathered over ranks, so that each sample counts once."""


class Task:
    """A task: from predictions to loss and metrics. A user's own derives from this and needs those two."""

    reads_masks = False
    """Whether padded batches are understood: points where `<set>_mask` is False count nothing."""

    def fit(self, samples: Iterable[Mapping[str, Tensor]]) -> None:
        """Computes what the task must know of the training split (statistics). Default: nothing."""

    def state(self) -> dict[str, Any]:
        """Returns what `fit` found, for JSON: it is stored in every checkpoint."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` returned."""

    def prepare(self, batch: Batch) -> Batch:
        """Returns the batch as the model sees it (scaled, standardised). Default: as it is."""
        return batch

    def loss(self, predictions: Predictions, batch: Batch) -> Tensor:
        """Returns the mean loss over the batch's samples, a scalar. `batch` is prepared."""
        raise NotImplementedError

    def metrics(self, predictions: Predictions, batch: Batch) -> SampleFigures:
        """Returns figures of each sample, (B,) by name, `loss` among them. `batch` is as the data set gave it."""
        raise NotImplementedError

    def summarise(self, figures: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Turns the figures of all samples, (S,) by name, into those of the split. Default: their means."""
        return {name: float(np.mean(values)) for name, values in figures.items()}

    def results(self, figures: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns what else result.json says of a split, from the figures of all its samples. Default: nothing."""
        return {}
