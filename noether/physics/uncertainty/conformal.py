"""Split-conformal intervals of cases with many points, and how unlike the training shapes a shape is.

The points of a case are not exchangeable, cases are. A number of a case has the ordinary split-conformal quantile. For
fields all cases' scores are pooled, each case weighing the same (Dunn, Wasserman & Ramdas 2018, arXiv 1809.07441), and
the quantile is of the level at which the cases, each judged by the others alone, are covered as far as is wanted. That
holds on average, without a guarantee. A guarantee (Lee, Barber & Willett 2023, arXiv 2306.06342) has to assume that the
new case is missed as a whole: with 14 cases, intervals of 90 % would cover 96.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LEVELS = np.arange(1, 100)
"""Nominal shares, in percent."""
ROUNDING = 1e-9
"""Of sums of shares: a level that they reach exactly is reached."""
KEPT = 2048
"""Scores of a case that are kept at most, evenly spaced in their order."""


def kept_scores(scores: np.ndarray) -> np.ndarray:
    """Returns the scores (n,) of a case in order, of many those at evenly spaced ranks."""
    ordered: np.ndarray = np.sort(scores)
    if len(ordered) <= KEPT:
        return ordered
    return np.asarray(ordered[np.ceil((np.arange(KEPT) + 1) * len(ordered) / KEPT).astype(int) - 1])


def conformal_quantiles(cases: Sequence[np.ndarray]) -> np.ndarray:
    """Returns for each of LEVELS the score (99,) that a new case's points stay below; inf where cases are too few.

    cases: the scores (n,) of each case in order.
    """
    count = len(cases)
    values = np.concatenate(cases)
    order = np.argsort(values, kind="stable")
    values = values[order]
    shares = np.concatenate([np.full(len(case), 1 / (count * len(case))) for case in cases])[order]
    reached = np.cumsum(shares)
    needed = LEVELS / 100
    if len(values) == count:
        needed = needed * (count + 1) / count
    elif count > 1:
        below = np.append(0.0, reached)[np.searchsorted(values, values)]
        below_in_own = np.concatenate([np.searchsorted(case, case) / len(case) for case in cases])[order]
        among_others = (count * below - below_in_own) / (count - 1)
        hardest = np.argsort(among_others, kind="stable")
        place = np.searchsorted(np.cumsum(shares[hardest]), LEVELS / 100 - ROUNDING)
        needed = among_others[hardest][np.minimum(place, len(values) - 1)] + 2 * ROUNDING  # above that share
    return np.asarray(np.append(values, np.inf)[np.searchsorted(reached, needed - ROUNDING)])


def covered_shares(cases: Sequence[np.ndarray], quantiles: np.ndarray) -> np.ndarray:
    """Returns the mean over cases of the share (99,) of their scores that stays below each quantile (99,)."""
    below = [np.searchsorted(np.sort(case), quantiles, side="right") / len(case) for case in cases]
    return np.asarray(np.mean(below, axis=0))


def highest_level(cases: int) -> int:
    """Returns the highest of LEVELS, in percent, that so many cases calibrate; 0: none."""
    return 100 * cases // (cases + 1)


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
