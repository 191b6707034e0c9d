"""What is kept of each sample of a batch (B,), from physical predictions: a model's or a baseline's."""

from typing import TYPE_CHECKING

import torch

from noether.core.data.loader import Batch
from noether.core.data.padding import mask_of
from noether.core.tasks.angles import in_units
from noether.core.tasks.base import Predictions, SampleMetrics, by_channel
from noether.physics.fields.field_errors import (
    component_name,
    field_errors,
    squared_sums,
    weighted_errors,
    with_channel,
)
from noether.physics.fields.field_statistics import NOISE
from noether.physics.fields.forces import force_coefficient, true_coefficient

if TYPE_CHECKING:
    from noether.physics.fields.fields import FieldsTask

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
        integral, predicted = (
            force_coefficient(of[scalar.pressure], batch, scalar, of[scalar.shear] if scalar.shear else None)
            for of in (truth, physical)
        )
        measured[name] = {
            "prediction": predicted,
            "truth": true_coefficient(batch, scalar) if scalar.truth else integral,
            "integral_of_truth": integral,
            "reference_area": batch[scalar.reference_area].reshape(-1),
        }
    return measured
