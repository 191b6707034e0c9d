"""The report's charts show the rows that count."""

from report_runs import resumed

from noether.report.run import ReportedRun
from noether.report.training import by_update

pytest_plugins = ("report_fixtures",)


def test_a_resumed_run_shows_what_was_made_anew(run: ReportedRun) -> None:
    rows = [row for row in resumed(run).rows if row["kind"] == "training"]
    shown = by_update(rows)
    assert [row["update"] for row in shown] == sorted({row["update"] for row in rows})
    assert [row["loss"] for row in shown if row["update"] > 200] == [77.0] * 8
