"""Where the model holds, how sure it is, how far another seed would differ, and the line that makes it again."""

import shlex
from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import Any

import numpy as np
from markupsafe import Markup

from noether.common.numbers import DIGITS, LENGTHS, listed
from noether.config.sweep import override_value
from noether.runs.records import mapping
from noether.runs.report.charts import calibration_curve
from noether.runs.report.elements import Chart, axes_words, fill, heading, in_words
from noether.runs.report.numbers import percent, short_number, value_text
from noether.runs.report.run import ReportedRun


def use_section(run: ReportedRun) -> Markup:
    """What it gives, the ranges of what it was trained on, its worst errors; the seeds; the command."""
    trained = run.result.get("trained_on") or {}
    points, parameters = trained.get("points") or {}, trained.get("parameters") or {}
    space = mapping(run.meta, "space")
    errors = {name: run.finite_errors(name) for name in run.fields}
    worst = [f"{percent(finite.max())} ({in_words(name)})" for name, finite in errors.items() if finite.size]
    scored = [name for name in mapping(run.result, "scalars") if "mae" in run.described.of_whole(run.metrics, name)]
    outputs = [*run.fields, *scored]
    config, again = shlex.quote(str(run.path / "config.yaml")), override_value(f"{run.run_id}-again")
    return fill(
        "use.html",
        outputs=[in_words(name) + (f" in {unit}" if (unit := run.unit(name)) else "") for name in outputs],
        ranges=[(in_words(name), _range(span)) for name, span in parameters.items()],
        boxes=[(in_words(name.removesuffix("_points")), _box(span, *_length(space))) for name, span in points.items()],
        axes=axes_words(space) if points else "",
        training=(run.plan.get("data") or {}).get("training"),
        worst=listed(worst),
        seeds=_spread(run),
        again=f"noether train --hp {config} resume=null {shlex.quote(f'run_id={again}')}",
        version=run.environment.get("noether"),
        revision=run.environment.get("git_revision"),
        image=(run.environment.get("image") or {}).get("digest"),
        conditions=run.plan.get("conditions") or {},
    )


def _spread(run: ReportedRun) -> list[tuple[str, str]]:
    """The headline metrics over runs that differ by seed: mean, standard deviation and how many."""
    return [
        (metric.title, f"{value_text(own['mean'], metric, own['std'])} ({own['n']} seeds)")
        for metric in run.described.foremost(run.spread)
        if (own := run.spread[metric.name])
    ]


def _range(span: Mapping[str, Any]) -> str:
    text = ", ".join(f"{low} to {high}" for low, high in zip(*_rounded(span), strict=True))
    return f"{text} {span.get('unit') or ''}".rstrip()


def _length(space: Mapping[str, Any]) -> tuple[str, float]:
    """The unit of length of the data's files and its metres; m where they say none."""
    metres = mapping(space, "files").get("metres")
    return next((known for known in LENGTHS.items() if known[1] == metres), ("m", 1.0))


def _box(span: Mapping[str, Any], unit: str, metres: float) -> str:
    own = {end: [value / metres for value in span[end]] for end in ("low", "high")}
    sides = zip("xyz", *_rounded(own), strict=False)
    return ", ".join(f"{axis} {low} to {high}" for axis, low, high in sides) + f" {unit}"


def _rounded(span: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Both ends with the decimals that the widest needs: a millionth beside a metre is 0."""
    low, high = span["low"], span["high"]
    widest = max((abs(value) for value in (*low, *high)), default=0)
    decimals = DIGITS - 1 - floor(log10(widest)) if widest else 0

    def written(values: list[float]) -> list[str]:
        return [short_number(round(value, decimals)).replace("-", "−") for value in values]

    return written(low), written(high)


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
