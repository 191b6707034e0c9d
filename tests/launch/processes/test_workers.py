"""Start and watch several real workers, and check the outcome of each way in which they can end."""

import io
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import is_running

from noether.launch.detect.placement import LaunchRequest, Placement
from noether.launch.detect.resolve import resolve_placement
from noether.launch.processes.context import RunInfo
from noether.launch.processes.listener import hold_ports
from noether.launch.processes.run import open_link, run_placement
from noether.launch.processes.spawner import server_environment, start_workers
from noether.launch.processes.watcher import read_stacks, watch_workers
from tests.refusal import refusal


def workers(count: int) -> Placement:
    return resolve_placement(LaunchRequest("cpu", str(count)), {}, "testbox")


def run(target: str, payload: Any, folder: Path, grace_s: float = 0.5) -> tuple[int, str]:
    """Start and watch workers with a short grace period; return the exit code and the messages to the user."""
    placement = workers(2)
    info = RunInfo(log_folder=folder / "logs")
    ports = hold_ports(placement, info)
    running = start_workers(placement, f"launch_targets.{target}", payload, info, ports)
    link = open_link(placement, info, ports)
    with redirect_stderr(io.StringIO()) as words:
        code = watch_workers(running, grace_s=grace_s, link=link)
    return code, words.getvalue()


def facts(folder: Path, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"rank-{rank}.json").read_text())


@pytest.fixture(params=["forkserver", "spawn"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NOETHER_START_METHOD", request.param)
    return request.param


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in (*ranks, "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def test_two_ranks_reduce_through_the_held_port(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert run("sum_ranks", tmp_path, tmp_path) == (0, "")
    for rank in range(2):
        seen = facts(tmp_path, rank)
        assert seen["sum"] == 3.0
        assert seen["session"] == seen["pid"], "each worker must lead its own session"
        environment = seen["environment"]
        assert (environment["RANK"], environment["WORLD_SIZE"]) == (str(rank), "2")
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert int(environment["MASTER_PORT"]) > 0
        assert environment["CUDA_VISIBLE_DEVICES"] == "2,3", "the mask must not change"
        assert "NOETHER_PARENT_PID" not in environment, "variables of the fork server must not reach a rank"
        assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in environment
        assert seen["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)
        assert seen["parent_is_server"] == seen["preloaded"] == (method == "forkserver")
        assert not seen["cuda_touched"]
        if method == "forkserver":
            assert seen["parent_threads"] == 1
            assert not seen["compiler"], "importing torch's compiler takes a second, and few runs need it"
    assert "rank 1 was here" in (tmp_path / "logs" / "rank-1.log").read_text()
    assert not (tmp_path / "logs" / "rank-0.log").exists(), "rank 0 writes to the console instead"


def test_the_preload_leaves_one_thread() -> None:
    """The threads are counted before the first fork, because OpenBLAS ends its threads at a fork."""
    code = "import gc, os, noether.launch.processes.preload\n"
    code += "print(len(os.listdir('/proc/self/task')), gc.get_freeze_count() > 0)"
    environment = {**os.environ, **server_environment({}, os.getpid())}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert out.stdout.split() == ["1", "True"], out.stderr


def test_the_first_failing_ranks_traceback_is_shown(method: str, tmp_path: Path) -> None:
    code, words = run("fail_while_others_reduce", "raise", tmp_path, grace_s=30)
    assert code == 1
    assert words.startswith("noether: rank 1 on testbox failed: ValueError: boom\nTraceback (most recent call last):\n")
    assert 'raise ValueError("boom")' in words
    assert words.count("Traceback") == 1, "rank 0's own error must be one line"
    assert "\n  others    rank 0: lost a peer in the all_reduce of numbers before the first update\n" in words
    assert words.endswith(f"  logs      {tmp_path / 'logs'}\n")
    error = json.loads((tmp_path / "logs" / "rank-1.error.json").read_text())
    assert (error["rank"], error["kind"], error["exit_code"]) == (1, "failed", 1)
    assert "launch_targets.py" in error["traceback"]


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        pytest.param("SIGKILL", 137, "was killed by SIGKILL (the kernel reports no kill", id="SIGKILL"),
        pytest.param("sys.exit 0", 1, "left early by sys.exit(0)", id="sys.exit(0) in a collective"),
    ],
)
def test_a_death_is_blamed_on_the_dead_not_on_its_echo(tmp_path: Path, how: str, code: int, words: str) -> None:
    ended, text = run("fail_while_others_reduce", how, tmp_path)
    assert text.startswith(f"noether: rank 1 on testbox {words}")
    assert ended == code
    assert json.loads((tmp_path / "logs" / "rank-1.error.json").read_text())["exit_code"] == code


@pytest.mark.parametrize("hanging", [0, 1])
def test_a_rank_that_hangs_on_a_gpu_is_named_not_the_one_that_its_watchdog_aborts(hanging: int, tmp_path: Path) -> None:
    code, words = run("hang_on_gpu", (hanging, tmp_path), tmp_path)
    assert code == 1
    assert words.startswith(f"noether: rank {hanging} on testbox did not reach a collective of update 3\n")
    assert f"  waited    rank {1 - hanging}{', for 5 s' if hanging == 0 else ''}" in words
    assert "in hang_on_gpu (launch_targets.py:" in words
    assert "  recorded  nccl-trace-rank-0, nccl-trace-rank-1: torchfrtrace --prefix nccl-trace-rank- " in words


def test_leaving_early_is_a_failure_whatever_the_code(tmp_path: Path) -> None:
    started = time.monotonic()
    ended, words = run("leave_early", 75, tmp_path)
    assert ended == 1
    assert words.startswith("noether: rank 1 on testbox left early")
    assert "rank 0: in leave_early (launch_targets.py:" in words
    assert "leave_early" in (tmp_path / "logs" / "rank-0.stack.txt").read_text()
    assert time.monotonic() - started < 10


def test_stacks_that_are_written_with_pauses_are_read_whole() -> None:
    """Regression: on a busy machine, stacks were cut off before the requested thread, so its state was wrong."""
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
    lines = ("Thread 0x1:", "  File x", "Current thread 0x2:", "  File y", "  File z, line 1 in call_target")

    def write() -> None:
        for line in lines:
            for _, writer in pipes:
                time.sleep(0.02)
                os.write(writer.fileno(), f"{line}\n".encode())

    (thread := threading.Thread(target=write)).start()
    stacks = read_stacks({rank: source for rank, (source, _) in enumerate(pipes)}, time.monotonic() + 60)
    assert [stack.splitlines() for stack in stacks.values()] == [list(lines)] * 2
    thread.join()


@pytest.mark.parametrize(
    ("target", "code", "who"),
    [("hang_with_family", 1, "rank 1"), ("die_with_family", 137, "rank 0"), ("finish_with_family", 0, "")],
)
def test_every_grandchild_is_ended_within_10_s(method: str, tmp_path: Path, target: str, code: int, who: str) -> None:
    started = time.monotonic()
    ended, words = run(target, tmp_path, tmp_path)
    assert time.monotonic() - started < 10
    assert (ended, bool(words)) == (code, bool(who))
    assert not who or f"{who} on testbox" in words
    family = facts(tmp_path, 0)
    assert {name for name, pid in family.items() if is_running(pid)} == set()
    assert set(family) == {"pid", "loader", "careless", "stranger", "daemon"}


def test_logs_of_an_earlier_attempt_are_kept_and_its_errors_are_not(tmp_path: Path) -> None:
    code, words = run("refuse", None, tmp_path)
    assert code == 2
    assert words.startswith("noether: no such model [no-such-model]\n  seen      model=upd\n")
    assert words.count("no such model") <= 2, "the same error of the other rank must be at most one line"
    assert (tmp_path / "logs" / "rank-1.error.json").exists()
    for _ in range(2):
        assert run("sum_ranks", tmp_path, tmp_path)[0] == 0
    assert (tmp_path / "logs" / "rank-1.log").read_text().count("rank 1 was here") == 2
    assert not (tmp_path / "logs" / "rank-1.error.json").exists()


def test_one_worker_runs_in_this_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_placement(workers(1), "launch_targets.answer", tmp_path, tmp_path / "logs") == 0
    assert facts(tmp_path, 0)["pid"] == os.getpid()
    assert run_placement(workers(1), "launch_targets.exit_75", None, tmp_path / "logs") == 75
    assert capsys.readouterr().err == ""
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} & set(os.environ), "unchanged here"


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        pytest.param("raise_here", 1, "noether: rank 0 on testbox failed: ValueError: boom in", id="an exception"),
        pytest.param("refuse", 2, "noether: no such model [no-such-model]\n  seen      model=upd", id="a request"),
    ],
)
def test_one_worker_fails_as_several_do(tmp_path: Path, capsys, target: str, code: int, words: str) -> None:
    assert run_placement(workers(1), f"launch_targets.{target}", None, tmp_path) == code
    assert capsys.readouterr().err.startswith(words)
    assert json.loads((tmp_path / "rank-0.error.json").read_text())["exit_code"] == code


def test_a_task_that_is_one_worker_of_several_is_watched(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """If a scheduler starts one task for each rank, the rank is a child of that task, without a fork server."""
    placement = workers(2)
    mine = replace(placement, workers=placement.workers[1:], local_world_size=2)
    assert run_placement(mine, "launch_targets.answer", tmp_path, tmp_path / "logs") == 0
    assert facts(tmp_path, 1)["parent"] == os.getpid()
    first = replace(placement, workers=placement.workers[:1], local_world_size=2)
    assert run_placement(first, "launch_targets.die_with_family", tmp_path, tmp_path / "logs") == 137
    assert "noether: rank 0 on testbox was killed by SIGKILL" in capfd.readouterr().err
    assert {name for name, pid in facts(tmp_path, 0).items() if is_running(pid)} == set()


def test_a_folder_that_cannot_have_logs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with refusal("disk-refused"):
        run_placement(workers(2), "launch_targets.answer", tmp_path, tmp_path / "logs")
