"""`noether report`: writes the page of a run again."""

from noether.common.errors import ExitCode
from noether.common.refused_disk import refusals_told
from noether.runs.folder import existing_run


def report_here(run: str) -> int:
    """Write a run's page again, and print its path; return the exit code."""
    folder = existing_run(run)
    from noether.runs.report.page import write_report  # A second of imports, which a refusal does not need.

    with refusals_told(folder.path, elsewhere=folder.as_copy("report")):
        print(write_report(folder))
    return ExitCode.DONE
