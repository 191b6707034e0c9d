"""Fills the templates of the page, which escape what they show, and the pieces that several sections are made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from noether.report.run import ReportedRun

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Chart:
    """A chart under its title and a line of words; without a drawing, the words say why.

    keys: label, colour and kind ("dashed", "dot", "ring" or "") of what is drawn.
    """

    title: str
    words: str
    svg: Markup | None = None
    keys: Sequence[tuple[str, str, str]] = ()


def fill(template: str, **content: Any) -> Markup:
    """Returns a template filled with content, of which all but Markup is escaped."""
    return Markup(TEMPLATES.get_template(template).render(content))


def absent(run: ReportedRun, file: str, consequence: str) -> Markup:
    """A paragraph that says why a section is empty: what is wrong with its file, and the consequence."""
    trouble = run.troubles.get(file)
    text = f"{trouble}: {consequence}." if trouble else f"{consequence[0].upper()}{consequence[1:]}."
    return _element("absent", text)


def fact_list(facts: Iterable[tuple[str, Any]]) -> Markup:
    """A list of names and values; values that are None are left out."""
    return _element("fact_list", list(facts))


def chart_list(charts: Iterable[Chart]) -> Markup:
    """Charts beside each other."""
    return _element("charts", list(charts))


def _element(name: str, *content: Any) -> Markup:
    return Markup(getattr(TEMPLATES.get_template("elements.html").module, name)(*content))
