"""What result.json says of fields and scalars, from the figures of all samples of a split."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.tasks.scores import field_table, pooled_error, score_scalar, undefined_scalar

if TYPE_CHECKING:
    from noether.tasks.fields import FieldsTask


def field_results(task: "FieldsTask", figures: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns {"fields": {…}, "scalars": {…}}."""
    table = field_table(task.summarise(figures), figures, task.fields)
    for name, row in table.items():
        prefix = task.fields[name].points.removesuffix("_points")
        parts = {
            label: pooled_error(
                *(figures[f"{name}/part {number}/{kind}"] for kind in ("squared_error", "squared_truth"))
            )
            for number, label in enumerate(task.parts.get(prefix, ()))
            if f"{name}/part {number}/squared_error" in figures
        }
        if parts:
            row["parts"] = parts
    return {"fields": table, "scalars": scalar_results(task, figures)}


def scalar_results(task: "FieldsTask", figures: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns {scalar or output of the case: its scores}, from what `scalar_figures` gives of every sample."""
    scalars = {name: _derived(task, name, figures) for name in task.scalars}
    for name, field in task.case_fields.items():
        for label in task.case_labels(name):
            scores = score_scalar(figures[f"{label}/prediction"], figures[f"{label}/truth"], None)
            scalars[label] = scores | {"unit": field.unit}
    return scalars


def _derived(task: "FieldsTask", name: str, figures: Mapping[str, np.ndarray]) -> dict[str, Any]:
    scalar = task.scalars[name]
    prediction, truth, integral = (
        figures.get(f"{name}/{part}") for part in ("prediction", "truth", "integral_of_truth")
    )
    if prediction is None or truth is None or integral is None:
        return undefined_scalar(f"it cannot be integrated: the samples hold no {', '.join(task.missing_for(name))}")
    varies = isinstance(scalar.dynamic_pressure, str)
    areas = figures.get(f"{name}/reference_area", np.zeros(0))
    return score_scalar(prediction, truth, integral if scalar.truth else None) | {
        "dynamic_pressure": None if varies else scalar.dynamic_pressure,
        "density": scalar.density,
        "speed": scalar.speed,
        "reference_area": f"{scalar.reference_area.replace('_', ' ')} of each sample"
        + (f" (first: {float(areas[0]):.3g} m²)" if len(areas) else ""),
        **({"speed_of": scalar.dynamic_pressure} if varies else {}),
        **({"friction": scalar.shear} if scalar.shear else {}),
        **({"reference_length": scalar.reference_length} if scalar.moment else {}),
    }
