"""From made-up exit reports, find the rank that failed first or never joined, and the message for the user."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from noether.common import container
from noether.common.errors import EndedByAnother, RanksLate, RequestError
from noether.config.distributed import DistributedConfig
from noether.launch.detect.placement import Device, Endpoint, Worker
from noether.launch.processes import failure as failures
from noether.launch.processes import worker
from noether.launch.processes.context import RankPosition, RunInfo, WorkerContext, WorkerReport


def ending(rank: int, kind: str, code: int, time: float = 0.0, message: str = "m", **more: str) -> WorkerReport:
    return WorkerReport(rank, "box", kind, message, code, pid=100 + rank, time=time, **more)


def context_of(rank: int) -> WorkerContext:
    return WorkerContext(Worker(rank, rank, 0, Device("cpu")), 2, 2, "box", Endpoint("127.0.0.1", 1), 0, 1)


ECHO, LATE = {"follows": "lost-peer"}, {"follows": "timed-out"}
WAITING = replace(ending(0, "died", 134, 2.0), position=RankPosition(3, "barrier", 9))
DONE_0, DONE_1 = ending(0, "finished", 0), ending(1, "finished", 0)


def failed(rank: int, when: float, **follows: str) -> WorkerReport:
    return ending(rank, "failed", 1, when, **follows)


FIRST = {
    "all done": ([DONE_0, DONE_1], None, 0),
    "all checkpointed": ([ending(0, "finished", 75), ending(1, "finished", 75)], None, 75),
    "one done, one checkpointed": ([DONE_0, ending(1, "finished", 75)], None, 75),
    "a code of the target's own": ([DONE_0, ending(1, "finished", 3)], 1, 3),
    "the earliest report": ([failed(0, 2.0), failed(1, 1.0)], 1, 1),
    "2 is kept": ([failed(0, 2.0), ending(1, "refused", 2, 1.0)], 1, 2),
    "75 and a death": ([ending(0, "finished", 75, 1.0), ending(1, "died", 137, 2.0)], 1, 137),
    "a death is seen late, and led": ([failed(0, 10.0), ending(1, "died", 137, 10.4)], 1, 137),
    "a death much later followed": ([failed(0, 10.0), ending(1, "died", 137, 11.6)], 0, 1),
    "torch aborts on a peer's end": ([failed(0, 10.0), ending(1, "died", 134, 10.4)], 0, 1),
    "an echo came first": ([failed(0, 1.0, **ECHO), failed(1, 2.0)], 1, 1),
    "a host is lost": ([failed(0, 1.0, **ECHO), ending(1, "lost", 1, 2.0)], 1, 1),
    "refused, gone": ([ending(0, "refused", 1, 1.0, **ECHO), ending(1, "refused", 2, 1.5)], 1, 2),
    "returned early": ([failed(0, 2.0, **ECHO), ending(1, "finished", 0, 1.0)], 1, 1),
    "aborted after the result": ([ending(0, "died", 134, 2.0), ending(1, "finished", 0, 1.0)], 0, 134),
    "aborted, and echoed": ([ending(0, "died", 134, 2.0), failed(1, 1.9, **ECHO)], 0, 134),
    "aborted in a collective": ([WAITING, ending(1, "finished", 0, 1.0)], 1, 134),
    "timed out alone": ([failed(0, 9.0, **LATE), ending(1, "finished", 0, 1.0)], 0, 1),
}


@pytest.mark.parametrize(("reports", "first", "code"), FIRST.values(), ids=FIRST)
def test_first_failure_and_exit_code(reports: list[WorkerReport], first: int | None, code: int) -> None:
    for order in (reports, reports[::-1]):
        failure = failures.first_failure(order)
        assert (failure.rank if failure else None) == first
        assert failures.run_exit_code(order) == code


@pytest.mark.parametrize(
    ("exitcode", "forwarded", "words", "code"),
    [
        pytest.param(-9, [], "was killed by SIGKILL (the kernel reports no kill", 137, id="SIGKILL"),
        pytest.param(-15, [], "was killed by SIGTERM", 143, id="SIGTERM from elsewhere"),
        pytest.param(-15, [15], "was ended by SIGTERM, forwarded", 143, id="SIGTERM passed on"),
        pytest.param(75, [], "left early, with exit code 75", 1, id="os._exit(75) saved nothing"),
        pytest.param(3, [], "left early, with exit code 3", 3, id="os._exit(3)"),
    ],
)
def test_a_silent_death_is_named(exitcode: int, forwarded: list[int], words: str, code: int) -> None:
    report = failures.death_report(context_of(1), 4711, exitcode, forwarded, 12.0)
    assert report.message.startswith(words)
    assert (report.rank, report.host, report.pid, report.time, report.kind) == (1, "box", 4711, 12.0, "died")
    assert report.exit_code == code


@pytest.mark.parametrize(("code", "kept"), [(0, 1), (2, 2), (75, 1), (143, 143), (256, 1), (-1, 1)], ids=str)
def test_a_failing_code_is_never_taken_for_success(code: int, kept: int) -> None:
    assert worker.failing_code(code) == kept


@pytest.mark.parametrize(
    ("error", "kind", "message", "traced", "code"),
    [
        pytest.param(ValueError("boom"), "failed", "ValueError: boom", True, 1, id="an exception"),
        pytest.param(RequestError("a-code", "x", seen="a\nb", fix="y=1"), "refused", "x", False, 2, id="a request"),
        pytest.param(SystemExit(0), "left", "left early by sys.exit(0)", False, 1, id="sys.exit(0)"),
        pytest.param(SystemExit(3), "left", "left early by sys.exit(3)", False, 3, id="sys.exit(3)"),
        pytest.param(KeyboardInterrupt(), "interrupted", "interrupted", False, 130, id="Ctrl-C"),
    ],
)
def test_how_a_target_that_raised_is_reported(error, kind: str, message: str, traced: bool, code: int) -> None:
    report = worker.failure_report(error, 1, "n1")
    assert report.kind == kind
    assert report.message.startswith(message)
    assert bool(report.traceback) == traced
    assert report.exit_code == code
    if isinstance(error, RequestError):
        assert report.refusal.parts == error.parts


def test_what_the_user_reads(tmp_path: Path) -> None:
    failure = ending(1, "failed", 1, message="ValueError: boom", traceback="Traceback …\nValueError: boom\n")
    others = {0: "in all_reduce, ended by its parent process", 2: "reported X", 3: "reported X"}
    assert failures.describe_failure(failure, others, RunInfo(log_folder=tmp_path), 4).splitlines() == [
        "noether: rank 1 on box failed: ValueError: boom",
        "Traceback …",
        "ValueError: boom",
        "  others    rank 0: in all_reduce, ended by its parent process; ranks 2, 3: reported X",
        f"  logs      {tmp_path}",
    ]


def test_a_refusal_in_the_midst_of_a_run_says_when(tmp_path: Path) -> None:
    refused = replace(ending(1, "refused", 2, message="the loss is nan"), position=RankPosition(5000))
    assert "rank 1 on box failed: the loss is nan" in failures.describe_briefly(refused, [0], None)
    text = failures.describe_failure(refused, {}, RunInfo(log_folder=tmp_path), 2)
    assert "  when      in update 5000" in text.splitlines()
    at_start = replace(refused, position=RankPosition())
    assert "rank 1 on box refused the run: the loss is nan" in failures.describe_briefly(at_start, [0], None)


def test_a_silent_death_is_shown_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "rank-1.log").write_text("".join(f"line {i}\n" for i in range(100)))
    died = ending(1, "died", 139, message="was killed by SIGSEGV")
    text = failures.describe_failure(died, {}, RunInfo(log_folder=tmp_path))
    assert text.startswith("noether: rank 1 on box was killed by SIGSEGV\n  | line 80\n")
    assert "  | line 99\n" in text


def test_where_a_rank_was() -> None:
    stack = (
        'Thread 0x01 (most recent call first):\n  File "/x/lib/python3.11/threading.py", line 1 in wait\n\n'
        "Current thread 0x02 (most recent call first):\n"
        '  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3 in all_reduce\n'
        '  File "/home/u/train.py", line 88 in step\n  File "/home/u/train.py", line 9 in main\n'
    )
    assert failures.where_in_stack(stack) == "in all_reduce, called from step (train.py:88)"
    assert failures.where_in_stack("") == "running", "a rank without a stack counts as running"


def test_a_report_fits_one_write_and_its_file_has_all(tmp_path: Path) -> None:
    long = "start" + "x" * 100_000 + "end"
    report = ending(3, "failed", 1, message=long, traceback=long)
    short = worker.shortened(report)
    assert len(pickle.dumps(short)) < 2 * worker.REPORT_CHARACTERS
    assert short.traceback.startswith("start")
    assert short.traceback.endswith("end")
    assert worker.shortened(DONE_0) == DONE_0
    worker.write_error_file(report, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-3.error.json"]
    assert json.loads((tmp_path / "rank-3.error.json").read_text())["traceback"] == long


def test_a_full_disk_does_not_hide_the_failure(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    worker.write_error_file(ending(0, "failed", 1), tmp_path / "logs")
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_a_refusal_of_a_rank_in_the_image_says_what_its_container_must_be_given(tmp_path: Path, monkeypatch) -> None:
    record = tmp_path / "image.json"
    record.touch()
    monkeypatch.setattr(container, "IMAGE_RECORD", record)
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/noether.sif")
    error = RequestError("no-data", "no data", fix="dataset_root=FOLDER", mount="/data/cars")
    assert "--bind /data/cars noether.sif" in worker.failure_report(error, 1, "n1").fix


GRADIENTS = "all_reduce of the gradients"
WAITED = WorkerReport(0, "n1", "failed", "", position=RankPosition(7, GRADIENTS, 40), follows="timed-out", waited_s=5.0)


def doing(rank: int, position: RankPosition, stopped: bool = False) -> WorkerReport:
    return WorkerReport(rank, f"n{rank}", "stopped" if stopped else "busy", "in f (x.py:3)", position=position)


@pytest.mark.parametrize(
    ("others", "missing"),
    [
        pytest.param([doing(1, RankPosition(7, "", 39))], [1], id="in no collective"),
        pytest.param([doing(1, RankPosition(6, "barrier", 39))], [1], id="in the one before"),
        pytest.param([doing(1, RankPosition(7, GRADIENTS, 40))], [], id="waits as well"),
        pytest.param([doing(1, RankPosition(7, GRADIENTS, 40), stopped=True)], [1], id="stopped inside it"),
        pytest.param([doing(1, RankPosition(7, GRADIENTS, 40)), doing(3, RankPosition())], [3], id="no answer"),
        pytest.param([doing(2, RankPosition(7, "", 39)), doing(1, RankPosition(7, "", 39))], [1, 2], id="two"),
    ],
)
def test_missing_ranks(others: list[WorkerReport], missing: list[int]) -> None:
    found = failures.name_missing([WAITED], {entry.rank: entry for entry in others}, DistributedConfig(timeout_s=5))
    assert ([found.rank] if found else []) == missing[:1]
    if found is None:
        return
    first, second, *rest = found.message.splitlines()
    assert first.startswith("did not reach the all_reduce of the gradients of update 7")
    assert first.endswith("".join(f", nor did rank {rank}" for rank in missing[1:]))
    assert second == "  waited    rank 0, for 5 s (distributed.timeout_s)"
    assert rest == [f"  rank {rank}    in f (x.py:3)" for rank in missing]
    assert (found.kind, found.exit_code, found.host) == ("hung", 1, f"n{missing[0]}")


def test_the_first_timeout_is_the_one_for_joining() -> None:
    found = failures.name_missing([WAITED], {1: doing(1, RankPosition())}, DistributedConfig(init_timeout_s=5))
    assert found is not None
    assert "for 5 s (distributed.init_timeout_s)" in found.message


def test_the_frames_are_the_ranks_own() -> None:
    stack = (
        'Thread 0x01 (most recent call first):\n  File "q.py", line 1 in _feed\n\n'
        'Current thread 0x02 (most recent call first):\n  File "a.py", line 2 in loss\n'
        '  File "worker.py", line 3 in call_target\n  File "cli.py", line 4 in main\n'
    )
    assert failures.own_frames(stack) == 'Python stack, the innermost call first:\n  File "a.py", line 2 in loss'
    assert failures.own_frames("") == ""


CLOSED = "[pair.cc:553] Connection closed by peer [127.0.0.1]:1"


class OwnError(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("error", "follows", "waited_s"),
    [
        pytest.param(RuntimeError(CLOSED), "lost-peer", 0, id="gloo's lost peer"),
        pytest.param(dist.DistBackendError("ncclRemoteError: A call failed"), "lost-peer", 0, id="NCCL's lost peer"),
        pytest.param(RuntimeError("[buffer.cc:81] Timed out waiting 5000ms for recv"), "timed-out", 5, id="gloo"),
        pytest.param(
            dist.DistBackendError("[Rank 1] Watchdog caught collective operation timeout: Timeout(ms)=7000) ran for"),
            *("timed-out", 7),
            id="NCCL's watchdog",
        ),
        pytest.param(RanksLate(9.0), "timed-out", 9, id="the ranks' store"),
        pytest.param(ValueError(CLOSED), "", 0, id="a user's own words"),
        pytest.param(OwnError(CLOSED), "", 0, id="a user's own class"),
        pytest.param(RuntimeError("boom"), "", 0, id="another error"),
    ],
)
def test_what_an_exception_says_of_the_peers(error: Exception, follows: str, waited_s: float) -> None:
    assert worker.consequence_of(error) == (follows, waited_s)


def test_a_report_carries_the_kind_of_its_refusal() -> None:
    refused = worker.failure_report(RequestError("some-code", "rank 0 refused the run"), 1, "n1")
    assert (refused.kind, refused.code, refused.follows) == ("refused", "some-code", "")
    followed = worker.failure_report(EndedByAnother("ended-by-rank-0", "any words"), 1, "n1")
    assert (followed.kind, followed.code, followed.follows) == ("refused", "ended-by-rank-0", "lost-peer")


@pytest.mark.parametrize("said", ["", "OMP_WAIT_POLICY=active", "GOMP_SPINCOUNT=5", "OMP_NUM_THREADS=4"])
def test_how_threads_wait_is_set_only_where_the_user_has_not(said: str) -> None:
    ours = {"GOMP_SPINCOUNT": worker.SPIN_COUNT} if said in ("", "OMP_NUM_THREADS=4") else {}
    assert worker.openmp_defaults(dict([said.split("=")] if said else [])) == ours
