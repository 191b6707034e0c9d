"""Split-conformal intervals of cases with many points: quantiles of scores, and the share that they cover.

The points of a case are not exchangeable, cases are. Each of n cases weighs 1/(n + 1), shared by its points, and the
case to come weighs the rest, as if all of it were missed (Lee, Barber & Willett 2023, arXiv 2306.06342). What is
promised is an average over cases: of a new case drawn as these were, the expected share of points within the interval
is at least the nominal one. With one value for each case it is the ordinary split-conformal quantile.
"""

from collections.abc import Sequence

import numpy as np

LEVELS = np.arange(1, 100)
"""Nominal shares, in percent."""
KEPT = 2048
"""Scores of a case that are kept at most, evenly spaced in their order."""


def kept_scores(scores: np.ndarray) -> np.ndarray:
    """Returns the scores (n,) of a case in order, of many those at evenly spaced ranks."""
    ordered: np.ndarray = np.sort(scores)
    if len(ordered) <= KEPT:
        return ordered
    return np.asarray(ordered[np.ceil((np.arange(KEPT) + 1) * len(ordered) / KEPT).astype(int) - 1])


def conformal_quantiles(cases: Sequence[np.ndarray]) -> np.ndarray:
    """Returns for each of LEVELS the score (99,) that a new case's points stay below; inf where cases are too few."""
    values = np.concatenate(cases)
    shares = np.concatenate([np.full(len(case), 1 / ((len(cases) + 1) * len(case))) for case in cases])
    order = np.argsort(values, kind="stable")
    # To rounding: a level that the shares reach exactly is reached.
    place = np.searchsorted(np.cumsum(shares[order]), LEVELS / 100 - 1e-9)
    return np.asarray(np.append(values[order], np.inf)[place])


def covered_shares(cases: Sequence[np.ndarray], quantiles: np.ndarray) -> np.ndarray:
    """Returns the mean over cases of the share (99,) of their scores that stays below each quantile (99,)."""
    below = [np.searchsorted(np.sort(case), quantiles, side="right") / len(case) for case in cases]
    return np.asarray(np.mean(below, axis=0))


def highest_level(cases: int) -> int:
    """Returns the highest of LEVELS, in percent, that so many cases calibrate; 0: none."""
    return 100 * cases // (cases + 1)
