"""The errors of each sample's fields at points, and the metrics that are computed from them."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from noether.core.data.points import mean_of_points
from noether.core.tasks.base import SampleMetrics
from noether.runs.metrics import FIELD_ERRORS, Metric

WEIGHTED = {"weighted_relative_l2": "relative_l2", "weighted_mae": "mae"}
"""The measures that weight every point by its area or volume, {name: name of the unweighted measure}."""


def field_metrics(name: str, unit: str, parts: Mapping[str, str]) -> Iterator[Metric]:
    """Yield the metrics of a field; `parts` maps the keys of its components and of the parts of its set to labels."""
    squared = f"({unit})²" if "/" in unit else f"{unit}²" if unit else ""
    units = {"mse": squared, "mae": unit, "max": unit}

    def metric(key: str, measure: str, part: str) -> Metric:
        unit, label = units.get(measure, "%"), FIELD_ERRORS[measure]
        headline = measure == "relative_l2" and not part
        return Metric(key, unit, "lower", label, name, part, measure, headline=headline)

    for stem, part in {name: "", **{f"{name}/{key}": words for key, words in parts.items()}}.items():
        yield from (metric(f"{stem}/{measure}", measure, part) for measure in FIELD_ERRORS)
    for key, measure in WEIGHTED.items():
        yield metric(f"{name}/{key}", measure, "weighted by area or volume")


def summarise_errors(samples: Mapping[str, np.ndarray], stem: str) -> dict[str, float]:
    """Aggregate the samples' metrics (S,) of the field or part `stem` over a split; return them by name.

    A metric is the mean over the samples, and max is the maximum. Therefore relative_l2 is a mean of ratios, whereas
    pooled_relative_l2 is the ratio of the norms over all points of all samples, to which samples with weak fields
    contribute little. The pooled metric is absent if the truth is 0 everywhere.
    """
    there = {f"{stem}/{measure}": measure for measure in (*FIELD_ERRORS, *WEIGHTED) if f"{stem}/{measure}" in samples}
    found = {name: float((np.max if measure == "max" else np.mean)(samples[name])) for name, measure in there.items()}
    if f"{stem}/squared_truth" in samples:
        error, truth = (samples[f"{stem}/squared_{of}"].sum() for of in ("error", "truth"))
        found |= {f"{stem}/pooled_relative_l2": float(np.sqrt(error / truth))} if truth > 0 else {}
    return found


def field_errors(prediction: Tensor, truth: Tensor, mask: Tensor | None = None) -> SampleMetrics:
    """Return the errors of a field (B, N, C) for each sample, in the unit of the field.

    relative_l2: norm of the error divided by norm of the truth, over all points and channels.
    mse, mae, max: mean square, mean magnitude and largest magnitude of the error, over all points and channels.
    mask: (B, N), False for padding, where the truth is 0 and the error is ignored; None: no padding.
    """
    error = _error_of(prediction, truth, mask)
    norm = truth.double().flatten(1).norm(dim=1)
    return {
        "relative_l2": error.flatten(1).norm(dim=1) / norm,
        "mse": mean_of_points(error.square(), mask),
        "mae": mean_of_points(error.abs(), mask),
        "max": error.abs().amax(dim=(1, 2)),
    }


def squared_sums(prediction: Tensor, truth: Tensor, mask: Tensor | None = None) -> SampleMetrics:
    """Return squared_error and squared_truth of each sample, sums over points and channels for a pooled error.

    prediction, truth: (B, N, C). mask: (B, N), as for `field_errors`.
    """
    error = _error_of(prediction, truth, mask)
    return {"squared_error": error.square().sum(dim=(1, 2)), "squared_truth": truth.double().square().sum(dim=(1, 2))}


def weighted_errors(prediction: Tensor, truth: Tensor, sizes: Tensor, mask: Tensor | None = None) -> SampleMetrics:
    """Return the errors of each sample, weighted by `sizes` (B, N), the areas or volumes of the points.

    With weights w, weighted_relative_l2 is √(Σ w |error|² / Σ w |truth|²), and weighted_mae is Σ w |error| / (C Σ w).
    A local refinement of the mesh does not change these errors.
    """
    error = _error_of(prediction, truth, mask)
    weights = sizes.double().reshape(sizes.shape[0], -1)
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
    """Return the name of a channel from `names`. Without names, it is x, y or z of three channels, else the index."""
    own = names if len(names) == channels else "xyz" if channels == 3 else range(channels)
    return str(own[channel])


def with_channel(values: Tensor) -> Tensor:
    """Add a channel axis to the values of cases if it is missing: (B,) becomes (B, 1), and (B, C) does not change."""
    return values.flatten(1) if values.ndim > 1 else values.unsqueeze(-1)


Measured = dict[str, SampleMetrics]
"""{name of a field, an output of the case or a scalar: {measure: values of the samples}}."""


def named(measured: Measured) -> SampleMetrics:
    """Flatten measured values to {name of the metric, such as `FIELD/relative_l2`: values}."""
    return {f"{name}/{measure}": values for name, own in measured.items() for measure, values in own.items()}
