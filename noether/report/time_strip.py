"""What the time of a run was made of: a stacked strip over the updates, and the whole in figures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from noether.report.elements import Chart, absent, chart_list, fact_list
from noether.report.numbers import Array, finite, number, percent
from noether.report.run import ReportedRun
from noether.report.svg import chart_axes, chart_style, paint, svg_element
from noether.report.training import by_update

BANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "forward": ("accent", ("forward",)),
    "backward": ("third", ("backward",)),
    "waiting for other ranks": ("second", ("reduction",)),
    "waiting for data, copying": ("fourth", ("data", "copy")),
    "optimiser": ("muted", ("optimizer",)),
    "logging, evaluation, checkpoints, other": ("line", ("logging", "evaluation", "checkpoint", "other")),
}
"""What is drawn as one band: its colour, and the parts that it sums up."""


def time_section(run: ReportedRun) -> Markup:
    """The shares over the updates, and the seconds of the last start."""
    rows = by_update(
        row for row in run.rows if row.get("kind") == "training" and isinstance(row.get("time_use"), Mapping)
    )
    whole = run.result.get("time_use")
    if not rows and not whole:
        return absent(run, "metrics.jsonl", "no line says what the time was made of")
    return chart_list([_strip(rows)] if rows else []) + (_facts(run, whole) if isinstance(whole, Mapping) else "")


def shares(rows: Sequence[Mapping[str, Any]]) -> Array:
    """Returns the share of each band (bands, rows) in the time since the row before."""
    seconds = np.array(
        [[sum(finite(row["time_use"].get(part), 0.0) for part in parts) for row in rows] for _, parts in BANDS.values()]
    )
    return np.asarray(seconds / np.maximum(seconds.sum(axis=0), 1e-12), np.float64)


def _strip(rows: Sequence[Mapping[str, Any]]) -> Chart:
    ends = [float(row["update"]) for row in rows]
    edges = [2 * ends[0] - ends[1] if len(ends) > 1 else 0.0, *ends]
    with chart_style("time-strip"):
        figure, axes = chart_axes()
        low = np.zeros(len(rows))
        for (colour, _), band in zip(BANDS.values(), shares(rows), strict=True):
            axes.stairs(low + band, edges, baseline=low, fill=True, facecolor=paint(colour), edgecolor="none")
            low = low + band
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0, 1)
        axes.set_xlabel("updates")
        axes.set_yticks([0, 0.5, 1], labels=["0", "50\u202f%", "100\u202f%"])
        svg = svg_element(figure, "time-strip")
    keys = [(name, colour, "") for name, (colour, _) in BANDS.items()]
    return Chart("Time", "Share of the time since the line before, mean over the ranks.", svg, keys)


def _facts(run: ReportedRun, whole: Mapping[str, Any]) -> Markup:
    parts = whole.get("parts") or {}
    total = sum(parts.values()) or 1.0
    facts = [(name, f"{number(seconds)} s, {percent(seconds / total, 2)}") for name, seconds in parts.items()]
    slowest, arithmetic = whole.get("slowest"), run.result.get("arithmetic") or {}
    if isinstance(slowest, Mapping):
        lead = percent(slowest.get("behind"), 2)
        facts.append(("slowest rank", f"{slowest.get('rank')} on {slowest.get('host')}, {lead} behind the others"))
    if arithmetic:
        facts.append(("operations per sample", f"{number(arithmetic.get('flops_per_sample'))}, forward and backward"))
        share = percent(arithmetic.get("share"), 2)
        ceiling = number(finite(arithmetic.get("matmul_flops_per_second"), 0.0) / 1e9)
        facts.append(("share of the matrix products' ceiling", f"{share} of {ceiling} GFLOP/s measured on this device"))
    return fact_list(facts)
