"""Which sections does a report have, in which order? The page is put together and written here.

The page holds everything it shows: no script, no font, no picture is loaded from elsewhere. Whatever a run
folder lacks, its section says in a sentence.
"""

import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from string import Template

from noether import __version__
from noether.common.whole_file import ANYBODY, Publisher, write_whole
from noether.report.cases import cases_section
from noether.report.classes import classes_section, confusion
from noether.report.colours import COLOURS
from noether.report.field_errors import distributions_section, errors_section
from noether.report.provenance import configuration_section, environment_section, plan_section
from noether.report.run import ReportedRun, read_run
from noether.report.scalars import scalars_section
from noether.report.summary import summary_header, summary_tiles
from noether.report.time_strip import time_section
from noether.report.training import training_section
from noether.runs.folder import RunFolder

PAGE = Path(__file__).with_name("page.html")


def write_report(folder: RunFolder, by: Publisher = ANYBODY) -> Path:
    """Writes report.html into a run folder and returns its path.

    The page says what is missing. An older report is replaced at once and whole, by `by`, where it may.

    Raises:
        OSError: the page cannot be written.
    """
    write_whole(folder.report, render_report(read_run(folder)), by)
    return folder.report


def render_report(run: ReportedRun) -> str:
    """Returns the page."""
    parts: dict[str, tuple[str, Callable[[ReportedRun], str]]] = {
        "errors": ("Errors", errors_section),
        "classes": ("Classes", classes_section),
        "cases": ("Cases", cases_section),
        "scalars": ("Force coefficients", scalars_section),
        "distributions": ("Distributions", distributions_section),
    }
    # The task has said which; results written before it did are told apart by what they hold.
    known = ["errors", "classes"] if confusion(run) is not None else ["errors", "cases", "scalars", "distributions"]
    wanted = [part for part in run.result.get("report_parts") or known if part in parts]
    of_the_task = [(key, *parts[key]) for key in wanted]
    sections = [
        *of_the_task,
        ("curves", "Training", training_section),
        ("time", "Time", time_section),
        ("plan", "Plan", plan_section),
        ("environment", "Environment", environment_section),
        ("configuration", "Configuration", configuration_section),
    ]
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title, _ in sections)
    body = [summary_header(run), summary_tiles(run), f"<nav>{links}</nav>"]
    body += [f'<section id="{key}">\n<h2>{title}</h2>\n{make(run)}\n</section>' for key, title, make in sections]
    made = time.strftime("%Y-%m-%d %H:%M %Z")
    body.append(f"<footer>Written by noether {escape(__version__)} on {escape(made)}.</footer>")
    light, dark = (" ".join(f"--{name}: {pair[k]};" for name, pair in COLOURS.items()) for k in range(2))
    return Template(PAGE.read_text(encoding="utf-8")).substitute(
        title=escape(f"{run.run_id} – noether"), light=light, dark=dark, body="\n".join(body)
    )
