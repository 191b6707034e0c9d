"""Errors of a field at points: with every point equal, and weighted by area or volume."""

from collections.abc import Sequence

from torch import Tensor

from noether.data.padding import mean_of_points

Figures = dict[str, Tensor]


def field_errors(prediction: Tensor, truth: Tensor, mask: Tensor | None = None) -> Figures:
    """Returns each sample's errors of a field (B, N, C) in its own unit, over its real points.

    relative_l2: norm of the error over norm of the truth, over all points and channels.
    mse, mae, max: over all points and channels.
    mask: (B, N), False for padding, where the truth is 0 whatever is predicted; None: no padding.
    """
    error = _error_of(prediction, truth, mask)
    norm = truth.double().flatten(1).norm(dim=1)
    return {
        "relative_l2": error.flatten(1).norm(dim=1) / norm,
        "mse": mean_of_points(error.square(), mask),
        "mae": mean_of_points(error.abs(), mask),
        "max": error.abs().amax(dim=(1, 2)),
    }


def squared_sums(prediction: Tensor, truth: Tensor, mask: Tensor | None = None) -> Figures:
    """Returns the parts of a pooled error, squared_error and squared_truth: each sample's sums over points, channels.

    prediction, truth: (B, N, C). mask: (B, N), as of `field_errors`.
    """
    error = _error_of(prediction, truth, mask)
    return {"squared_error": error.square().sum(dim=(1, 2)), "squared_truth": truth.double().square().sum(dim=(1, 2))}


def weighted_errors(prediction: Tensor, truth: Tensor, measure: Tensor, mask: Tensor | None = None) -> Figures:
    """Returns each sample's errors in which every point counts by its area or volume, `measure` (B, N).

    weighted_relative_l2: √(Σ w |error|² / Σ w |truth|²); weighted_mae: Σ w |error| / (C Σ w).
    They do not depend on where a mesh is fine.
    """
    error = _error_of(prediction, truth, mask)
    weights = measure.double().reshape(measure.shape[0], -1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    squares = (weights * error.square().sum(dim=2)).sum(dim=1)
    truths = (weights * truth.double().square().sum(dim=2)).sum(dim=1)
    return {
        "weighted_relative_l2": (squares / truths).sqrt(),
        "weighted_mae": (weights * error.abs().mean(dim=2)).sum(dim=1) / weights.sum(dim=1),
    }


def _error_of(prediction: Tensor, truth: Tensor, mask: Tensor | None) -> Tensor:
    error = prediction.double() - truth.double()
    return error if mask is None else error.masked_fill(~mask.unsqueeze(-1), 0)


def component_name(channel: int, channels: int, names: Sequence[str] = ()) -> str:
    """Returns what a channel of a field is called: its own name; else x, y or z, or its number."""
    own = names if len(names) == channels else "xyz" if channels == 3 else range(channels)
    return str(own[channel])


def by_channel(values: Tensor, *, batched: bool = False) -> Tensor:
    """Gives a scalar field its channel axis: (N,) → (N, 1); with `batched` (B, N) → (B, N, 1)."""
    return values.unsqueeze(-1) if values.ndim == (2 if batched else 1) else values
