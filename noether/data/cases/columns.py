"""Arrays of a set on their way into the store: turned, scaled and checked, a block of rows at a time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from noether.errors import RequestError

FLOAT = np.dtype("<f4")
WHOLE = np.dtype("<i4")
Step = Callable[[np.ndarray], np.ndarray]


@dataclass
class Column:
    """One array of a set: the source's rows, what is done to them, and the range of the rows returned so far.

    source: (N, C) or (N,); step: from a block of source rows in float64 to the store's numbers.
    where: names the array in errors; shape: of one row ((), or (components,)).
    """

    source: np.ndarray
    where: str
    step: Step = np.asarray
    dtype: np.dtype[Any] = FLOAT
    low: np.ndarray | None = field(default=None, init=False)
    high: np.ndarray | None = field(default=None, init=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row in the store."""
        return self.source.shape[1:]

    def rows(self, order: np.ndarray) -> np.ndarray:
        """The given rows as the store has them. RequestError: some are not finite."""
        block = self.step(self.source[order].astype(np.float64))
        finite = np.isfinite(block)
        if not finite.all():
            bad = int((~finite).reshape(len(block), -1).any(axis=1).sum())
            raise RequestError(
                f"{self.where} is not finite", seen=f"{bad} of {len(block)} rows looked at", expected="numbers"
            )
        if len(block):
            low, high = block.min(axis=0), block.max(axis=0)
            self.low = low if self.low is None else np.minimum(self.low, low)
            self.high = high if self.high is None else np.maximum(self.high, high)
        return np.ascontiguousarray(block, self.dtype)

    def span(self) -> dict[str, Any]:
        """Components of the rows returned so far, with the smallest and largest value of each."""
        low, high = (np.atleast_1d(side) if side is not None else np.zeros(0) for side in (self.low, self.high))
        return {"components": int(np.prod(self.shape, dtype=int)), "low": low.tolist(), "high": high.tolist()}


def turned(rotation: np.ndarray, factor: float = 1.0) -> Step:
    """A step that turns vectors (n, 3) and tensors (n, 9) into noether's axes, and scales them and all others."""

    def step(block: np.ndarray) -> np.ndarray:
        if block.shape[1:] == (3,):
            return np.asarray(factor * block @ rotation.T)
        if block.shape[1:] == (9,):
            return np.asarray(factor * (rotation @ block.reshape(-1, 3, 3) @ rotation.T).reshape(-1, 9))
        return factor * block

    return step
