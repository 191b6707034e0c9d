"""Assemble the report page of a run from its sections, and write it.

The page is self-contained: it loads no script, font or picture. If a file is missing from the run folder, the section
that needs the file contains a sentence about it.
"""

import time
from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup

from noether import __version__
from noether.common.atomic_write import UNFENCED, Writer, refusals_told, write_whole
from noether.common.errors import ExitCode
from noether.common.sanitize import shown_name
from noether.runs.folder import RunFolder, existing_run
from noether.runs.report import results, training
from noether.runs.report.cases import cases_section
from noether.runs.report.elements import fill
from noether.runs.report.palette import COLOURS
from noether.runs.report.run import ReportedRun, read_run

Sections = dict[str, tuple[str, Callable[[ReportedRun], Markup]]]
OF_THE_TASK: Sections = {
    "errors": ("Errors", results.errors_section),
    "classes": ("Classes", results.classes_section),
    "cases": ("Cases", cases_section),
    "scalars": ("Scalars", results.scalars_section),
    "distributions": ("Distributions", results.distributions_section),
}
OF_EVERY_RUN: Sections = {
    "use": ("Use", results.use_section),
    "curves": ("Training", training.training_section),
    "time": ("Time", training.time_section),
    "plan": ("Plan", training.plan_section),
    "environment": ("Environment", training.environment_section),
    "configuration": ("Configuration", training.configuration_section),
}


def write_report(folder: RunFolder, writer: Writer = UNFENCED) -> Path:
    """Write report.html into a run folder and return its path.

    The page names missing files. `writer` replaces an older report atomically if it still holds the lease.

    OSError: the page cannot be written.
    """
    write_whole(folder.report, render_report(read_run(folder)), writer)
    return folder.report


def render_report(run: ReportedRun) -> str:
    """Return the page as HTML."""
    told = (record.get("report_parts") for record in (run.result, run.plan))
    wanted = next((parts for parts in told if isinstance(parts, list)), list(OF_THE_TASK))
    sections = {part: section for part, section in OF_THE_TASK.items() if part in wanted}
    if run.calibration:
        sections["intervals"] = ("How sure", results.intervals_section)
    sections |= OF_EVERY_RUN
    light, dark = (" ".join(f"--{name}: {pair[k]};" for name, pair in COLOURS.items()) for k in range(2))
    page = fill(
        "page.html",
        title=f"{run.run_id} – noether",
        light=light,
        dark=dark,
        header=training.summary_header(run),
        tiles=training.summary_tiles(run),
        sections=[(key, title, make(run)) for key, (title, make) in sections.items()],
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M %Z"),
    )
    return str(page)  # Plain text, because Markup would escape text that is joined to it.


def report_here(run: str) -> int:
    """Rewrite a run's report page and print its path; return the exit code."""
    folder = existing_run(run)

    with refusals_told(folder.path, elsewhere=folder.as_copy("report")):
        print(shown_name(str(write_report(folder))))
    return ExitCode.DONE
