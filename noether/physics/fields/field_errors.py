"""What is kept of each sample: errors of fields at points, and coefficients; what metrics they are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from noether.core.data.loader import Batch
from noether.core.data.points import mask_of, mean_of_points
from noether.core.tasks.angles import in_units
from noether.core.tasks.base import Predictions, SampleMetrics, by_channel
from noether.physics.fields.field_statistics import NOISE
from noether.physics.fields.forces import force_coefficient, true_coefficient
from noether.runs.metrics import FIELD_ERRORS, Metric

if TYPE_CHECKING:
    from noether.physics.fields.fields import FieldsTask

WEIGHTED = {"weighted_relative_l2": "relative_l2", "weighted_mae": "mae"}
"""Measures of which every point counts by its area or volume, and the measures that they are then."""


def field_metrics(name: str, unit: str, parts: Mapping[str, str]) -> Iterator[Metric]:
    """Yields the metrics of a field in a unit; `parts`: the key of each component and part, and its words."""
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
    """Returns the metrics of a split from those of its samples (S,), of a field or a part of it, `stem`, by name.

    Means, and the largest of the largest errors. relative_l2 is the mean of the samples' own ratios,
    pooled_relative_l2 the ratio of the norms over all points of all samples, in which a weak field weighs little;
    there is none where the truth is 0 everywhere.
    """
    there = {f"{stem}/{measure}": measure for measure in (*FIELD_ERRORS, *WEIGHTED) if f"{stem}/{measure}" in samples}
    found = {name: float((np.max if measure == "max" else np.mean)(samples[name])) for name, measure in there.items()}
    if f"{stem}/squared_truth" in samples:
        error, truth = (samples[f"{stem}/squared_{of}"].sum() for of in ("error", "truth"))
        found |= {f"{stem}/pooled_relative_l2": float(np.sqrt(error / truth))} if truth > 0 else {}
    return found


def field_errors(prediction: Tensor, truth: Tensor, mask: Tensor | None = None) -> SampleMetrics:
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


def squared_sums(prediction: Tensor, truth: Tensor, mask: Tensor | None = None) -> SampleMetrics:
    """Returns the parts of a pooled error, squared_error and squared_truth: each sample's sums over points, channels.

    prediction, truth: (B, N, C). mask: (B, N), as of `field_errors`.
    """
    error = _error_of(prediction, truth, mask)
    return {"squared_error": error.square().sum(dim=(1, 2)), "squared_truth": truth.double().square().sum(dim=(1, 2))}


def weighted_errors(prediction: Tensor, truth: Tensor, sizes: Tensor, mask: Tensor | None = None) -> SampleMetrics:
    """Returns each sample's errors in which every point counts by its area or volume, `sizes` (B, N).

    weighted_relative_l2: √(Σ w |error|² / Σ w |truth|²); weighted_mae: Σ w |error| / (C Σ w).
    They do not depend on where a mesh is fine.
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
    """Returns what a channel of a field is called: its own name; else x, y or z, or its number."""
    own = names if len(names) == channels else "xyz" if channels == 3 else range(channels)
    return str(own[channel])


def with_channel(values: Tensor) -> Tensor:
    """Gives the outputs or parameters of a batch's cases their channel axis: (B,) → (B, 1); (B, C) stays."""
    return values.flatten(1) if values.ndim > 1 else values.unsqueeze(-1)


Measured = dict[str, SampleMetrics]
"""Of each field, output of the case or scalar: its values by measure."""


def named(measured: Measured) -> SampleMetrics:
    """Returns them by the names of metrics, `FIELD/relative_l2`."""
    return {f"{name}/{measure}": values for name, own in measured.items() for measure, values in own.items()}


def errors(task: "FieldsTask", physical: Predictions, batch: Batch) -> Measured:
    """Returns the errors of each field, relative_l2 and the like."""
    return {
        name: field_errors(
            *in_units(field, physical[name], by_channel(batch[name], batched=True)), mask_of(batch, field.points)
        )
        for name, field in task.fields.items()
    }


def details(task: "FieldsTask", physical: Predictions, batch: Batch) -> Measured:
    """Returns what only a final evaluation has of each field.

    squared_error and squared_truth, sums over points and channels; weighted_… where samples have areas or volumes;
    COMPONENT/… of vector fields, relative_l2 NaN where it is noise beside the others;
    on PART/squared_… of each named part of a set.
    """
    measured: Measured = {}
    for name, field in task.fields.items():
        mask = mask_of(batch, field.points)
        predicted, truth = in_units(field, physical[name], by_channel(batch[name], batched=True))
        found = squared_sums(predicted, truth, mask)
        if (sizes := task.size_key(name, batch)) is not None:
            found |= weighted_errors(predicted, truth, batch[sizes], mask)
        for channel in range(truth.shape[2] if truth.shape[2] > 1 else 0):
            one, label = slice(channel, channel + 1), component_name(channel, truth.shape[2], field.component_names)
            of_one = field_errors(predicted[..., one], truth[..., one], mask)
            own, whole = (values.double().flatten(1).norm(dim=1) for values in (truth[..., one], truth))
            of_one["relative_l2"] = of_one["relative_l2"].masked_fill(own <= NOISE * whole, torch.nan)
            found |= {f"{label}/{key}": value for key, value in of_one.items()}
        prefix = field.points.removesuffix("_points")
        if (key := f"{prefix}_part") in batch:
            parts = batch[key] if mask is None else batch[key].masked_fill(~mask, -1)
            for number, part in enumerate(task.parts.get(prefix, ())):
                own = truth.masked_fill((parts != number).unsqueeze(-1), 0)
                sums = squared_sums(predicted, own, parts == number)
                found |= {f"on {part}/{measure}": value for measure, value in sums.items()}
        measured[name] = found
    return measured


def numbers(task: "FieldsTask", physical: Predictions, batch: Batch) -> Measured:
    """Returns prediction and truth of each output of the case and of each scalar."""
    truth = {name: by_channel(batch[name], batched=True) for name in task.fields}
    measured: Measured = {}
    for name in task.case_fields:
        own = with_channel(batch[name])
        for channel, label in enumerate(task.case_labels(name)):
            measured[label] = {"prediction": physical[name][:, channel], "truth": own[:, channel]}
    for name, scalar in task.scalars.items():
        if any(key not in batch for key in scalar.needed_keys()):
            continue  # `lacks` says which
        integral, predicted = (force_coefficient(of, batch, scalar) for of in (truth, physical))
        measured[name] = {
            "prediction": predicted,
            "truth": true_coefficient(batch, scalar) if scalar.truth else integral,
            "integral_of_truth": integral,
            "reference_area": batch[scalar.reference_area].reshape(-1),
        }
    return measured
