"""Mean and spread of columns over all samples of a split."""

import numpy as np

ROUNDING = 1e-7
"""Of float32, as a share of the mean: what differs by less does not vary."""


class Moments:
    """Mean and summed squares of the deviations of columns, merged sample by sample.

    Chan, Golub and LeVeque's merge of two sets' moments (1979): no loss of digits for large means.
    """

    def __init__(self, columns: int) -> None:
        self.count = 0
        self.mean, self.squares = np.zeros(columns), np.zeros(columns)

    def add(self, values: np.ndarray) -> None:
        """Take a sample's values (n, columns), float64, of which there is at least one."""
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
        """The standard deviation of each column, or 0 where the column only varies by rounding.

        No absolute limit: a diffusivity of 1e-14 m²/s varies, and an absolute pressure need not.
        """
        deviation = self.deviation
        return np.asarray(np.where(deviation <= ROUNDING * np.abs(self.mean), 0.0, deviation))
