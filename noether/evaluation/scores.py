"""How good are the figures of a split: the table of fields, the scores of scalars."""

from collections.abc import Mapping
from typing import Any

import numpy as np

FIELD_FIGURES = ("relative_l2", "mse", "mae", "max")


def field_table(summary: Mapping[str, float], fields: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Returns {field: {relative_l2, mse, mae, max}} from a task's summary; the errors are in physical units."""
    return {name: {figure: summary[f"{name}/{figure}"] for figure in FIELD_FIGURES} for name in fields}


def score_scalar(prediction: np.ndarray, truth: np.ndarray, integral_of_truth: np.ndarray) -> dict[str, Any]:
    """Scores a derived scalar over the samples of a split.

    Args:
        prediction: (S,) the scalar of the predicted fields.
        truth: (S,) its true value.
        integral_of_truth: (S,) the same integral over the true field: what no model can beat with these points.

    Returns:
        r2, spearman, mae and max of the error, floor_r2 (that of the integral of the true field). Scores
        that are undefined, because the truth does not vary, are None, and `note` says so.
    """
    error = np.abs(prediction - truth)
    scores: dict[str, Any] = {
        "r2": r_squared(prediction, truth),
        "spearman": spearman(prediction, truth),
        "mae": float(error.mean()),
        "max": float(error.max()),
        "floor_r2": r_squared(integral_of_truth, truth),
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
    from scipy.stats import spearmanr

    if len(truth) < 2 or np.ptp(truth) == 0 or np.ptp(prediction) == 0:
        return None
    return float(spearmanr(prediction, truth).statistic)
