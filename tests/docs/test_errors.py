"""The codes of errors, and docs/errors.md, the one file that holds every message."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.errors_reference import errors_reference, messages

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
