"""The table of documented commands: each is found, and says what it needs."""

import re

import pytest
from documented import NEEDS, PROGRAMS, REPOSITORY, commands, pages, run_page

ALL = [(str(page.relative_to(REPOSITORY)), line) for page in pages() for line in commands(page, *PROGRAMS)]


def test_the_pages_have_their_commands() -> None:
    assert len(ALL) > 80
    assert {page for page, _ in ALL} >= {"README.md", "docs/slurm.md", "docs/containers.md", "docs/shapenet.md"}


def test_every_line_of_the_table_is_of_a_command() -> None:
    for where, what, needed, _ in NEEDS:
        assert any(re.search(where, page) and re.search(what, line) for page, line in ALL), (where, what, needed)


@pytest.mark.slow
def test_a_transcript_tells_what_failed(tmp_path) -> None:
    page = REPOSITORY / "docs" / "releases.md"
    lines, failed = run_page(page, full=False)
    assert failed == 0
    assert "Not run here. It needs a release that was published." in lines
