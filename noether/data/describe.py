"""Describes a split: samples, arrays, their shapes, and ranges and statistics of each channel over all points."""

from typing import TYPE_CHECKING, Any

import numpy as np

from noether.data.checks import Layout, sample_faults, sample_layout, sample_name, set_rows

if TYPE_CHECKING:
    from noether.data.loader import Dataset


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
    expected: Layout | None = None
    types: dict[str, str] = {}
    moments: dict[str, _Moments] = {}
    for index in range(len(dataset)):
        sample = dataset[index]
        expected = expected or sample_layout(sample)
        wrong = sample_faults(sample, expected, set_rows(sample))
        faults += [f"sample {sample_name(dataset, index)}: {words}" for words in wrong]
        for key, value in sample.items():
            array = np.asarray(value)
            shapes.setdefault(key, []).append(array.shape)
            types[key] = str(array.dtype)
            by_channel = array.ndim in (1, 2) and 1 <= array.shape[-1] <= CHANNELS
            columns = array.reshape(-1, array.shape[-1] if by_channel else 1)
            if key not in moments:
                moments[key] = _Moments(columns.shape[1])
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


class _Moments:
    """Range, mean and squares of columns, merged sample by sample (Chan, Golub and LeVeque 1979)."""

    def __init__(self, channels: int) -> None:
        self.count = 0
        self.mean, self.squares = np.zeros(channels), np.zeros(channels)
        self.low, self.high = np.full(channels, np.inf), np.full(channels, -np.inf)

    def add(self, columns: np.ndarray) -> None:
        """Takes (n, channels)."""
        if not len(columns) or columns.shape[1] != len(self.mean):
            return
        total, mean = self.count + len(columns), columns.mean(axis=0)
        delta = mean - self.mean
        self.squares += ((columns - mean) ** 2).sum(axis=0) + delta**2 * self.count * len(columns) / total
        self.mean += delta * len(columns) / total
        self.low, self.high = np.minimum(self.low, columns.min(axis=0)), np.maximum(self.high, columns.max(axis=0))
        self.count = total

    def rows(self) -> list[dict[str, float]]:
        """One row a channel."""
        std = np.sqrt(self.squares / max(self.count, 1))
        return [
            {"min": float(low), "max": float(high), "mean": float(mean), "std": float(deviation)}
            for low, high, mean, deviation in zip(self.low, self.high, self.mean, std, strict=True)
        ]
