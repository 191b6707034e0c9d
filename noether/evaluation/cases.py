"""What the report and ParaView show: the fields of a few chosen samples, and histograms of the errors at points."""

import json
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from noether.common.whole_file import UNFENCED, Publisher, written_whole
from noether.data.loader import Batch
from noether.data.padding import mask_of
from noether.evaluation.evaluate import SplitMetrics
from noether.evaluation.vtk_output import field_arrays, write_fields
from noether.tasks.base import Predictions, Task
from noether.tasks.field_errors import by_channel

ERRORS_PER_SAMPLE = 2048
HISTOGRAM_BINS = 80


def point_errors(task: Task, predictions: Predictions, batch: Batch) -> dict[str, np.ndarray]:
    """Returns a batch's signed errors of points by field, prediction − truth in its unit, for the histograms.

    Of samples with very many points they are those of evenly spaced ones.
    """
    physical, found = task.to_physical(predictions), {}
    for name, field in task.fields.items():
        errors = physical[name] - by_channel(batch[name], batched=True)
        step = max(1, errors[0].numel() // ERRORS_PER_SAMPLE)
        shown = errors.flatten(1)[:, ::step]
        mask = mask_of(batch, field.points)
        if mask is not None:
            shown = shown[mask.unsqueeze(-1).expand_as(errors).flatten(1)[:, ::step]]
        found[name] = shown.float().cpu().numpy().ravel()
    return found


class ShownCase(NamedTuple):
    """A sample that is shown: why, its position in the split, its fields in physical units, and its batch of one."""

    label: str
    position: int
    physical: Predictions
    batch: Batch


def median_sample(relative_l2: np.ndarray) -> int:
    """Returns the index of the sample in the middle of the errors, the upper one of two."""
    return int(np.argsort(relative_l2, kind="stable")[len(relative_l2) // 2])


def choose_cases(relative_l2: np.ndarray) -> list[tuple[str, int]]:
    """Returns the best, the median and the three worst samples as (label, index), without repeats."""
    order = np.argsort(relative_l2, kind="stable").tolist()
    seen: dict[int, str] = {}
    chosen = (order[0], median_sample(relative_l2), *order[::-1][:3])
    for label, index in zip(("best", "median", "worst", "2nd worst", "3rd worst"), chosen, strict=False):
        seen.setdefault(index, label)
    return [(label, index) for index, label in seen.items()]


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
    for number, (label, index, physical, batch) in enumerate(shown):
        relative = {name: float(sample_metrics[f"{name}/relative_l2"][index]) for name in task.fields}
        cases.append({"sample": names[index], "label": label, "index": index, "relative_l2": relative})
        for name, field in task.fields.items():
            prefix = f"case/{number}/{name}"
            truth, points = batch[name][0], batch[field.points][0]
            every = 1 if most_points is None else ceil(len(points) / most_points)
            arrays[f"{prefix}/points"] = _array(points[::every])
            arrays[f"{prefix}/truth"] = _array(by_channel(truth)[::every])
            arrays[f"{prefix}/prediction"] = _array(physical[name][0][::every])
            normals = field.points.replace("_points", "_normals")
            if field.points.startswith("surface") and normals in batch:
                arrays[f"{prefix}/normals"] = _array(batch[normals][0][::every])
    fields = {name: {"unit": field.unit, "points": field.points} for name, field in task.fields.items()}
    meta = {**about, "names": list(names), "fields": fields, "cases": cases}
    # To an open file: to a name that does not end in .npz NumPy adds it.
    with written_whole(path, by) as file:
        np.savez_compressed(file, meta=np.array(json.dumps(meta)), **arrays)  # type: ignore[arg-type]


def write_case_files(
    folder: Path, task: Task, shown: Sequence[ShownCase], names: Sequence[str], faces: Sequence[np.ndarray | None]
) -> list[str]:
    """Writes `LABEL_NAME_SET.vtu` of each case and set of points, and returns the paths.

    Args:
        folder, task: where to, and what names the fields and their points.
        shown, faces: the cases, and the faces of the surface points of each, where they are known.
        names: names of all samples, by position.
    """
    written = []
    for (label, position, physical, batch), own_faces in zip(shown, faces, strict=True):
        for points in dict.fromkeys(field.points for field in task.fields.values()):
            arrays: dict[str, np.ndarray] = {}
            for name in (name for name, field in task.fields.items() if field.points == points):
                arrays |= field_arrays(name, *(np.squeeze(_array(one[name][0])) for one in (physical, batch)))
            path = folder / f"{label.replace('. ', '-')}_{names[position]}_{points.removesuffix('_points')}.vtu"
            write_fields(path, _array(batch[points][0]), own_faces if points.startswith("surface") else None, arrays)
            written.append(str(path))
    return written


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
