"""Cases that are unlike the others by a size of theirs, and those of them that are in another unit of length."""

from collections.abc import Mapping
from itertools import permutations
from statistics import median
from typing import Any

import numpy as np

from noether.common.errors import RequestError
from noether.common.numbers import LENGTHS

FEWEST, FEWEST_LENGTHS = 8, 5  # cases of which some can be unlike the others
UNLIKE, FLOOR = 12, 0.04
UNITS = [one / other for one, other in permutations(LENGTHS.values(), 2) if not 1 / 9 < one / other < 9]
"""By how much a case in another unit is too long; less can be its shape."""
MARGIN = 1.05  # beyond the range of the others, what a case in their unit can still have


def unlike(sizes: Mapping[str, float], fewest: int = FEWEST) -> list[str]:
    """The few cases of which a size is far from the usual, as a difference and as a ratio; none of too few cases.

    Far is UNLIKE times the usual distance from the median, or of FLOOR of it where that is less.
    """
    own = {case: size for case, size in sizes.items() if size > 0}
    found = set(own) if len(own) >= fewest else set()
    for values in (own, {case: float(np.log(size)) for case, size in own.items()}) if found else ():
        middle = median(values.values())
        usual = median(abs(value - middle) for value in values.values())
        floor = FLOOR * middle if values is own else FLOOR
        found &= {case for case, value in values.items() if abs(value - middle) > UNLIKE * max(usual, floor)}
    return sorted(found) if len(found) <= max(1, len(own) / 10) else []


def in_another_unit(lengths: Mapping[str, float]) -> dict[str, float]:
    """The cases that in another unit of length would be as long as the others, and how many times too long they are."""
    odd, found = unlike(lengths, FEWEST_LENGTHS), {}
    usual = [length for case, length in lengths.items() if case not in odd]
    for case in odd:
        fits = [unit for unit in UNITS if min(usual) / MARGIN <= lengths[case] / unit <= max(usual) * MARGIN]
        if fits:
            found[case] = min(fits, key=lambda unit: abs(np.log(lengths[case] / unit / median(usual))))
    return found


def cases_in_another_unit(cases: Mapping[str, Any]) -> dict[str, RequestError]:
    """The refusals of prepared cases, {case: its case.json}, that are in another unit of length than the others."""
    refused = {}
    for name in next(iter(cases.values()))["sets"]:
        boxes = {case: own["sets"][name]["arrays"][f"{name}_points"] for case, own in cases.items()}
        lengths = {case: float(np.subtract(box["high"], box["low"]).max()) for case, box in boxes.items()}
        for case, times in in_another_unit(lengths).items():
            refused[case] = RequestError(
                "case-in-another-unit",
                f"case {case}: its set {name} is about {times:.4g} times as long as in the other cases",
                seen=f"{lengths[case]:.4g} m, in the usual case {median(lengths.values()):.4g} m",
                expected="the same unit of length in all cases",
                fix=f"multiply the positions in its files by {1 / times:.4g}",
            )
    return refused
