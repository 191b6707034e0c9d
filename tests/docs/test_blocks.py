"""Every block of YAML, JSON, TOML and Python on the pages parses, and the map of docs/own-data.md is one."""

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from conftest import REPOSITORY

from noether.data.cases.case_map import parse_map

BLOCK = re.compile(r"^```(yaml|json|toml|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PARSERS: dict[str, Callable[[str], Any]] = {
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "json": json.loads,
    "toml": tomllib.loads,
    "python": ast.parse,
}


def blocks() -> Iterator[Any]:
    for page in (
        REPOSITORY / "README.md",
        REPOSITORY / "CONTRIBUTING.md",
        *sorted((REPOSITORY / "docs").rglob("*.md")),
    ):
        for found in BLOCK.finditer(page.read_text()):
            line = page.read_text()[: found.start()].count("\n") + 1
            yield pytest.param(*found.groups(), id=f"{page.relative_to(REPOSITORY)}:{line}")


@pytest.mark.parametrize(("language", "text"), list(blocks()))
def test_a_block_parses(language: str, text: str) -> None:
    PARSERS[language](text)


def test_the_map_of_the_page_is_a_map() -> None:
    page = (REPOSITORY / "docs" / "own-data.md").read_text()
    shown = next(text for language, text in BLOCK.findall(page) if language == "yaml" and "sets:" in text)
    about = parse_map(shown, "docs/own-data.md")
    assert about.sets["surface"].fields["wall_shear"].scale == -1
    assert about.forces is not None
