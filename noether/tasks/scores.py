"""Scores of a split: the pooled error of a field, and R², Spearman and mean error of scalars."""

from typing import Any

import numpy as np


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
