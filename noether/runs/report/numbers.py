"""Format numbers for the report: values, percentages, counts, scores, durations and axis labels."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noether.common.numbers import DIGITS, count_text, number_text, percent_text, score_text
from noether.runs.metrics import Metric

Array = NDArray[np.float64]

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
TICK_STEPS = [1, 2, 2.5, 5, 10]  # Allowed distances between ticks, times a power of ten.


def typeset(text: str) -> str:
    """Typeset the numbers in a text: a true minus, powers of ten, and a thin space before a percent sign."""
    text = re.sub(r"(?<=\d)e(-?\d+)", lambda found: f"\u202f×\u202f10{found[1].translate(SUPERSCRIPTS)}", text)
    return re.sub(r"-(?=\d)", "−", text).replace("%", "\u202f%")


def bare_text(value: Any, metric: Metric) -> str:
    """Format a metric's value without its unit, with the same precision as everywhere else."""
    return typeset(metric.bare_text(value))


def value_text(value: Any, metric: Metric, spread: float | None = None) -> str:
    """Format a metric's value with its unit and, if given, a standard deviation."""
    return typeset(metric.text(value, spread))


def number(value: Any, digits: int = DIGITS) -> str:
    """Format a number with `digits` significant digits; return an en dash for None, NaN and ∞."""
    return typeset(number_text(value, digits))


def percent(value: Any, digits: int | None = None) -> str:
    """Format a ratio as a percentage, with `digits` significant digits if given."""
    return typeset(percent_text(value, digits))


def short_number(value: float) -> str:
    """Format a number, without decimals if it is whole."""
    return count_text(int(value)) if float(value).is_integer() else number(value)


def shown_score(value: Any) -> str:
    """Format a score whose best value is 1, without a `Metric` that describes it."""
    return typeset(score_text(value))


def duration_parts(seconds: float) -> list[tuple[str, str]]:
    """Split a duration into numbers with units: seconds, minutes and seconds, or hours and minutes."""
    if seconds < 60:
        return [(number(seconds), "s")]
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return [(str(minutes), "min"), (f"{rest:02d}", "s")]
    return [(f"{minutes // 60:,}", "h"), (f"{minutes % 60:02d}", "min")]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Format an axis's ticks, all with the number of decimals that the finest tick needs."""
    # Remove rounding noise: 0.30000000000000004 is 0.3.
    texts = [f"{value:.9g}" for value in values]
    if any("e" in text for text in texts):
        return ["0" if value == 0 else _mantissa_and_power(value) for value in values]
    decimals = max((len(text.partition(".")[2]) for text in texts), default=0)
    return ["0" if value == 0 else f"{value:,.{decimals}f}".replace("-", "−") for value in values]


def _mantissa_and_power(value: float) -> str:
    mantissa, power = f"{value:.3e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = "10" + str(int(power)).translate(SUPERSCRIPTS)
    return (power if mantissa == "1" else f"{mantissa}·{power}").replace("-", "−")
