"""What result.json says of fields and scalars, from the figures of all samples of a split."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.tasks.scores import pooled_error, score_scalar, undefined_scalar

if TYPE_CHECKING:
    from noether.tasks.fields import FieldsTask


def field_results(task: "FieldsTask", figures: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns {"fields": {field: its row}, "scalars": {…}}."""
    summary = task.summarise(figures)
    rows = {}
    for name in task.fields:
        own = {key.removeprefix(f"{name}/"): value for key, value in summary.items() if key.startswith(f"{name}/")}
        parts = _parts(task, figures, name)
        rows[name] = _row(own) | _pooled(figures, name) | ({"parts": parts} if parts else {})
    return {"fields": rows, "scalars": scalar_results(task, figures)}


def _row(summary: Mapping[str, float]) -> dict[str, Any]:
    """A field's {relative_l2, mse, …, components}; components, of vector fields: {x: {relative_l2, …}, …}.

    relative_l2 is the mean of the samples' own ratios, pooled_relative_l2 the ratio of the norms over all points of
    all samples, in which a weak field weighs little. Errors are in physical units.
    """
    row: dict[str, Any] = {}
    for key, value in summary.items():
        component, _, figure = key.partition("/")
        if figure:
            row.setdefault("components", {}).setdefault(component, {})[figure] = value
        else:
            row[key] = value
    return row


def _parts(task: "FieldsTask", figures: Mapping[str, np.ndarray], name: str) -> dict[str, dict[str, float]]:
    """The pooled errors of the named parts of a field's set."""
    labels = task.parts.get(task.fields[name].points.removesuffix("_points"), ())
    parts = {label: f"{name}/part {number}" for number, label in enumerate(labels)}
    return {label: _pooled(figures, part) for label, part in parts.items() if f"{part}/squared_error" in figures}


def _pooled(figures: Mapping[str, np.ndarray], name: str) -> dict[str, float]:
    error, truth = (figures.get(f"{name}/{kind}") for kind in ("squared_error", "squared_truth"))
    return {} if error is None or truth is None else pooled_error(error, truth)


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
