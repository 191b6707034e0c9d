"""Files are written atomically, or record by record even if they are removed while open; JSON contains no NaN."""

import json

import pytest

from noether.common.atomic_write import AppendingFile, write_json, write_whole
from noether.common.numbers import strict_json


@pytest.mark.parametrize(("other", "word"), [(None, "removed"), (b"edited\n", "replaced")], ids=str)
def test_a_file_that_was_removed_is_written_again_and_one_that_an_editor_replaced_goes_on(other, word, tmp_path):
    said: list[str] = []
    file = AppendingFile(path := tmp_path / "rows", warn=said.append)
    file.append(b"1\n")
    path.unlink()
    if other is not None:
        path.write_bytes(other)
    file.append(b"2\n")
    file.append(b"3\n")
    file.close()
    assert path.read_bytes() == (other or b"1\n") + b"2\n3\n"
    assert [str(path) in text and word in text for text in said] == [True]


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
