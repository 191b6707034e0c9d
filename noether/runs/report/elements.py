"""Fill the page's templates, which escape their content and format names and numbers with filters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from noether.common.numbers import count_text, counted, finite, listed
from noether.runs.metrics import weights_name
from noether.runs.records import mapping
from noether.runs.report import numbers
from noether.runs.report.numbers import Array
from noether.runs.report.run import ReportedRun


def in_words(name: str) -> str:
    """Turn a name from a configuration or a file into words."""
    return name.replace("_", " ")


def heading(name: str) -> str:
    """Turn a name into a heading."""
    words = in_words(name)
    return words[:1].upper() + words[1:]


def full_stop(text: str) -> str:
    """Turn a text into a sentence: a capital at the start, one full stop at the end."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
for _filter in (
    *(numbers.bare_text, numbers.duration_parts, numbers.number, numbers.percent, numbers.shown_score),
    *(numbers.short_number, numbers.value_text, count_text, counted, finite),
    *(full_stop, heading, in_words, listed, weights_name),
):
    TEMPLATES.filters[_filter.__name__] = _filter


@dataclass(frozen=True)
class Chart:
    """A chart with its title and a line of text. If there is no drawing, the text gives the reason.

    keys: the label, colour and kind ("dashed", "dot", "ring" or "") of each entry of the legend.
    """

    title: str
    words: str
    svg: Markup | None = None
    keys: Sequence[tuple[str, str, str]] = ()


def fill(template: str, **content: Any) -> Markup:
    """Fill a template with content, and escape all content that is not Markup."""
    return Markup(TEMPLATES.get_template(template).render(content))


def charts(shown: Sequence[Chart], *, note: str = "") -> Markup:
    """Return charts side by side, below an optional note on missing content."""
    return fill("charts.html", shown=shown, note=note)


def absent(run: ReportedRun, file: str, consequence: str) -> Markup:
    """Return a paragraph on why a section is empty: the trouble with its file, and the consequence."""
    trouble = run.troubles.get(file)
    return fill("absent.html", text=f"{trouble}: {consequence}." if trouble else full_stop(consequence))


def of_files(space: Mapping[str, Any]) -> Array:
    """Return the matrix (3, 3) that rotates a vector from the axes of the data set's files to the model's axes."""
    return np.asarray(mapping(space, "files").get("rotation", np.eye(3)), np.float64)


def axis_name(direction: Array) -> str:
    """Return the axis nearest to a direction (3,), such as "+x" or "−y"."""
    main = int(np.abs(direction).argmax())
    return ("+" if direction[main] > 0 else "−") + "xyz"[main]


def axes_words(space: Mapping[str, Any], turn: Array | None = None) -> str:
    """Describe the axes, such as "x across, y up, z along the wind"; return "" if the data set does not define them.

    turn: the matrix (3, 3) from the described axes to the model's; None to describe the model's own axes.
    """
    named = {}
    for what, words in (("up", "up"), ("wind", "along the wind")):
        if space.get(what):
            direction = np.asarray(space[what], np.float64) @ (np.eye(3) if turn is None else turn)
            name = axis_name(direction)
            named[name[1]] = words if name[0] == "+" else f"{words}, backwards"
    if len(named) == 2:
        named[(set("xyz") - set(named)).pop()] = "across"
    return ", ".join(f"{axis} {words}" for axis, words in sorted(named.items()))
