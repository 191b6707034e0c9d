"""How sure a run's predictions are: what their intervals cover of the test split, against what they promise."""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from noether.runs.report.charts import calibration_curve
from noether.runs.report.elements import Chart, fill
from noether.runs.report.phrases import heading
from noether.runs.report.run import ReportedRun

NAMED = (50, 80, 90, 95)
"""Nominal shares, in percent, whose covered share is written out."""


def intervals_section(run: ReportedRun) -> Markup:
    """A chart for each field and coefficient, and a sentence of how many cases stand behind them."""
    record = run.calibration
    held_out, test = record["cases"]["validation"], record["cases"]["test"]
    levels = np.array(record["levels"], np.float64) / 100
    # Of one number a case: its share moves with the draw of the cases that calibrate, and of those that are counted.
    stray = 2 * np.sqrt(levels * (1 - levels) * (1 / (held_out + 2) + 1 / max(test, 1)))
    keys = [
        ("covered", "accent", ""),
        ("promised", "muted", "dashed"),
        ("as far as chance takes one number a case", "line", "dot"),
    ]
    shown = [
        Chart(
            heading(label),
            _words(levels, own["covered"]),
            calibration_curve(f"calibration-{label}", levels, np.array(own["covered"], np.float64), stray),
            keys,
        )
        for label, own in record["outputs"].items()
    ]
    runs = len(record["members"])
    whose = "this run" if runs == 1 else f"{runs} runs"
    note = (
        f"Intervals of {whose}, calibrated on {held_out} validation cases, counted on {test} test cases. Along x what "
        "an interval promises to cover, along y what it covers: below the line it promises too much."
    )
    return fill("intervals.html", note=note, shown=shown)


def _words(levels: np.ndarray, covered: Sequence[float]) -> str:
    places = {round(100 * level): place for place, level in enumerate(levels)}
    return ", ".join(f"{level} %: {100 * covered[places[level]]:.1f} %" for level in NAMED if level in places)
