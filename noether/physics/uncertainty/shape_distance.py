"""How unlike the training shapes a shape is: the Mahalanobis distance of its latent from theirs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

COMPONENTS = 96
"""Principal components of the latents at most. The small ones tell a shape outside the ranges best."""
SHAPES_A_COMPONENT = 4
"""Training shapes at least, from which the deviation along a component is known."""


def fit_distance(latents: np.ndarray) -> dict[str, np.ndarray]:
    """Returns what a distance is measured by: the mean (d,) of latents (n, d) of training shapes, and axes (k, d).

    The axes are the principal components, each divided by the standard deviation along it.
    """
    mean = latents.mean(axis=0)
    _, singular, axes = np.linalg.svd(latents - mean, full_matrices=False)
    deviation = singular / np.sqrt(max(1, len(latents) - 1))
    varies = int((deviation > 1e-6 * max(deviation[0], np.finfo(np.float32).tiny)).sum())
    kept = max(1, min(varies, COMPONENTS, len(latents) // SHAPES_A_COMPONENT))
    return {"mean": mean, "axes": axes[:kept] / np.maximum(deviation[:kept, None], np.finfo(np.float32).tiny)}


def distances(fitted: Mapping[str, Any], latents: np.ndarray) -> np.ndarray:
    """Returns the distances (n,) of latents (n, d) from the training shapes."""
    away = (latents - np.asarray(fitted["mean"])) @ np.asarray(fitted["axes"]).T
    return np.asarray(np.linalg.norm(away, axis=1))
