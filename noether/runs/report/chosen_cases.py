"""Which samples of a split are shown: the best, the median and the worst. No torch here."""

from typing import Literal

import numpy as np

Label = Literal["best", "median", "worst", "unscored"]
"""Why a sample is shown: its place among the errors of the split, or that its error is not finite."""


def median_sample(errors: np.ndarray) -> int:
    """Returns the index of the sample in the middle of the finite errors, the upper one of two."""
    finite = int(np.isfinite(errors).sum()) or len(errors)
    return int(np.argsort(errors, kind="stable")[finite // 2])


def choose_cases(errors: np.ndarray) -> list[tuple[Label, int, int]]:
    """Returns the best, the median and three more samples as (label, place, index), without repeats.

    The three are those without a finite error, then the worst.
    """
    order = np.argsort(errors, kind="stable")
    finite = np.isfinite(errors[order])
    scored, unscored = order[finite].tolist(), order[~finite][:3].tolist()
    chosen: list[tuple[Label, int, int]] = [("best", 1, index) for index in scored[:1]]
    chosen += [("median", 1, median_sample(errors))] if scored else []
    chosen += [("unscored", place, index) for place, index in enumerate(unscored, 1)]
    chosen += [("worst", place, index) for place, index in enumerate(scored[::-1][: 3 - len(unscored)], 1)]
    first: dict[int, tuple[Label, int, int]] = {}
    for one in chosen:
        first.setdefault(one[2], one)
    return list(first.values())
