"""A history that grows is read once; what is replaced, cut short, half written or damaged does not fool the reader."""

import os
from pathlib import Path

import pytest

from noether.runs.records import last_evaluation, row_line
from noether.watch import watched_run as followed_rows
from noether.watch.watched_run import FollowedRows, last_rows


def rows(first: int, last: int) -> str:
    return "".join(row_line({"kind": "training", "update": n, "loss": 1 / n}) for n in range(first, last))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.jsonl"
    path.write_text(rows(1, 11))
    return path


def updates(followed: FollowedRows) -> list[int]:
    return [row["update"] for row in followed.read()[0]]


def test_each_byte_is_read_once(file: Path, monkeypatch) -> None:
    followed = FollowedRows(file.parent, file)
    assert updates(followed) == list(range(1, 11))
    assert updates(followed) == []
    parsed: list[bytes] = []
    real = followed_rows.parse_row
    monkeypatch.setattr(followed_rows, "parse_row", lambda line: parsed.append(line) or real(line))
    with file.open("a") as more:
        more.write(rows(11, 14))
    assert updates(followed) == [11, 12, 13]
    assert len(parsed) == 3
    assert followed.offset == followed.size == file.stat().st_size


def test_a_large_file_is_read_in_pieces(file: Path, monkeypatch) -> None:
    monkeypatch.setattr(followed_rows, "MOST_PER_READ", 100)
    followed = FollowedRows(file.parent, file)
    found, readings = [], 0
    while followed.offset < followed.size or not readings:
        found += updates(followed)
        readings += 1
    assert found == list(range(1, 11))
    assert readings > 3


def test_a_line_that_is_half_written_is_read_once_it_is_whole(file: Path) -> None:
    followed = FollowedRows(file.parent, file)
    followed.read()
    line = rows(11, 12)
    with file.open("a") as more:
        more.write(line[:20])
        more.flush()
        assert updates(followed) == []
        more.write(line[20:])
    assert updates(followed) == [11]
    assert followed.damaged == 0


def replaced(file: Path, first: int = 1, last: int = 6) -> None:
    new = file.with_name("new")
    new.write_text(rows(first, last))
    new.replace(file)


def replaced_by_longer(file: Path) -> None:
    replaced(file, 101, 141)


def truncated(file: Path) -> None:
    os.truncate(file, len(rows(1, 6)))


def rewritten_in_place(file: Path) -> None:
    with file.open("r+") as same:
        same.write(rows(101, 141))


@pytest.mark.parametrize("change", [replaced, replaced_by_longer, truncated, rewritten_in_place])
def test_a_file_that_is_another_one_now_is_read_anew(file: Path, change) -> None:
    followed = FollowedRows(file.parent, file)
    followed.read()
    change(file)
    found, anew = followed.read()
    assert anew
    expected = range(1, 6) if change in (replaced, truncated) else range(101, 141)
    assert [row["update"] for row in found] == list(expected)
    assert followed.generation == 1


def test_a_file_that_was_removed_and_came_back_is_read_anew(file: Path) -> None:
    followed = FollowedRows(file.parent, file)
    followed.read()
    file.unlink()
    assert followed.read() == ([], True)
    assert followed.read() == ([], False)
    file.write_text(rows(1, 3))
    assert updates(followed) == [1, 2]


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "training", "update": 11, "loss": 1.0, "crc32": 5}',
        '{"kind": "training", "up',
        '{"kind": "training"}',
        '{"kind": "training", "update": -1}',
        "[" * 100_000,
        "\x00\x01",
        "x" * (followed_rows.LONGEST_LINE + 10),
    ],
    ids=["crc", "cut", "no-update", "negative-update", "deep", "binary", "endless"],
)
def test_a_damaged_line_is_left_out_and_counted(file: Path, line: str) -> None:
    with file.open("a") as more:
        more.write(line + "\n" + rows(12, 13))
    followed = FollowedRows(file.parent, file)
    assert updates(followed) == [*range(1, 11), 12]
    assert followed.damaged == 1


@pytest.mark.parametrize("block", [2**22, 100], ids=["at-once", "in-blocks"])
def test_the_last_evaluation_is_found_further_back(block: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(followed_rows, "MOST_PER_READ", block)
    path = tmp_path / "metrics.jsonl"
    told = [{"kind": "evaluation", "update": n, "selected": n < 3, "metrics": {"loss": n}} for n in (1, 2, 3)]
    path.write_text(rows(1, 9) + "".join(map(row_line, told)) + rows(4, 300))
    found = last_rows(tmp_path, path, 2**12)
    assert last_evaluation(found)["metrics"] == {"loss": 2}
    assert [row["update"] for row in found if row["kind"] == "training"][-1] == 299
    assert last_evaluation(last_rows(tmp_path, path, 2**20))["metrics"] == {"loss": 2}


@pytest.mark.parametrize("size", [150, 2**16], ids=["the-end", "all"])
def test_the_last_rows_are_whole(file: Path, size: int) -> None:
    with file.open("a") as more:
        more.write('{"kind": "tra')
    found = [row["update"] for row in last_rows(file.parent, file, size)]
    assert found == list(range(11 - len(found), 11))
    assert len(found) == (10 if size > 1000 else len(found)) > 0
