"""What result.json says of fields and scalars, from the figures of all samples of a split."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from noether.tasks.fields import FieldsTask


def field_results(task: "FieldsTask", figures: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns {"fields": {field: its row}, "scalars": {…}, "trained_on": {"points": {…}, "parameters": {…}}}."""
    summary = task.summarise(figures)
    rows = {}
    for name in task.fields:
        own = {key.removeprefix(f"{name}/"): value for key, value in summary.items() if key.startswith(f"{name}/")}
        parts = _parts(task, figures, name)
        rows[name] = _row(own) | _pooled(figures, name) | ({"parts": parts} if parts else {})
    spans = {name: {**span, "unit": task.parameters[name].unit} for name, span in task.seen.parameters.items()}
    trained_on = {"points": task.seen.points, "parameters": spans}
    return {"fields": rows, "scalars": scalar_results(task, figures), "trained_on": trained_on}


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


def pooled_error(squared_error: np.ndarray, squared_truth: np.ndarray) -> dict[str, float]:
    """Returns {pooled_relative_l2} of a field from its samples' sums, each (S,); nothing where the truth is 0."""
    error, truth = squared_error.sum(), squared_truth.sum()
    return {"pooled_relative_l2": float(np.sqrt(error / truth))} if truth > 0 else {}


def undefined_scalar(why: str) -> dict[str, Any]:
    """Returns the scores of a scalar that has none, with the reason in words."""
    return {"r2": None, "spearman": None, "mae": None, "max": None, "floor_r2": None, "note": why}


def score_scalar(prediction: np.ndarray, truth: np.ndarray, integral_of_truth: np.ndarray | None) -> dict[str, Any]:
    """Scores a derived scalar over the samples of a split.

    Args:
        prediction: (S,) the scalar of the predicted fields.
        truth: (S,) its true value.
        integral_of_truth: (S,) the same integral over the true field: what no model can beat with these points;
            None where the truth is that integral, so that nothing is known of its error.

    Returns:
        r2, spearman, mae and max of the error, floor_r2 and floor_mae (those of the integral of the true field).
        Scores that are undefined, because the truth does not vary or a prediction is not a number, are None, and
        `note` says so.
    """
    lost = int((~np.isfinite(prediction)).sum())
    if lost:
        return undefined_scalar(
            f"it is undefined: the prediction is not a number for {lost} of {len(prediction)} samples"
        )
    error = np.abs(prediction - truth)
    scores: dict[str, Any] = {
        "r2": r_squared(prediction, truth),
        "spearman": spearman(prediction, truth),
        "mae": float(error.mean()),
        "max": float(error.max()),
        "floor_r2": None if integral_of_truth is None else r_squared(integral_of_truth, truth),
        "floor_mae": None if integral_of_truth is None else float(np.abs(integral_of_truth - truth).mean()),
    }
    if scores["r2"] is None:
        scores["note"] = "R² and Spearman are undefined: the true value is the same for every sample"
    elif scores["spearman"] is None:
        scores["note"] = "Spearman is undefined: the predicted value is the same for every sample"
    return scores


def r_squared(prediction: np.ndarray, truth: np.ndarray) -> float | None:
    """Returns the coefficient of determination, 1 − Σ(y − ŷ)² / Σ(y − ȳ)²; None where the truth is constant."""
    spread = float(((truth - truth.mean()) ** 2).sum())
    if len(truth) < 2 or spread <= 1e-20 * max(1.0, float((truth**2).sum())):
        return None
    return 1.0 - float(((truth - prediction) ** 2).sum()) / spread


def spearman(prediction: np.ndarray, truth: np.ndarray) -> float | None:
    """Returns Spearman's rank correlation; None where either side is constant."""
    if len(truth) < 2 or np.ptp(truth) == 0 or np.ptp(prediction) == 0:
        return None
    return float(np.corrcoef(_ranks(prediction), _ranks(truth))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns the rank of each value (S,), equal ones sharing their mean rank; scipy.stats takes 0.4 s to import."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank: np.ndarray = np.cumsum(count) - (count - 1) / 2
    return mean_rank[place]
