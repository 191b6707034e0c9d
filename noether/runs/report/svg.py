"""Charts as part of the page: SVG in the page's colours, with text that stays text. No pyplot."""

import re
from io import StringIO
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, Formatter, LogLocator, MaxNLocator, NullLocator

from noether.runs.report.numbers import TICK_STEPS, Array, tick_labels
from noether.runs.report.palette import COLOURS


class TickLabels(Formatter):
    """Labels of an axis: plain or as percentages, each for itself on a log axis, else with common decimals."""

    def __init__(self, *, ratio: bool = False, log: bool = False) -> None:
        self.ratio, self.log = ratio, log

    def format_ticks(self, values: Any) -> list[str]:
        """The labels of all ticks of an axis."""
        numbers = [float(f"{100 * value if self.ratio else value:.9g}") for value in values]
        labels = [tick_labels([value])[0] for value in numbers] if self.log else tick_labels(numbers)
        return [f"{label}\u202f%" for label in labels] if self.ratio else labels


def chart_style(name: str) -> Any:
    """Settings of all charts; the name makes the ids inside one SVG differ from those of the others."""
    return matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": name,
            "text.parse_math": False,  # a dollar sign in a unit or a name is one
            "font.family": "DejaVu Sans",  # comes with matplotlib and is wide, so that no system font overflows
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
    """A figure, in inches, with its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(axis="x", visible=False)
    return figure, axes


def paint(name: str) -> str:
    """The light colour, by which `svg_element` knows the CSS variable to put in its place."""
    return COLOURS[name][0]


def svg_element(figure: Figure) -> Markup:
    """The figure as an SVG element for a page: scales with its column, and takes the page's type and colours."""
    raw = StringIO()
    figure.savefig(
        raw, format="svg", transparent=True, dpi=200, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )
    text = raw.getvalue()
    text = text[text.index("<svg") :]
    size = re.search(r'viewBox="[^"]*"', text)
    assert size is not None
    text = f'<svg {size[0]} role="img">' + text[text.index(">") + 1 :]
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # would style the whole page
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = text.replace("xlink:href", "href").replace("; font-family: 'DejaVu Sans'", "")
    text = re.sub(r"\s*\n\s*", " ", text)
    for colour, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{colour})")
    return Markup(text)  # Matplotlib has escaped what it wrote


def round_ticks(axis: Axis, most: int, *, ratio: bool = False, whole: bool = False) -> None:
    """At most so many round ticks, at whole numbers alone where asked for."""
    axis.set_major_locator(MaxNLocator(most, integer=whole, steps=[1, 2, 5, 10] if whole else TICK_STEPS))
    axis.set_major_formatter(TickLabels(ratio=ratio))


def log_ticks(axes: Axes, values: Array, *, ratio: bool) -> None:
    """A log y axis over positive values, with round ticks that are few enough to be read."""
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
