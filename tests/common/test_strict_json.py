"""Files that every JSON reader takes: no NaN, at any depth."""

import json

import pytest

from noether.common.numbers import strict_json
from noether.common.whole_file import write_json


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"a": float("nan")}, {"a": None}),
        ({"fields": {"p": {"relative_l2": float("inf")}}}, {"fields": {"p": {"relative_l2": None}}}),
        ([1.5, (-float("inf"), 2)], [1.5, [None, 2]]),
        ({"mean": 0.1, "n": 3, "note": "–", "none": None, "yes": True}, None),
    ],
    ids=["nan", "nested-infinity", "lists", "everything-else-as-it-is"],
)
def test_a_figure_that_is_no_number_is_null(content, expected, tmp_path):
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    write_json(tmp_path / "result.json", content)
    for text in (strict_json(content), (tmp_path / "result.json").read_text()):
        assert json.loads(text, parse_constant=refuse) == (content if expected is None else expected)
