"""The charts of the report as SVG, in the page's colours and with selectable text. No pyplot."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, Formatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from noether.runs.report.history import thinned
from noether.runs.report.numbers import TICK_STEPS, Array, tick_labels
from noether.runs.report.palette import COLOURS


class TickLabels(Formatter):
    """Formatter of an axis's labels, plain or in percent. They have equal numbers of decimals, except on a log axis."""

    def __init__(self, *, ratio: bool = False, log: bool = False) -> None:
        self.ratio, self.log = ratio, log

    def format_ticks(self, values: Any) -> list[str]:
        """Return the labels of all ticks of an axis."""
        numbers = [float(f"{100 * value if self.ratio else value:.9g}") for value in values]
        labels = [tick_labels([value])[0] for value in numbers] if self.log else tick_labels(numbers)
        return [f"{label}\u202f%" for label in labels] if self.ratio else labels


def chart_style(name: str) -> Any:
    """Return the settings of a chart. Its name makes the ids inside its SVG differ from those in other charts."""
    return matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": name,
            "text.parse_math": False,  # A dollar sign in a unit or a name is literal.
            "font.family": "DejaVu Sans",  # Comes with matplotlib. Text in a system font is narrower.
            "font.size": 9.5,
            "axes.edgecolor": paint("line"),
            "axes.labelcolor": paint("muted"),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": paint("line"),
            "grid.linewidth": 0.6,
            "xtick.color": paint("line"),
            "ytick.color": paint("line"),
            "xtick.labelcolor": paint("muted"),
            "ytick.labelcolor": paint("muted"),
            "xtick.major.size": 3,
            "ytick.major.size": 0,
        }
    )


def chart_axes(width: float = 6.0, height: float = 2.7) -> tuple[Figure, Axes]:
    """Return a figure of this size, in inches, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(axis="x", visible=False)
    return figure, axes


def paint(name: str) -> str:
    """Return the light colour of this name, which `svg_element` replaces with its CSS variable."""
    return COLOURS[name][0]


def svg_element(figure: Figure) -> Markup:
    """Return the figure as an SVG element that scales with its column and takes the page's fonts and colours."""
    raw = StringIO()
    figure.savefig(
        raw, format="svg", transparent=True, dpi=200, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )
    text = raw.getvalue()
    text = text[text.index("<svg") :]
    size = re.search(r'viewBox="[^"]*"', text)
    assert size is not None
    text = f'<svg {size[0]} role="img">' + text[text.index(">") + 1 :]
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # This style would apply to the whole page.
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = text.replace("xlink:href", "href").replace("; font-family: 'DejaVu Sans'", "")
    text = re.sub(r"\s*\n\s*", " ", text)
    for colour, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{colour})")
    return Markup(text)  # Matplotlib has escaped its texts.


def round_ticks(axis: Axis, most: int, *, ratio: bool = False, whole: bool = False) -> None:
    """Set round ticks, at most about `most` of them. With `whole=True`, set them only at whole numbers."""
    axis.set_major_locator(MaxNLocator(most, integer=whole, steps=[1, 2, 5, 10] if whole else TICK_STEPS))
    axis.set_major_formatter(TickLabels(ratio=ratio))


def log_ticks(axes: Axes, values: Array, *, ratio: bool) -> None:
    """Make y a log axis over positive values, with few enough round ticks to be legible."""
    low, high = float(values.min()), float(values.max())
    margin = max((high / low) ** 0.06, 1.05)
    low, high = low / margin, high * margin
    decades = LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,), numticks=8)
    locator = MaxNLocator(5, steps=TICK_STEPS) if high / low < 8 else decades
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in locator.tick_values(low, high) if low <= tick <= high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(TickLabels(ratio=ratio, log=True))


BUCKETS = 200
"""Number of buckets in a long line. The lowest and the highest value of each bucket are drawn."""


@dataclass(frozen=True)
class Series:
    """One line of a chart: x and y (n,), and a colour of COLOURS. With `points=True`, each value is marked."""

    label: str
    x: Array
    y: Array
    colour: str
    dashed: bool = False
    points: bool = False


def drawable(y: Array, *, log: bool) -> NDArray[np.bool_]:
    """Return a mask (n,) of the values of a line that `curves` can draw."""
    return np.isfinite(y) & (y > 0) if log else np.isfinite(y)


def curves(
    name: str, series: Sequence[Series], *, log: bool, ratio: bool, last_update: float, updates_per_epoch: float | None
) -> Markup:
    """Return an SVG of lines over updates, with an axis of epochs on top if `updates_per_epoch` is known.

    Each line must have a drawable value. Values that are not finite, or not positive on a log axis, become gaps.
    """
    with chart_style(name):
        figure, axes = chart_axes()
        values = np.concatenate([_draw_line(axes, line, log) for line in series])
        if log:
            log_ticks(axes, values, ratio=ratio)
        else:
            low, top = min(0.0, float(values.min())), max(0.0, float(values.max()))
            axes.set_ylim(low * 1.08, top * 1.08 if top > low else 1)
            round_ticks(axes.yaxis, 5, ratio=ratio)
        axes.set_xlim(-0.012 * last_update, 1.012 * last_update)
        round_ticks(axes.xaxis, 6, whole=True)
        axes.set_xlabel("updates")
        if updates_per_epoch:
            _add_epochs(axes, float(updates_per_epoch))
        return svg_element(figure)


def _draw_line(axes: Axes, line: Series, log: bool) -> Array:
    """Draw a line; return its drawable values."""
    y = np.where(drawable(line.y, log=log), line.y, np.nan)
    x, shown = thinned(line.x, y, BUCKETS)
    dense = len(x) > 60
    axes.plot(
        x,
        shown,
        color=paint(line.colour),
        linewidth=1.0 if line.colour == "muted" else 1.6,
        linestyle=(0, (4, 2)) if line.dashed else "-",
        marker="o" if (line.points and not dense) or len(x) == 1 else "",
        markersize=2.8,
        label=line.label,
    )
    return y[np.isfinite(y)]


def _add_epochs(axes: Axes, length: float) -> None:
    """Add the axis of epochs on top. length: the number of updates in an epoch."""
    there_and_back = (lambda updates: np.divide(updates, length)), (lambda epochs: np.multiply(epochs, length))
    top_axis = axes.secondary_xaxis("top", functions=there_and_back)
    top_axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    top_axis.xaxis.set_major_formatter(TickLabels())
    top_axis.tick_params(length=3, color=paint("line"), labelcolor=paint("muted"), pad=2)
    top_axis.spines["top"].set_color(paint("line"))
    top_axis.set_xlabel("epochs", color=paint("muted"), labelpad=3)


def time_strip(updates: Array, shares: Mapping[str, Array]) -> Markup:
    """Return an SVG of stacked bands. shares: by colour, the share (n,) of the time up to each update."""
    with chart_style("time-strip"):
        figure, axes = chart_axes()
        edges = [2 * updates[0] - updates[1] if len(updates) > 1 else 0.0, *updates]
        low = np.zeros(len(updates))
        for colour, band in shares.items():
            axes.stairs(low + band, edges, baseline=low, fill=True, facecolor=paint(colour), edgecolor="none")
            low = low + band
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1), xlabel="updates")
        round_ticks(axes.xaxis, 6, whole=True)
        axes.set_yticks([0, 0.5, 1], labels=["0", "50\u202f%", "100\u202f%"])
        return svg_element(figure)


def parity(name: str, truth: Array, prediction: Array, floor: Array | None, unit: str, lines: Sequence[str]) -> Markup:
    """Return an SVG of predictions (S,) against truths (S,) in a unit, with the line of equality.

    floor (S,): the scalar's formula applied to the true field, drawn as rings. The distance of a ring from the line is
    an error that no model can undo. lines: text for the empty upper corner.
    """
    with chart_style(name):
        figure, axes = chart_axes(width=4.5, height=4.3)
        shown = [values for values in (truth, prediction, floor) if values is not None]
        values = np.concatenate([value[np.isfinite(value)] for value in shown])
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
        pad = 0.06 * (high - low) or max(abs(low), 1.0) * 0.1
        limits = (low - pad, high + pad)
        axes.plot(limits, limits, color=paint("muted"), linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        many = len(truth) > 1500
        if floor is not None:
            axes.scatter(
                truth, floor, s=26, facecolors="none", edgecolors=paint("second"), linewidths=0.9, rasterized=many
            )
        size = 18 if len(truth) < 300 else 8
        axes.scatter(
            truth, prediction, s=size, color=paint("accent"), alpha=0.75, linewidths=0, zorder=3, rasterized=many
        )
        axes.set(xlim=limits, ylim=limits)
        axes.set_box_aspect(1)
        for axis in (axes.xaxis, axes.yaxis):
            round_ticks(axis, 6)
        beside = f", {unit}" if unit else ""
        axes.set_xlabel(f"truth{beside}")
        axes.set_ylabel(f"prediction{beside}", rotation_mode="anchor", va="bottom")
        axes.text(0.04, 0.96, "\n".join(lines), transform=axes.transAxes, va="top", color=paint("ink"))
        return svg_element(figure)


def calibration_curve(name: str, promised: Array, covered: Array, stray: Array) -> Markup:
    """Return an SVG of covered against promised shares (L,), 0 to 1. stray (L,): the deviation expected by chance."""
    with chart_style(name):
        figure, axes = chart_axes()
        low, high = np.maximum(promised - stray, 0), np.minimum(promised + stray, 1)
        axes.fill_between(promised, low, high, color=paint("line"), alpha=0.7, linewidth=0)
        axes.plot([0, 1], [0, 1], color=paint("muted"), linewidth=0.9, linestyle=(0, (4, 3)))
        axes.plot(promised, covered, color=paint("accent"), linewidth=1.6)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="promised")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0", *(f"{share}\u202f%" for share in (25, 50, 75, 100))])
        return svg_element(figure)


def error_histogram(name: str, edges: Array, counts: Array, unit: str) -> Markup:
    """Return an SVG histogram of errors at points, on a log scale. edges (B+1,): in the field's unit. counts: (B,)."""
    with chart_style(name):
        figure, axes = chart_axes()
        share = counts / max(counts.sum(), 1)
        filled = np.flatnonzero(counts)
        if filled.size:
            floor = float(share[filled].min()) / 2
            axes.stairs(np.maximum(share, floor), edges, baseline=floor, fill=True, color=paint("accent"), alpha=0.28)
            axes.stairs(np.maximum(share, floor), edges, baseline=floor, color=paint("accent"), linewidth=1.3)
            log_ticks(axes, share[filled], ratio=True)
            axes.set_ylim(floor, float(share.max()) * 1.6)
            reach = np.array([edges[filled[0]], edges[filled[-1] + 1]])
            axes.set_xlim(*(reach + np.array([-0.02, 0.02]) * np.ptp(reach)))
        axes.axvline(0, color=paint("muted"), linewidth=0.9, linestyle=(0, (4, 3)))
        round_ticks(axes.xaxis, 7)
        axes.set_xlabel(f"prediction − truth ({unit})" if unit else "prediction − truth")
        return svg_element(figure)


def sample_errors(name: str, values: Array, marks: Mapping[int, str]) -> Markup:
    """Return an SVG of the cases' relative errors (S,) in rising order. Of marks with equal labels, label the first."""
    with chart_style(name):
        figure, axes = chart_axes()
        order = np.argsort(values, kind="stable")
        order = order[np.isfinite(values[order])]
        place = np.arange(1.0, len(order) + 1)
        axes.scatter(*thinned(place, values[order], BUCKETS), s=12, color=paint("accent"), alpha=0.7, linewidths=0)
        named: set[str] = set()
        for sample, label in marks.items():
            rank = np.flatnonzero(order == sample)
            if not rank.size:
                continue
            x, y = place[rank[0]], values[sample]
            axes.scatter([x], [y], s=30, facecolors="none", edgecolors=paint("second"), linewidths=1.3, zorder=3)
            # The second and third worst are so close to the worst that their labels would overlap.
            if label and label not in named:
                named.add(label)
                # The points rise to the right, so there is space at the upper left.
                off, side = ((-6, 5), "right") if x > 0.2 * len(order) else ((-2, 10), "left")
                axes.annotate(label, (x, y), off, textcoords="offset points", ha=side, color=paint("second"))
        top = float(values[order].max()) if order.size else 1.0
        axes.set_ylim(0, top * 1.12 or 1)
        round_ticks(axes.yaxis, 5, ratio=True)
        round_ticks(axes.xaxis, 6, whole=True)
        axes.set_xlabel("cases, in order of their error")
        return svg_element(figure)
