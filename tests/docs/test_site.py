"""The documentation site builds without warnings, and its generated pages match the program."""

import re
import sys
from pathlib import Path

import pytest
from commands_reference import commands_reference
from conftest import BROWSER_LIMIT_MS, REPOSITORY
from processes import run_to_end


@pytest.fixture(scope="module")
def site(environ, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a dead link, a missing anchor, or a page outside all menus is an error (mkdocs.yml)."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = run_to_end(command, environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_without_a_warning(site: Path) -> None:
    page = (site / "index.html").read_text()
    outside = re.findall(r'(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?))"', page)
    assert not outside, "the site must load nothing from the network"


def test_the_pages_open_as_files_and_can_be_searched(browser, site: Path) -> None:
    """In an offline browser that reads from disk, links lead to pages, and the search finds words of other pages."""
    context = browser.new_context(offline=True)
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
    page.goto((site / "index.html").as_uri())
    page.get_by_role("link", name="Concepts", exact=True).first.click()
    page.wait_for_url("**/site/concepts.html")
    page.get_by_role("textbox", name="Search").press_sequentially("preemption")
    found = page.locator(".md-search-result__link").first
    found.wait_for(timeout=BROWSER_LIMIT_MS)
    found.click()
    page.wait_for_url("**/site/slurm.html*")
    context.close()
    assert not complaints


def test_the_reference_of_commands_is_what_they_say() -> None:
    assert (REPOSITORY / "docs" / "commands.md").read_text() == commands_reference(), "run `make docs`"
