"""How the training went: loss, validation error, learning rate, speed and use of the time over the updates."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from noether.common.numbers import finite
from noether.report.charts import Series, can_draw, curves, time_strip
from noether.report.elements import Chart, absent, charts, fill
from noether.report.numbers import Array
from noether.report.palette import BANDS, SERIES_COLOURS
from noether.report.phrases import heading, in_words, weights_name
from noether.report.run import ReportedRun


def training_section(run: ReportedRun) -> Markup:
    """Four charts over updates, of whatever was logged."""
    training = by_update(row for row in run.rows if row.get("kind") == "training")
    validation = {weights: _validation(run.rows, weights) for weights in ("ema", "raw")}
    if not training and not any(validation.values()):
        return absent(run, "metrics.jsonl", "no line of training was written")
    selected = "ema" if validation["ema"] else "raw"
    chosen = validation[selected]

    losses = [_series("training", training, "loss", "muted")]
    for weights, colour in (("ema", "accent"), ("raw", "second")):
        label = f"validation, {'EMA' if weights == 'ema' else weights} weights"
        own = weights == selected
        losses.append(_series(label, validation[weights], "loss", colour, dashed=not own, points=own))
    shares = [run.known[key] for key in (chosen[-1] if chosen else ()) if run.known[key].headline]
    shares = [metric for metric in shares if metric.unit == "%"]
    relative = [
        _series(in_words(metric.of or metric.name), chosen, metric.name, colour, points=True)
        for metric, colour in zip(shares, SERIES_COLOURS, strict=False)
    ]
    share_title = heading(shares[0].label) if shares else "Relative L2"
    falling = all(metric.better == "lower" for metric in shares)
    last = float(max(rows[-1]["update"] for rows in (training, *validation.values()) if rows))
    per_epoch = (run.plan.get("length") or {}).get("updates_per_epoch") or _updates_per_epoch(training)

    def chart(title: str, words: str, series: Sequence[Series], *, log: bool = False, ratio: bool = False) -> Chart:
        shown = [line for line in series if can_draw(line, log=log)]
        if not shown:
            why = "no validation split was evaluated" if not chosen and ratio else "no finite value was logged"
            return Chart(title, f"Not drawn: {why}.")
        name = f"curve-{title.replace(' ', '-')}"
        svg = curves(name, shown, log=log, ratio=ratio, last_update=last, updates_per_epoch=per_epoch)
        keys = [(line.label, line.colour, "dashed" if line.dashed else "") for line in shown if line.label]
        return Chart(title, words, svg, keys)

    unit = "Weighted mean squared error in standardised units. " if run.fields else ""
    split = f"Validation split, {weights_name(selected)}. Log scale."
    shown = [
        chart("Loss", f"{unit}Log scale.", losses, log=True),
        chart(share_title, split if falling else split[:-11], relative, log=falling, ratio=True),
        chart("Learning rate", "As the schedule set it.", [_series("", training, "learning_rate", "accent")]),
        chart("Speed", "Samples per second over all ranks.", [_series("", training, "samples_per_second", "accent")]),
    ]
    missing = "No validation split was evaluated: the loss is the training loss alone."
    return charts(shown, note="" if any(validation.values()) else missing)


def time_section(run: ReportedRun) -> Markup:
    """What the time was made of: the shares over the updates, and the seconds of the last start."""
    rows = by_update(
        row for row in run.rows if row.get("kind") == "training" and isinstance(row.get("time_use"), Mapping)
    )
    whole = run.result.get("time_use")
    if not rows and not whole:
        return absent(run, "metrics.jsonl", "no line says what the time was made of")
    keys = [(name, colour, "") for name, (colour, _) in BANDS.items()]
    words = "Share of the time since the line before, mean over the ranks."
    strip = [Chart("Time", words, time_strip([row["update"] for row in rows], _shares(rows)), keys)] if rows else []
    return fill("time.html", strip=strip, whole=whole, arithmetic=run.result.get("arithmetic") or {})


def _validation(rows: Iterable[Mapping[str, Any]], weights: str) -> list[Mapping[str, Any]]:
    """The evaluations of the validation split with one kind of weights, their metrics among the row's values."""
    return by_update(
        {**row["metrics"], "update": row.get("update")}
        for row in rows
        if row.get("kind") == "evaluation"
        and row.get("split", "validation") == "validation"
        and row.get("weights") == weights
        and isinstance(row.get("metrics"), Mapping)
    )


def by_update(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows by rising update; of rows of the same update the last written, because a resumed run repeats some."""
    latest = {row["update"]: row for row in rows if isinstance(row.get("update"), (int, float))}
    return [latest[update] for update in sorted(latest)]


def _series(
    label: str, rows: Sequence[Mapping[str, Any]], key: str, colour: str, *, dashed: bool = False, points: bool = False
) -> Series:
    x = np.array([row["update"] for row in rows], dtype=np.float64)
    y = np.array([finite(row.get(key), np.nan) for row in rows], dtype=np.float64)
    return Series(label, x, y, colour, dashed, points)


def _updates_per_epoch(rows: Sequence[Mapping[str, Any]]) -> float | None:
    if not rows or not finite(rows[-1].get("epoch"), 0):
        return None
    return float(rows[-1]["update"] / rows[-1]["epoch"]) or None


def _shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """The share of each band (rows,) in the time since the row before, by its colour."""
    seconds = {
        colour: np.array([sum(finite(row["time_use"].get(part), 0.0) for part in parts) for row in rows])
        for colour, parts in BANDS.values()
    }
    whole = np.maximum(sum(seconds.values()), 1e-12)
    return {colour: np.asarray(band / whole, np.float64) for colour, band in seconds.items()}
