"""Hooks of mkdocs: add a run's report and the icon of the live page to the documentation site.

Reports are several megabytes, so the repository contains none. NOETHER_SITE_REPORT is the path of the report; without
this variable, the site has neither a report nor a link to one.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

VARIABLE = "NOETHER_SITE_REPORT"
ICON = Path(__file__).resolve().parent.parent / "noether" / "watch" / "static" / "icon.svg"
PICTURE = "![The report of make train](images/report.png)"


def on_files(files: Any, *, config: Any, **_: Any) -> Any:
    """Add the icon to the site's files."""
    files.append(File.generated(config, "assets/icon.svg", content=ICON.read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """On the first page, make the picture of the report a link to the report, and add a text link below it."""
    if page.file.src_uri != "index.md" or not os.environ.get(VARIABLE):
        return markdown
    if PICTURE not in markdown:
        raise ValueError(f"docs/index.md no longer has the line {PICTURE}")
    link = '<a href="report.html"><img alt="The report of make train" src="images/report.png"></a>'
    return markdown.replace(
        PICTURE, f'{link}\n\n<a href="report.html">The full report of a run</a>, as written by `make train`.'
    )


def on_post_build(*, config: Any, **_: Any) -> None:
    """Copy the report into the site."""
    report = os.environ.get(VARIABLE)
    if report:
        shutil.copy(report, Path(config["site_dir"]) / "report.html")
