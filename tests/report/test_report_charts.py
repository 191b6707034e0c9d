"""The report's charts show the rows that count."""

from report_runs import resumed

from noether.report.run import ReportedRun

pytest_plugins = ("report_fixtures",)


def test_a_resumed_run_shows_what_was_made_anew(run: ReportedRun) -> None:
    again = resumed(run)
    updates, loss = again.history.curve("training", "", "loss")
    assert updates.tolist() == sorted({row["update"] for row in again.rows if row["kind"] == "training"})
    assert loss[updates > 200].tolist() == [77.0] * 8
