"""Files that are written whole or grow by whole records, what takes them away while they are open, and strict JSON."""

import json

import pytest

from noether.common.numbers import strict_json
from noether.common.whole_file import AppendingFile, write_json, write_whole


def test_a_file_that_was_removed_is_written_again_with_what_it_held(tmp_path) -> None:
    said: list[str] = []
    file = AppendingFile(path := tmp_path / "rows", warn=said.append)
    file.append(b"1\n")
    path.unlink()
    file.append(b"2\n")
    file.append(b"3\n")
    file.close()
    assert path.read_bytes() == b"1\n2\n3\n"
    assert [str(path) in text and "removed" in text for text in said] == [True]


def test_a_file_that_was_replaced_goes_on_as_the_new_one(tmp_path) -> None:
    """As an editor saves it."""
    said: list[str] = []
    file = AppendingFile(path := tmp_path / "rows", warn=said.append)
    file.append(b"1\n")
    (tmp_path / "other").write_bytes(b"edited\n")
    (tmp_path / "other").replace(path)
    file.append(b"2\n")
    file.close()
    assert path.read_bytes() == b"edited\n2\n"
    assert ["replaced" in text for text in said] == [True]


def test_a_file_never_takes_the_place_of_a_folder(tmp_path) -> None:
    (path := tmp_path / "report").mkdir()
    (path / "kept").touch()
    with pytest.raises(IsADirectoryError):
        write_whole(path, "text")
    assert [found.name for found in tmp_path.rglob("*")] == ["report", "kept"]


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
