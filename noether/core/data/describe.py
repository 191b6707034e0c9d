"""Describes a split: samples, arrays, their shapes, and ranges and statistics of each channel over all points."""

from typing import TYPE_CHECKING, Any

import numpy as np

from noether.core.data.checks import SampleChecks, sample_label
from noether.core.data.moments import Moments

if TYPE_CHECKING:
    from noether.core.data.loader import Dataset


CHANNELS = 8
"""More entries of an axis than these are a table that nobody reads."""


def describe_split(dataset: "Dataset") -> dict[str, Any]:
    """Returns {samples, faults, arrays: {key: {shape, dtype, channels: [{min, max, mean, std}]}}}.

    faults: what is wrong with single samples, in words: values that are not finite, rows, types, components.

    An axis whose length differs between samples is written as its range. Arrays of points (N, C), and of a few numbers
    (C,), have a channel for each entry of their last axis where it has CHANNELS at most; others, such as images, have
    one. Statistics are over all other axes and samples, in float64.
    """
    shapes: dict[str, list[tuple[int, ...]]] = {}
    faults: list[str] = []
    types: dict[str, str] = {}
    moments: dict[str, _Columns] = {}
    checks = SampleChecks()
    for index in range(len(dataset)):
        sample = dataset[index]
        faults += [f"sample {sample_label(dataset, index)}: {words}" for words in checks.faults(sample)]
        for key, value in sample.items():
            array = np.asarray(value)
            shapes.setdefault(key, []).append(array.shape)
            types[key] = str(array.dtype)
            by_channel = array.ndim in (1, 2) and 1 <= array.shape[-1] <= CHANNELS
            columns = array.reshape(-1, array.shape[-1] if by_channel else 1)
            if key not in moments:
                moments[key] = _Columns(columns.shape[1])
            moments[key].add(columns.astype(np.float64))
    return {
        "samples": len(dataset),
        "faults": faults,
        "arrays": {
            key: {"shape": _shape(every), "dtype": types[key], "channels": moments[key].rows()}
            for key, every in shapes.items()
        },
    }


def _shape(every: list[tuple[int, ...]]) -> str:
    if len({len(shape) for shape in every}) > 1:
        return "of differing ranks"
    axes = [(min(lengths), max(lengths)) for lengths in zip(*every, strict=True)]
    words = [str(low) if low == high else f"{low}..{high}" for low, high in axes]
    return f"({', '.join(words)}{',' if len(words) == 1 else ''})"


class _Columns(Moments):
    """The moments of columns, and their range."""

    def __init__(self, columns: int) -> None:
        super().__init__(columns)
        self.low, self.high = np.full(columns, np.inf), np.full(columns, -np.inf)

    def add(self, values: np.ndarray) -> None:
        """Takes (n, columns); what has no row, or another number of columns, is left out."""
        if not len(values) or values.shape[1] != len(self.mean):
            return
        super().add(values)
        self.low, self.high = np.minimum(self.low, values.min(axis=0)), np.maximum(self.high, values.max(axis=0))

    def rows(self) -> list[dict[str, float]]:
        """One row a column."""
        columns = {"min": self.low, "max": self.high, "mean": self.mean, "std": self.deviation}
        return [{name: float(of[column]) for name, of in columns.items()} for column in range(len(self.mean))]
