"""Which rank failed first and what the user reads of it: made-up endings, told apart."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from noether.common import container
from noether.common.errors import RequestError
from noether.launch.detect.placement import Device, Endpoint, Worker
from noether.launch.processes.context import RunInfo, WorkerContext, WorkerReport
from noether.launch.processes.failure import (
    death_report,
    describe_briefly,
    describe_failure,
    first_failure,
    run_exit_code,
    where_in_stack,
)
from noether.launch.processes.rank_state import RankPosition
from noether.launch.processes.worker import REPORT_CHARACTERS, failing_code, failure_report, shortened, write_error_file


def ending(
    rank: int, kind: str, code: int, time: float = 0.0, message: str = "m", trace: str = "", follows: str = ""
) -> WorkerReport:
    return WorkerReport(rank, "box", kind, message, code, pid=100 + rank, time=time, traceback=trace, follows=follows)


def context_of(rank: int) -> WorkerContext:
    return WorkerContext(Worker(rank, rank, 0, Device("cpu")), 2, 2, "box", Endpoint("127.0.0.1", 1), 0, 1)


ECHO, LATE = {"follows": "lost-peer"}, {"follows": "timed-out"}
WAITING = replace(ending(0, "died", 134, 2.0), position=RankPosition(3, "barrier", 9))
DONE_0, DONE_1 = ending(0, "finished", 0), ending(1, "finished", 0)


@pytest.mark.parametrize(
    ("reports", "first", "code"),
    [
        pytest.param([DONE_0, DONE_1], None, 0, id="all done"),
        pytest.param([ending(0, "finished", 75), ending(1, "finished", 75)], None, 75, id="all checkpointed"),
        pytest.param([DONE_0, ending(1, "finished", 75)], None, 75, id="one done, one checkpointed"),
        pytest.param([DONE_0, ending(1, "finished", 3)], 1, 3, id="a code of the target's own"),
        pytest.param([ending(0, "failed", 1, 2.0), ending(1, "failed", 1, 1.0)], 1, 1, id="the earliest report"),
        pytest.param([ending(0, "failed", 1, 2.0), ending(1, "refused", 2, 1.0)], 1, 2, id="2 is kept"),
        pytest.param([ending(0, "finished", 75, 1.0), ending(1, "died", 137, 2.0)], 1, 137, id="75 and a death"),
        pytest.param([ending(0, "left", 1, 1.0), DONE_1], 0, 1, id="left early"),
        pytest.param(
            [ending(0, "failed", 1, 10.0), ending(1, "died", 137, 10.4)], 1, 137, id="a death is seen late, and led"
        ),
        pytest.param(
            [ending(0, "failed", 1, 10.0), ending(1, "died", 137, 11.6)], 0, 1, id="a death much later followed"
        ),
        pytest.param(
            [ending(0, "failed", 1, 10.0), ending(1, "died", 134, 10.4)], 0, 1, id="torch aborts on a peer's end"
        ),
        pytest.param([ending(0, "failed", 1, 1.0, **ECHO), ending(1, "failed", 1, 2.0)], 1, 1, id="an echo came first"),
        pytest.param([ending(0, "failed", 1, 1.0, **ECHO), ending(1, "lost", 1, 2.0)], 1, 1, id="a host is lost"),
        pytest.param([ending(0, "refused", 1, 1.0, **ECHO), ending(1, "refused", 2, 1.5)], 1, 2, id="refused, gone"),
        pytest.param([ending(0, "failed", 1, 2.0, **ECHO), ending(1, "finished", 0, 1.0)], 1, 1, id="returned early"),
        pytest.param(
            [ending(0, "died", 134, 2.0), ending(1, "finished", 0, 1.0)], 0, 134, id="aborted after the result"
        ),
        pytest.param(
            [ending(0, "died", 134, 2.0), ending(1, "failed", 1, 1.9, **ECHO)], 0, 134, id="aborted, and echoed"
        ),
        pytest.param([WAITING, ending(1, "finished", 0, 1.0)], 1, 134, id="aborted in a collective"),
        pytest.param([ending(0, "failed", 1, 9.0, **LATE), ending(1, "finished", 0, 1.0)], 0, 1, id="timed out alone"),
    ],
)
def test_first_failure_and_exit_code(reports: list[WorkerReport], first: int | None, code: int) -> None:
    for order in (reports, reports[::-1]):
        failure = first_failure(order)
        assert (failure.rank if failure else None) == first
        assert run_exit_code(order) == code


@pytest.mark.parametrize(
    ("exitcode", "forwarded", "words", "code"),
    [
        pytest.param(-9, [], "was killed by SIGKILL (often the out-of-memory killer)", 137, id="SIGKILL"),
        pytest.param(-11, [], "was killed by SIGSEGV", 139, id="SIGSEGV"),
        pytest.param(-15, [], "was killed by SIGTERM", 143, id="SIGTERM from elsewhere"),
        pytest.param(-15, [15], "was ended by SIGTERM, passed on", 143, id="SIGTERM passed on"),
        pytest.param(0, [], "left early, with exit code 0", 1, id="os._exit(0)"),
        pytest.param(75, [], "left early, with exit code 75", 1, id="os._exit(75) saved nothing"),
        pytest.param(3, [], "left early, with exit code 3", 3, id="os._exit(3)"),
    ],
)
def test_a_silent_death_is_named(exitcode: int, forwarded: list[int], words: str, code: int) -> None:
    report = death_report(context_of(1), 4711, exitcode, forwarded, 12.0)
    assert report.message.startswith(words)
    assert (report.rank, report.host, report.pid, report.time, report.kind) == (1, "box", 4711, 12.0, "died")
    assert report.exit_code == code


@pytest.mark.parametrize(
    ("code", "kept"), [(0, 1), (1, 1), (2, 2), (75, 1), (143, 143), (255, 255), (256, 1), (-1, 1)], ids=str
)
def test_a_failing_code_is_never_taken_for_success(code: int, kept: int) -> None:
    assert failing_code(code) == kept


@pytest.mark.parametrize(
    ("error", "kind", "message", "traced", "code"),
    [
        pytest.param(ValueError("boom"), "failed", "ValueError: boom", True, 1, id="an exception"),
        pytest.param(
            RequestError("no-such-model", "x", seen="a\nb", fix="y=1"), "refused", "x", False, 2, id="a request"
        ),
        pytest.param(SystemExit(0), "left", "left early by sys.exit(0)", True, 1, id="sys.exit(0)"),
        pytest.param(SystemExit(3), "left", "left early by sys.exit(3)", True, 3, id="sys.exit(3)"),
        pytest.param(SystemExit("bye"), "left", "left early by sys.exit('bye')", True, 1, id="sys.exit(text)"),
        pytest.param(KeyboardInterrupt(), "interrupted", "interrupted", False, 130, id="Ctrl-C"),
    ],
)
def test_how_a_target_that_raised_is_reported(
    error: BaseException, kind: str, message: str, traced: bool, code: int
) -> None:
    report = failure_report(error, 1, "n1")
    assert report.kind == kind
    assert report.message.startswith(message)
    assert bool(report.traceback) == traced
    assert report.exit_code == code
    if isinstance(error, RequestError):
        assert report.refusal.parts == error.parts


def test_what_the_user_reads(tmp_path: Path) -> None:
    failure = ending(1, "failed", 1, message="ValueError: boom", trace="Traceback …\nValueError: boom\n")
    others = {0: "in all_reduce, ended by its parent process", 2: "reported X", 3: "reported X"}
    assert describe_failure(failure, others, RunInfo(log_folder=tmp_path), 4).splitlines() == [
        "noether: rank 1 on box failed: ValueError: boom",
        "Traceback …",
        "ValueError: boom",
        "  others    rank 0: in all_reduce, ended by its parent process; ranks 2, 3: reported X",
        f"  logs      {tmp_path}",
    ]


def test_a_refusal_in_the_midst_of_a_run_says_when(tmp_path: Path) -> None:
    refused = replace(ending(1, "refused", 2, message="the loss is nan"), position=RankPosition(5000))
    assert "rank 1 on box failed: the loss is nan" in describe_briefly(refused, [0], None)
    assert "  when      in update 5000" in describe_failure(refused, {}, RunInfo(log_folder=tmp_path), 2).splitlines()
    at_start = replace(refused, position=RankPosition())
    assert "rank 1 on box refused the run: the loss is nan" in describe_briefly(at_start, [0], None)


def test_a_silent_death_is_shown_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "rank-1.log").write_text("".join(f"line {i}\n" for i in range(100)))
    text = describe_failure(ending(1, "died", 139, message="was killed by SIGSEGV"), {}, RunInfo(log_folder=tmp_path))
    assert text.startswith("noether: rank 1 on box was killed by SIGSEGV\n  | line 80\n")
    assert "  | line 99\n" in text


@pytest.mark.parametrize(
    ("stack", "phrase"),
    [
        pytest.param(
            'Thread 0x01 (most recent call first):\n  File "/x/lib/python3.11/threading.py", line 1 in wait\n\n'
            "Current thread 0x02 (most recent call first):\n"
            '  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3 in all_reduce\n'
            '  File "/home/u/train.py", line 88 in step\n  File "/home/u/train.py", line 9 in main\n',
            "in all_reduce, called from step (train.py:88)",
            id="in a collective",
        ),
        pytest.param(
            'Current thread 0x02 (most recent call first):\n  File "/home/u/train.py", line 88 in step\n',
            "in step (train.py:88)",
            id="in its own code",
        ),
        pytest.param("", "running", id="no answer"),
    ],
)
def test_where_a_rank_was(stack: str, phrase: str) -> None:
    assert where_in_stack(stack) == phrase


def test_a_report_fits_one_write_and_its_file_has_all(tmp_path: Path) -> None:
    long = "start" + "x" * 100_000 + "end"
    report = ending(3, "failed", 1, message=long, trace=long)
    short = shortened(report)
    assert len(pickle.dumps(short)) < 2 * REPORT_CHARACTERS
    assert short.traceback.startswith("start")
    assert short.traceback.endswith("end")
    assert shortened(DONE_0) == DONE_0
    write_error_file(report, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-3.error.json"]
    assert json.loads((tmp_path / "rank-3.error.json").read_text())["traceback"] == long


def test_a_full_disk_does_not_hide_the_failure(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    write_error_file(ending(0, "failed", 1), tmp_path / "logs")
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_a_refusal_of_a_rank_in_the_image_says_what_its_container_must_be_given(tmp_path: Path, monkeypatch) -> None:
    record = tmp_path / "image.json"
    record.touch()
    monkeypatch.setattr(container, "IMAGE_RECORD", record)
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/noether.sif")
    error = RequestError("no-data", "no data", fix="dataset_root=FOLDER", mount="/data/cars")
    assert "--bind /data/cars noether.sif" in failure_report(error, 1, "n1").fix
