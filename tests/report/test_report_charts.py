"""The report's charts: in the page's colours, of the rows that count, and matplotlib is left as it was."""

import re
from dataclasses import replace

import matplotlib
from report_runs import resumed

from noether.report.page import render_report
from noether.report.palette import COLOURS
from noether.report.run import ReportedRun
from noether.report.training import by_update

pytest_plugins = ("report_fixtures",)


def test_page_follows_the_dark_theme(page: str) -> None:
    charts = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert "prefers-color-scheme: dark" in page
    assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", charts)) == set()
    assert set(re.findall(r"var\(--(\w+)\)", charts)) <= set(COLOURS)


def test_drawing_leaves_matplotlib_as_it_was(run: ReportedRun) -> None:
    before = dict(matplotlib.rcParams)
    render_report(replace(run, meta={**run.meta, "cases": []}))
    assert dict(matplotlib.rcParams) == before


def test_a_resumed_run_shows_what_was_made_anew(run: ReportedRun) -> None:
    rows = [row for row in resumed(run).rows if row["kind"] == "training"]
    shown = by_update(rows)
    assert [row["update"] for row in shown] == sorted({row["update"] for row in rows})
    assert [row["loss"] for row in shown if row["update"] > 200] == [77.0] * 8
