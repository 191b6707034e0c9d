"""Every code block of the pages parses, every documented command exists, and docs/errors.md lists every message."""

import ast
import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from documented import NEEDS, PROGRAMS, REPOSITORY, commands, pages, run_page

from noether.core.tasks.base import Task
from noether.launch.process_group.group import Group
from noether.training.callbacks import Callback
from noether.training.open_run import OpenRun
from noether.training.time_use import UpdateMetrics
from tests.errors_reference import errors_reference, messages

BLOCK = re.compile(r"^```(yaml|json|toml|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PARSERS: dict[str, Callable[[str], Any]] = {
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "json": json.loads,
    "toml": tomllib.loads,
    "python": ast.parse,
}


def blocks() -> Iterator[Any]:
    for page in (*REPOSITORY.glob("[CR]*.md"), *sorted((REPOSITORY / "docs").rglob("*.md"))):
        for found in BLOCK.finditer(page.read_text()):
            line = page.read_text()[: found.start()].count("\n") + 1
            yield pytest.param(*found.groups(), id=f"{page.relative_to(REPOSITORY)}:{line}")


@pytest.mark.parametrize(("language", "text"), list(blocks()))
def test_a_block_parses(language: str, text: str) -> None:
    PARSERS[language](text)


PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


def test_the_page_of_errors_is_what_the_source_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == errors_reference(), "run `make docs`"


def test_a_code_has_one_meaning_and_is_words_with_hyphens() -> None:
    meanings: dict[str, set[str]] = {}
    for message in messages():
        meanings.setdefault(message.code, set()).add(message.meaning)
    assert len(meanings) > 300
    assert [code for code, texts in meanings.items() if len(texts) > 1] == []
    assert [code for code in meanings if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)] == []


def test_a_refusal_ends_its_first_line_with_its_code(noether: Callable[..., Any]) -> None:
    done = noether("plan", "model.dimm=64")
    first, seen, *_ = done.err.splitlines()
    assert done.code == 2
    assert first.endswith(" [unknown-key]")
    assert seen == "  seen      model.dimm=64"


ALL = [(str(page.relative_to(REPOSITORY)), line) for page in pages() for line in commands(page, *PROGRAMS)]


def test_the_pages_have_their_commands() -> None:
    assert len(ALL) > 80
    assert {page for page, _ in ALL} >= {"README.md", "docs/slurm.md", "docs/containers.md", "docs/shapenet.md"}


def test_every_line_of_the_table_is_of_a_command() -> None:
    for where, what, needed, _ in NEEDS:
        assert any(re.search(where, page) and re.search(what, line) for page, line in ALL), (where, what, needed)


@pytest.mark.parametrize("page", sorted((REPOSITORY / "decisions").glob("*.md")), ids=lambda page: page.stem)
def test_a_decision_has_its_three_parts_and_at_most_250_words(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^#.*", text, re.MULTILINE)[1:] == ["## Context", "## Decision", "## Consequences"]
    assert len(text.split()) <= 250
    assert f"(decisions/{page.name})" in (REPOSITORY / "CONTRIBUTING.md").read_text()


GENERATED = ("commands.md", "configuration.md", "errors.md", "lint-rules.md")


def test_the_docs_and_the_changelog_stay_short() -> None:
    texts = [page.read_text() for page in (REPOSITORY / "docs").rglob("*.md") if page.name not in GENERATED]
    assert sum(len(text.split()) for text in texts) <= 18_000
    section = (REPOSITORY / "CHANGELOG.md").read_text().partition("\n## 0.1.0")[2].partition("\n## ")[0]
    assert 0 < section.count("\n") <= 40


@pytest.mark.slow
def test_a_transcript_tells_what_failed(tmp_path) -> None:
    page = REPOSITORY / "docs" / "releases.md"
    lines, failed = run_page(page, full=False)
    assert failed == 0
    assert "Not run here. It needs a release that was published." in lines


@pytest.mark.parametrize("kind", [Task, Callback, OpenRun, Group, UpdateMetrics])
def test_the_page_of_own_classes_names_every_member(kind: type) -> None:
    code = re.findall(r"`([^`\n]+)`", (REPOSITORY / "docs" / "own-classes.md").read_text())
    named = set(re.findall(r"\w+", " ".join(code)))
    own = [{**vars(base), **inspect.get_annotations(base)} for base in kind.__mro__[:-1]]
    assert {name for members in own for name in members if name[0] != "_"} <= named
