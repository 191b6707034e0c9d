"""The scores of single numbers of a case: force coefficients and outputs, from what is kept of each sample."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.runs.metrics import Metric

if TYPE_CHECKING:
    from noether.tasks.fields import FieldsTask

SCORES = {
    "r2": Metric("r2", better="higher", label="R²", headline=True, score=True),
    "spearman": Metric("spearman", better="higher", label="Spearman", score=True),
    "mae": Metric("mae", better="lower", label="mean error"),
    "max": Metric("max", better="lower", label="largest error"),
    "floor_r2": Metric("floor_r2", label="R² of the true field", score=True),
    "floor_mae": Metric("floor_mae", label="mean error of the true field"),
}
"""What is computed of a number; a unit is that of the number."""


def score_metrics(name: str, unit: str) -> Iterator[Metric]:
    """Yields the metrics of a number in a unit."""
    for key, score in SCORES.items():
        own = unit if unit != "1" and key in ("mae", "max", "floor_mae") else ""
        yield replace(score, name=f"{name}/{key}", unit=own, of=name, measure=key)


def scalar_scores(task: "FieldsTask", samples: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Returns {scalar or output of the case: its scores, and what they refer to}, from the values of every sample."""
    scores = {name: _derived(task, name, samples) for name in task.scalars}
    for name in task.case_fields:
        for label in task.case_labels(name):
            if f"{label}/truth" in samples:
                scores[label] = score_scalar(samples[f"{label}/prediction"], samples[f"{label}/truth"], None)
    return scores


def _derived(task: "FieldsTask", name: str, samples: Mapping[str, np.ndarray]) -> dict[str, Any]:
    scalar = task.scalars[name]
    prediction, truth, integral = (
        samples.get(f"{name}/{part}") for part in ("prediction", "truth", "integral_of_truth")
    )
    if prediction is None or truth is None or integral is None:
        return undefined_scalar(f"it cannot be integrated: the samples hold no {', '.join(task.lacks(name))}")
    varies = isinstance(scalar.dynamic_pressure, str)
    areas = samples.get(f"{name}/reference_area", np.zeros(0))
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


def undefined_scalar(why: str) -> dict[str, Any]:
    """Returns the scores of a scalar that has none, with the reason in words."""
    return {**dict.fromkeys(("r2", "spearman", "mae", "max")), "note": why}


def score_scalar(prediction: np.ndarray, truth: np.ndarray, integral_of_truth: np.ndarray | None) -> dict[str, Any]:
    """Scores a derived scalar over the samples of a split.

    Args:
        prediction: (S,) the scalar of the predicted fields.
        truth: (S,) its true value.
        integral_of_truth: (S,) the same integral over the true field: what no model can beat with these points;
            None where the truth is that integral, so that nothing is known of its error.

    Returns:
        r2, spearman, mae and max of the error, floor_r2 and floor_mae (of the true field's integral).
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
    }
    if integral_of_truth is not None:
        scores["floor_r2"] = r_squared(integral_of_truth, truth)
        scores["floor_mae"] = float(np.abs(integral_of_truth - truth).mean())
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
