"""What the report and ParaView show: the fields of a few chosen samples, and histograms of the errors at points."""

import json
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from noether.common.whole_file import UNFENCED, Publisher, written_whole
from noether.core.data.loader import Batch
from noether.core.data.points import mask_of
from noether.core.evaluate import SplitMetrics
from noether.core.tasks.angles import in_units
from noether.core.tasks.base import Predictions, Task, by_channel
from noether.runs.report.tables import Label

ERRORS_PER_SAMPLE = 2048
HISTOGRAM_BINS = 80


def point_errors(task: Task, physical: Predictions, batch: Batch) -> dict[str, np.ndarray]:
    """Returns a batch's signed errors of points by field, prediction − truth in its unit, for the histograms.

    Of samples with very many points they are those of evenly spaced ones.
    """
    found: dict[str, np.ndarray] = {}
    for name, field in task.fields.items():
        predicted, truth = in_units(field, physical[name], by_channel(batch[name], batched=True))
        errors = predicted - truth
        step = max(1, errors[0].numel() // ERRORS_PER_SAMPLE)
        shown = errors.flatten(1)[:, ::step]
        mask = mask_of(batch, field.points)
        if mask is not None:
            shown = shown[mask.unsqueeze(-1).expand_as(errors).flatten(1)[:, ::step]]
        found[name] = shown.float().cpu().numpy().ravel()
    return found


class ShownCase(NamedTuple):
    """A sample that is shown: why, its position in the split, its fields in physical units, and its batch of one.

    place: among those with this label, from 1: the second worst has 2.
    """

    label: Label
    place: int
    position: int
    physical: Predictions
    batch: Batch


def write_cases(
    path: Path,
    task: Task,
    sample_metrics: SplitMetrics,
    *,
    errors: Mapping[str, Sequence[np.ndarray]],
    shown: Sequence[ShownCase],
    names: Sequence[str],
    about: Mapping[str, Any],
    most_points: int | None = None,
    by: Publisher = UNFENCED,
) -> None:
    """Writes what the report draws, as one compressed npz file of plain arrays.

    Args:
        sample_metrics, names: of every sample.
        errors: of points, by field, in its unit.
        shown: the cases whose fields are written.
        about: what else the report says of the evaluation.
        most_points: of each set of a case, about evenly chosen (None: all).
    """
    arrays: dict[str, np.ndarray] = {f"metrics/{name}": values for name, values in sample_metrics.items()}
    for name, parts in errors.items():
        values = np.concatenate(parts)
        # Symmetric, and wide enough for all but one point in 200: what is beyond counts in the outermost bins.
        limit = float(np.quantile(np.abs(values), 0.995)) or 1.0
        edges = np.linspace(-limit, limit, HISTOGRAM_BINS + 1)
        arrays[f"histogram/{name}/edges"] = edges
        arrays[f"histogram/{name}/counts"] = np.histogram(np.clip(values, -limit, limit), edges)[0]
    cases = []
    for number, (label, place, index, physical, batch) in enumerate(shown):
        measured = {name: sample_metrics.get(f"{name}/relative_l2") for name in task.fields}
        relative = {name: float(values[index]) for name, values in measured.items() if values is not None}
        why = {"label": label, "place": place}
        cases.append({"sample": names[index], **why, "index": index, "relative_l2": relative})
        for name, field in task.fields.items():
            prefix = f"case/{number}/{name}"
            points = batch[field.points][0]
            prediction, truth = in_units(field, physical[name][0], by_channel(batch[name][0]))
            every = 1 if most_points is None else ceil(len(points) / most_points)
            arrays[f"{prefix}/points"] = to_array(points[::every])
            arrays[f"{prefix}/truth"] = to_array(truth[::every])
            arrays[f"{prefix}/prediction"] = to_array(prediction[::every])
            normals = field.points.replace("_points", "_normals")
            if normals in batch:
                arrays[f"{prefix}/normals"] = to_array(batch[normals][0][::every])
    fields = {name: {"unit": field.unit, "points": field.points} for name, field in task.fields.items()}
    meta = {**about, "names": list(names), "fields": fields, "cases": cases}
    # To an open file: to a name that does not end in .npz NumPy adds it.
    with written_whole(path, by) as file:
        np.savez_compressed(file, meta=np.array(json.dumps(meta)), **arrays)  # type: ignore[arg-type]


def to_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor's numbers in float32, on the CPU."""
    return tensor.detach().float().cpu().numpy()
