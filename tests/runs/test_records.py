"""Damage in the records of a run folder is reported with file and line, and never stops a run."""

import json

import pytest

from noether.runs import records
from noether.runs.folder import RunFolder
from noether.runs.lease import read_attempts, record_attempt, record_outcome

ROWS = [{"kind": "training", "update": update, "loss": 1.0 / update} for update in (1, 2, 3)]
LINES = records.rows_text(ROWS).encode().splitlines(keepends=True)

DAMAGES = {
    "one-flipped-bit-in-a-records.number": (LINES[1].replace(b'"loss": 0.5', b'"loss": 0.7'), "CRC-32"),
    "not-utf-8": (b"\xff" + LINES[1], "utf-8"),
    "a-records.number": (b"3\n", "instead of an object"),
    "a-list": (b"[]\n", "instead of an object"),
    "null": (b"null\n", "instead of an object"),
    "nested": (b'{"a":' * 100_000 + b"\n", "nested"),
    "cut-in-the-middle": (LINES[1][:20] + b"\n", "Expecting property"),
    "zeros": (bytes(30) + b"\n", "Expecting value"),
}


@pytest.mark.parametrize(("line", "seen"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_row_is_named_and_the_others_are_kept(line, seen, tmp_path) -> None:
    path, said = tmp_path / "metrics.jsonl", []
    path.write_bytes(LINES[0] + line + LINES[2])
    assert records.read_metrics(path, said.append) == [ROWS[0], ROWS[2]]
    assert [(f"{path}:2" in text, seen in text) for text in said] == [(True, True)]


@pytest.mark.parametrize(
    "row", [{"update": None, "kind": "training"}, {"update": 1}, {"kind": 3, "update": 1}], ids=str
)
def test_a_row_without_a_kind_or_an_update_is_named(row, tmp_path) -> None:
    path, said = tmp_path / "metrics.jsonl", []
    path.write_text(records.rows_text([*ROWS, row]))
    assert records.read_metrics(path, said.append) == ROWS
    assert len(said) == 1


@pytest.mark.parametrize(
    ("order", "kept", "named"),
    [((0, 1, 1, 2), (0, 1, 2), "twice"), ((0, 2, 1), (0, 1, 2), "after later ones")],
    ids=["doubled", "exchanged"],
)
def test_a_row_out_of_its_place_is_named(order, kept, named, tmp_path) -> None:
    path, said = tmp_path / "metrics.jsonl", []
    path.write_bytes(b"".join(LINES[index] for index in order))
    assert records.read_metrics(path, said.append) == [ROWS[index] for index in kept]
    assert [("update 2" in text, named in text) for text in said] == [(True, True)]


def test_a_checkpoint_that_was_on_disk_after_later_updates_is_in_its_place(tmp_path) -> None:
    path, saved = tmp_path / "metrics.jsonl", {"kind": "checkpoint", "update": 1}
    path.write_text(records.rows_text([*ROWS[:2], saved, ROWS[2]]))
    assert records.read_metrics(path, pytest.fail) == [ROWS[0], saved, *ROWS[1:]]


def test_a_row_that_a_kill_cut_off_is_left_out_without_a_word(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(LINES[0] + LINES[1][:10])
    assert records.read_rows(path, pytest.fail) == ROWS[:1]


def test_rows_that_a_person_wrote_have_no_checksum_and_are_read(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "note", "update": 1, "text": "a\x85b\u2028c"}\n')
    assert records.read_metrics(path, pytest.fail)[0]["text"] == "a\x85b\u2028c"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b'{"metrics": {"loss": 0.5}, "sha256": "0"}', b'{"a":' * 100_000],
    ids=["empty", "cut", "list", "not-utf-8", "flipped", "nested"],
)
def test_a_damaged_record_is_named_and_counts_as_missing(content, tmp_path) -> None:
    path, said = tmp_path / "result.json", []
    path.write_bytes(content)
    assert records.read_record(path, said.append) == {}
    assert str(path) in said[0]
    with pytest.raises(ValueError):  # noqa: PT011  Each damage has words of its own.
        records.parse_record(path)


def test_a_record_is_what_was_written(tmp_path) -> None:
    content = {"a": [1, 2.5, None], "b": {"ü": float("nan")}}
    records.write_record(tmp_path / "x.json", content)
    assert records.parse_record(tmp_path / "x.json") == {"a": [1, 2.5, None], "b": {"ü": None}}
    assert len(json.loads((tmp_path / "x.json").read_text())["sha256"]) == 64


@pytest.mark.parametrize("value", [None, "3", True, [1], float("nan"), float("inf"), 10**400], ids=str)
def test_what_is_not_a_number_is_none(value) -> None:
    assert records.number({"x": value}, "x") is None


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"3\n", b'{"records.number": "x"}\n', b'{"records.number": 1, "start_update": null}\n']
)
def test_damaged_attempts_neither_stop_a_run_nor_its_requeue(content, tmp_path) -> None:
    """Regression: after SIGTERM, the run exited with 1 instead of 75, so its job was not requeued."""
    folder = RunFolder(tmp_path)
    folder.attempts.write_bytes(content)
    record_attempt(folder, 2, 4, "n1")
    record_outcome(folder, 2, 6, "SIGTERM")
    assert [(row.number, row.last_update) for row in read_attempts(folder)] == [(2, 6)]


def test_the_mean_rate_is_that_of_the_time_not_of_the_rows() -> None:
    """10 samples at 1 per second and 10 at 9 per second take 11.1 s; the live page and result.json agree."""
    assert records.mean_rate([{"samples_per_second": 1.0}, {"samples_per_second": 9.0}, {}]) == pytest.approx(1.8)
    assert records.mean_rate([{"samples_per_second": 0.0}]) is None
    # Rates of updates are averaged likewise: 200 updates at 100 per second and one at 10 per second take 2.1 s.
    rows = [{"update": 100, "samples_per_second": 100.0}, {"update": 200, "samples_per_second": 100.0}]
    assert records.mean_rate([*rows, {"update": 201, "samples_per_second": 10.0}]) == pytest.approx(201 / 2.1)
