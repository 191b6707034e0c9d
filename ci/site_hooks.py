"""Hooks of mkdocs: a run's report becomes a page of the documentation site, and the live page's icon the site's.

Reports are megabytes, so none is kept in the repository. Without NOETHER_SITE_REPORT the site has no report
and no link to one.
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
    """Add the icon."""
    files.append(File.generated(config, "assets/icon.svg", content=ICON.read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Link the picture on the first page to the whole report."""
    if page.file.src_uri != "index.md" or not os.environ.get(VARIABLE):
        return markdown
    if PICTURE not in markdown:
        raise ValueError(f"docs/index.md has no longer the line {PICTURE}")
    link = '<a href="report.html"><img alt="The report of make train" src="images/report.png"></a>'
    return markdown.replace(
        PICTURE, f'{link}\n\n<a href="report.html">The whole report of a run</a>, as `make train` ends.'
    )


def on_post_build(*, config: Any, **_: Any) -> None:
    """Copy the report into the site."""
    report = os.environ.get(VARIABLE)
    if report:
        shutil.copy(report, Path(config["site_dir"]) / "report.html")
