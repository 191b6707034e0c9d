"""The scales of the report's field pictures."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.ticker import MaxNLocator

from noether.runs.report.numbers import TICK_STEPS, Array, tick_labels

VALUE_MAP = "viridis"  # perceptually uniform, and readable without red-green vision
MOST_LETTERS = 24  # of all ticks under a scale of errors, the narrower one
ERROR_MAP = "RdBu_r"  # ColorBrewer's colour-blind safe diverging scheme, white at 0


@dataclass(frozen=True)
class Scale:
    """A colour scale: limits in the field's unit, and the colour map. Values beyond take the end colours."""

    low: float
    high: float
    colour_map: str

    def tick_labels(self) -> list[tuple[float, str]]:
        """Each round value between the limits: its place between 0 and 1, and its text. Fewer, where texts are long."""
        width, labels = self.high - self.low, []
        for most in (5, 3):
            every = MaxNLocator(most, steps=TICK_STEPS).tick_values(self.low, self.high)
            ticks = [float(f"{tick:.9g}") for tick in every if -1e-9 <= (tick - self.low) / width <= 1 + 1e-9]
            labels = [((tick - self.low) / width, text) for tick, text in zip(ticks, tick_labels(ticks), strict=True)]
            if sum(len(text) for _, text in labels) < MOST_LETTERS:
                break
        return labels

    def gradient(self, stops: int = 17) -> list[str]:
        """Hex colours from the low end to the high one."""
        colours = matplotlib.colormaps[self.colour_map](np.linspace(0, 1, stops))
        return ["#" + "".join(f"{round(255 * part):02x}" for part in colour[:3]) for colour in colours]


def value_scale(truths: Sequence[Array], predictions: Sequence[Array]) -> Scale:
    """One scale for fields of any shape: it holds at least 99 % of the values of each truth.

    A few extreme points at edges would otherwise leave all others in a single colour. Predictions widen it by a
    sixth at most, so that a wild one does not hide the truth.
    """
    limits = _percentiles(truths, (0.5, 99.5))
    low, high = float(limits[:, 0].min()), float(limits[:, 1].max())
    pad = (high - low) / 6 or max(abs(low), 1.0) * 0.5
    limits = _percentiles(predictions, (0.5, 99.5))
    low, high = float(np.clip(limits[:, 0].min(), low - pad, low)), float(np.clip(limits[:, 1].max(), high, high + pad))
    return Scale(low, high, VALUE_MAP) if high > low else Scale(low - pad, high + pad, VALUE_MAP)


def error_scale(errors: Sequence[Array]) -> Scale:
    """One scale for errors, symmetric about 0: it holds at least 99 % of the errors of each field."""
    reach = float(_percentiles([np.abs(error) for error in errors], (99.0,)).max())
    return Scale(-(reach or 1.0), reach or 1.0, ERROR_MAP)


def _percentiles(fields: Sequence[Array], shares: Sequence[float]) -> Array:
    """Percentiles (fields, shares) of the finite values of each field; fields without any are left out."""
    finite = [field[np.isfinite(field)] for field in fields]
    rows = [np.percentile(values, shares) for values in finite if values.size]
    return np.array(rows) if rows else np.ones((1, len(shares)))
