"""Mean and spread of columns over all samples of a split."""

import numpy as np

ROUNDING = 1e-7
"""Rounding error of float32 as a share of the mean; a smaller deviation is treated as 0."""


class Moments:
    """Mean and sum of squared deviations of columns, merged sample by sample.

    The method of Chan, Golub and LeVeque (1979) merges the moments of two sets without losing digits for large means.
    """

    def __init__(self, columns: int) -> None:
        self.count = 0
        self.mean, self.squares = np.zeros(columns), np.zeros(columns)

    def add(self, values: np.ndarray) -> None:
        """Add a sample's values (n, columns), in float64; n must be at least 1."""
        size, sample_mean = len(values), values.mean(axis=0)
        total = self.count + size
        delta = sample_mean - self.mean
        self.squares = self.squares + ((values - sample_mean) ** 2).sum(axis=0) + delta**2 * self.count * size / total
        self.mean = self.mean + delta * size / total
        self.count = total

    @property
    def deviation(self) -> np.ndarray:
        """The standard deviation of each column."""
        return np.asarray(np.sqrt(self.squares / max(self.count, 1)))

    @property
    def spread(self) -> np.ndarray:
        """The standard deviation of each column, or 0 if the column varies only by rounding.

        The limit is relative: a diffusivity near 1e-14 m²/s may vary, but the rounding of a large pressure is ignored.
        """
        deviation = self.deviation
        return np.asarray(np.where(deviation <= ROUNDING * np.abs(self.mean), 0.0, deviation))
