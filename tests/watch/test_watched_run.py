"""A run seen only through its folder: its state on any host, and its history, each row of which is read only once."""

import os
import socket
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from noether.common.processes import boot_id, process_id
from noether.launch.processes.context import WorkerReport
from noether.launch.processes.worker import write_error_file
from noether.runs.folder import RunFolder
from noether.runs.lease import Attempt
from noether.runs.records import last_evaluation, row_line, write_record
from noether.watch import watched_run
from noether.watch.watched_run import LEAST_PATIENCE_S, FollowedRows, WatchedRun, last_rows, patience_s, read_liveness

NOW = time.time()


def start(folder: RunFolder, host: str, exit_code: int | None = None, pid: int = 2**22 + 1) -> None:
    own = process_id(os.getpid())
    started = own.started if pid == os.getpid() and own else 5
    attempt = Attempt(1, "ab", None, False, host, pid, started, boot_id(), NOW - 1000, exit_code)
    write_record(folder.attempt, asdict(attempt))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path)
    run.logs.mkdir()
    run.config.write_text("seed: 1\n")
    return run


def age(folder: RunFolder, seconds: float) -> None:
    for path in folder.path.rglob("*"):
        os.utime(path, (NOW - seconds, NOW - seconds))


HERE = socket.gethostname()
STATES = {
    "on-this-host": ({"host": HERE, "pid": os.getpid()}, 5000, "running", "pid"),
    "elsewhere": ({"host": "node7"}, 5, "running", "node7"),
    "elsewhere-and-silent": ({"host": "node7"}, LEAST_PATIENCE_S + 5, "silent", "node7"),
    "elsewhere-failed": ({"host": "node7", "exit_code": 1}, 5, "failed", "exit code 1"),
    "died-here": ({"host": HERE}, 5, "lost", "without a record"),
    "submitted": (None, 5, "waiting", "job 17"),
}


@pytest.mark.parametrize(("started", "silent_for", "state", "word"), STATES.values(), ids=STATES)
def test_the_state_of_a_run(folder: RunFolder, started, silent_for: float, state: str, word: str) -> None:
    if started:
        start(folder, **started)
    else:
        write_record(folder.job, {"job": "17"})
    age(folder, silent_for)
    seen = read_liveness(folder, [], NOW)
    assert seen.state == state
    assert word in seen.why


def test_a_log_that_grows_is_a_sign_of_life(folder: RunFolder) -> None:
    start(folder, "node7")
    age(folder, 500)
    (folder.logs / "rank-3.log").write_text("still here\n")
    assert read_liveness(folder, [], NOW).state == "running"


def test_a_run_that_writes_seldom_is_given_more_time(folder: RunFolder) -> None:
    rows = [{"kind": "training", "update": k, "time": 100.0 * k} for k in range(5)]
    assert patience_s(rows) == 500
    start(folder, "node7")
    age(folder, 300)
    assert read_liveness(folder, rows, NOW).state == "running"
    assert read_liveness(folder, [], NOW).state == "silent"


TRACEBACK = "Traceback (most recent call last):\nValueError: caught and printed by the user's own code\n"


def report(kind: str, exit_code: int, follows: str = "") -> WorkerReport:
    return WorkerReport(1, "n1", kind, "it ended", exit_code, follows=follows)


@pytest.mark.parametrize(
    ("log", "said", "state"),
    [
        pytest.param("", report("failed", 1), "failed", id="its own failure"),
        pytest.param("", report("died", 137), "failed", id="killed"),
        pytest.param(TRACEBACK, None, "ended", id="a traceback that was printed"),
        pytest.param(TRACEBACK, report("failed", 1, "lost-peer"), "ended", id="an echo"),
        pytest.param(TRACEBACK, report("died", 134), "ended", id="aborted by torch"),
    ],
)
def test_the_rank_that_failed_is_the_one_whose_report_says_so(folder: RunFolder, log, said, state: str) -> None:
    start(folder, "node7", exit_code=1)
    (folder.logs / "rank-1.log").write_text(log)
    if said:
        write_error_file(said, folder.logs)
    assert [rank["state"] for rank in WatchedRun(folder).detail()["ranks"]] == [state]


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
    real = watched_run.parse_row
    monkeypatch.setattr(watched_run, "parse_row", lambda line: parsed.append(line) or real(line))
    with file.open("a") as more:
        more.write(rows(11, 14))
    assert updates(followed) == [11, 12, 13]
    assert len(parsed) == 3
    assert followed.offset == followed.size == file.stat().st_size


def test_a_large_file_is_read_in_pieces(file: Path, monkeypatch) -> None:
    monkeypatch.setattr(watched_run, "MOST_PER_READ", 100)
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
    ['{"kind": "training", "update": 11, "loss": 1.0, "crc32": 5}', '{"kind": "training", "up', '{"kind": "training"}',
     '{"kind": "training", "update": -1}', "[" * 100_000, "\x00\x01", "x" * (watched_run.LONGEST_ROW + 10)],
    ids=["crc", "cut", "no-update", "negative-update", "deep", "binary", "endless"],
)  # fmt: skip
def test_a_damaged_line_is_left_out_and_counted(file: Path, line: str) -> None:
    with file.open("a") as more:
        more.write(line + "\n" + rows(12, 13))
    followed = FollowedRows(file.parent, file)
    assert updates(followed) == [*range(1, 11), 12]
    assert followed.damaged == 1


@pytest.mark.parametrize("block", [2**22, 100], ids=["at-once", "in-blocks"])
def test_the_last_evaluation_is_found_further_back(block: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(watched_run, "MOST_PER_READ", block)
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
