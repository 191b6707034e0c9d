"""The pieces of HTML that several sections are made of: what is absent, a list of facts, a titled chart."""

from collections.abc import Iterable
from html import escape
from typing import Any

from noether.report.run import ReportedRun


def absent(run: ReportedRun, file: str, consequence: str) -> str:
    """A paragraph that says why a section is empty: what is wrong with its file, and the consequence."""
    trouble = run.troubles.get(file)
    text = f"{trouble}: {consequence}." if trouble else f"{consequence[0].upper()}{consequence[1:]}."
    return f'<p class="absent">{escape(text)}</p>'


def fact_list(facts: Iterable[tuple[str, Any]]) -> str:
    """A list of names and values; values that are None are left out."""
    rows = (
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in facts
        if value is not None
    )
    return f'<dl class="facts">{"".join(rows)}</dl>'


def chart_figure(title: str, words: str, svg: str, keys: str = "") -> str:
    """A chart under its title and a line of words, with HTML of the keys to its colours."""
    return (
        f'<figure class="chart"><h3>{escape(title)}</h3><p class="note">{escape(words)}</p>'
        f'<div class="keys">{keys}</div>{svg}</figure>'
    )
