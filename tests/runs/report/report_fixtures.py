"""What the tests of the report share: a run folder, its page, and the run with one case.

A pytest plugin of its own: a second conftest.py would stand in the way of `from conftest import …`.
"""

from dataclasses import replace

import pytest
from report_runs import make_run

from noether.runs.folder import RunFolder
from noether.runs.report.page import write_report
from noether.runs.report.run import ReportedRun, read_run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("runs") / "2026-01-31_12-00-00_ab12")


@pytest.fixture(scope="session")
def page(folder: RunFolder) -> str:
    return write_report(folder).read_text()


@pytest.fixture(scope="session")
def run(folder: RunFolder) -> ReportedRun:
    """The run with its first case alone: drawing is what takes time."""
    run = read_run(folder)
    return replace(run, meta={**run.meta, "cases": run.meta["cases"][:1]})
