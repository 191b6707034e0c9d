"""How the values of an array are spread: over decades, so that a few points would be all that is learned."""

import numpy as np

FEWEST = 200  # rows of which the largest hundredth says something
DECADE = 10.0
PEAKS = 0.5


def spans_decades(rows: np.ndarray) -> bool:
    """Whether the values (n, C) of one case span decades: the lengths of vectors and tensors, so that 0 may be crossed.

    A loss in standardised units is then that of a few points: the hundredth of the points that differ most from the
    mean has more than half of the variance, and the 99th percentile of |x| is more than ten times its median. A median
    of 0 is a field that is nothing but in one place, which a logarithm does not spread.
    """
    if len(rows) < FEWEST:
        return False
    sizes = np.sqrt(np.square(rows).sum(axis=1))
    middle, large = np.quantile(sizes, [0.5, 0.99])
    if not large > DECADE * middle > 0:
        return False
    far = np.square(rows - rows.mean(axis=0)).sum(axis=1)
    first = len(far) - len(far) // 100
    return bool(np.partition(far, first)[first:].sum() > PEAKS * far.sum())
