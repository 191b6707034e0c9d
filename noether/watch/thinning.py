"""Makes long curves short enough for a browser, and keeps what a reader would see of them."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def thinned(x: Array, y: Array, buckets: int) -> tuple[Array, Array]:
    """Returns the lowest and the highest value of each bucket of a curve, in their order, at their own x.

    Buckets hold a power of two of values and are counted from the start, so that a growing curve does not shimmer:
    its buckets stay as they are until their size doubles. NaN stays a gap where a whole bucket is NaN. The last value
    is always there.

    Args:
        x, y: (n,); x rises.
        buckets: at least 1; a curve of at most twice as many values is returned as it is.
    """
    n = len(x)
    if n <= 2 * buckets:
        return x, y
    size = 2 ** int(np.ceil(np.log2(n / buckets)))
    rows = -(-n // size)
    padded = np.full(rows * size, np.nan)
    padded[:n] = y
    table = padded.reshape(rows, size)
    empty = np.isnan(table).all(axis=1)
    low = np.where(np.isnan(table), np.inf, table).argmin(axis=1)
    high = np.where(np.isnan(table), -np.inf, table).argmax(axis=1)
    start = np.arange(rows) * size
    low, high = np.where(empty, 0, low) + start, np.where(empty, 0, high) + start
    chosen = np.unique(np.concatenate([low, high, [n - 1]]))
    return x[chosen], y[chosen]


def block_sums(x: Array, table: Array, buckets: int) -> tuple[Array, Array]:
    """Returns the sums of blocks of a table's columns, each at the x of its last column, as `thinned` buckets them.

    Args:
        x: (n,). table: (parts, n), in seconds, so that a sum over a block is its share of the time.
        buckets: blocks at most, about.
    """
    n = len(x)
    if n <= buckets:
        return x, table
    size = 2 ** int(np.ceil(np.log2(n / buckets)))
    starts = np.arange(0, n, size)
    ends = np.minimum(starts + size, n) - 1
    return x[ends], np.add.reduceat(table, starts, axis=1)


def rising(x: Array) -> NDArray[np.intp] | None:
    """Returns the places of a curve's values in rising x, of equal x the last written; None where x rises already."""
    if len(x) < 2 or bool((np.diff(x) > 0).all()):
        return None
    order = np.argsort(x, kind="stable")
    last_of_equals = np.append(np.diff(x[order]) > 0, True)
    return np.asarray(order[last_of_equals])
