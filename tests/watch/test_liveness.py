"""A run's state as its folder alone tells, on this host and on another."""

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
from noether.runs.records import write_record
from noether.watch.watched_run import LEAST_PATIENCE_S, WatchedRun, patience_s, read_liveness

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
    "died-here": ({"host": HERE}, 5, "lost", "without a word"),
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
