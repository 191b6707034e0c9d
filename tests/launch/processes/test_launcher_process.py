"""A launcher in its own process that is signalled or killed, or that has no fork server."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from processes import is_running, run_to_end, wait_for

from noether.launch.processes.worker import keep_freed_memory

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIMIT_S = 60

Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def launch(tmp_path: Path, start_process: Launch) -> Launch:
    def start(target: str, *options: str, method: str = "spawn", workers: int = 2) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "RANK")}
        paths = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, HERE, tmp_path))), "NOETHER_START_METHOD": method}
        command = [sys.executable, str(HERE / "light_launcher.py"), target, str(tmp_path), str(workers), *options]
        return start_process(command, env={**inherited, **paths}, cwd=tmp_path)

    return start


def facts(folder: Path, count: int = 2) -> list[dict[str, Any]]:
    """Return the facts that each rank recorded, as soon as all ranks have recorded theirs."""
    paths = [folder / f"rank-{rank}.json" for rank in range(count)]
    wait_for("the workers", lambda: all(path.exists() for path in paths), LIMIT_S)
    return [json.loads(path.read_text()) for path in paths]


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def received(folder: Path) -> list[list[str]]:
    return [(folder / f"received-{rank}").read_text().split() for rank in range(2)]


@pytest.mark.parametrize(
    ("method", "family"),
    [
        # The fork server outlives the launcher, and also ends the children that have requested no death signal.
        pytest.param("forkserver", ["pid", "loader", "careless", "stranger"], id="forkserver"),
        pytest.param("spawn", ["pid", "loader"], id="spawn"),
    ],
)
def test_a_launcher_killed_with_sigkill_leaves_nobody(launch: Launch, tmp_path: Path, method: str, family) -> None:
    launcher = launch("wait_with_family", method=method)
    seen = facts(tmp_path)
    pids = {rank[name] for rank in seen for name in family}
    pids |= {parent_of(rank["pid"]) for rank in seen} - {launcher.pid}  # Adds the fork server.
    assert all(map(is_running, pids))
    try:
        os.kill(launcher.pid, signal.SIGKILL)
        wait_for("their end", lambda: not any(map(is_running, pids)), 5)
    finally:
        for pid in [pid for rank in seen for pid in rank.values() if is_running(pid)]:
            os.kill(pid, signal.SIGKILL)


def test_a_fork_server_killed_with_sigkill_ends_the_run(launch: Launch, tmp_path: Path) -> None:
    launcher = launch("wait_with_family", method="forkserver")
    seen = facts(tmp_path)
    os.kill(parent_of(seen[0]["pid"]), signal.SIGKILL)
    _, words = launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode not in (0, 75)
    assert "noether: rank " in words
    assert not [pid for rank in seen for pid in rank.values() if is_running(pid)]


@pytest.mark.parametrize("first", ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT"])
def test_trap_7_a_stop_signal_reaches_every_rank_once(launch: Launch, tmp_path: Path, first: str) -> None:
    launcher = launch("stop_at_boundary")
    facts(tmp_path)
    for _ in range(3 if first == "SIGTERM" else 1):
        launcher.send_signal(signal.Signals[first])
        time.sleep(0.1)
    (tmp_path / "boundary").touch()
    out, words = launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode == 75, words
    assert received(tmp_path) == [[first], [first]], "a second SIGTERM changes nothing"
    assert words == ""
    assert out == "light\n"


def test_two_interrupts_at_once_are_one_and_a_later_one_ends_the_run(launch: Launch, tmp_path: Path) -> None:
    launcher = launch("stop_at_boundary")
    seen = facts(tmp_path)
    launcher.send_signal(signal.SIGINT)
    time.sleep(0.2)
    launcher.send_signal(signal.SIGINT)  # A terminal and a shell may both forward one Ctrl-C.
    time.sleep(0.6)
    assert launcher.poll() is None
    started = time.monotonic()
    launcher.send_signal(signal.SIGINT)
    _, words = launcher.communicate(timeout=LIMIT_S)
    assert time.monotonic() - started < 2
    assert launcher.returncode == 130
    assert words == "noether: interrupted twice; ending every worker\n"
    assert not [rank for rank in seen if is_running(rank["pid"])]


def test_a_signal_to_every_process_of_the_step_ends_no_worker(launch: Launch, tmp_path: Path) -> None:
    """Slurm sends the signal also to the fork server and the workers."""
    launcher = launch("stop_at_boundary", method="forkserver")
    workers = [rank["pid"] for rank in facts(tmp_path)]
    for number in (signal.SIGUSR1, signal.SIGTERM):
        for pid in (launcher.pid, parent_of(workers[0]), *workers):
            os.kill(pid, number)
    time.sleep(0.2)
    (tmp_path / "boundary").touch()
    _, words = launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode == 75, words
    assert [set(names) for names in received(tmp_path)] == [{"SIGTERM", "SIGUSR1"}] * 2


def test_a_signal_before_the_workers_are_ready_is_named(launch: Launch, tmp_path: Path) -> None:
    launcher = launch("wait_for_signal")
    facts(tmp_path)
    launcher.send_signal(signal.SIGTERM)
    _, words = launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode == 143
    assert "was ended by SIGTERM, forwarded before it had a handler" in words


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_the_launcher_stays_light_and_its_script_is_not_run_again(launch: Launch, tmp_path: Path, method: str) -> None:
    launcher = launch("answer", method=method)
    out, words = launcher.communicate(timeout=LIMIT_S)
    assert (launcher.returncode, out, words) == (0, "light\n", "")
    assert (tmp_path / "launchers").read_text() == "one\n"
    assert [rank["preloaded"] for rank in facts(tmp_path)] == [method == "forkserver"] * 2


def test_without_a_fork_server_workers_are_spawned(launch: Launch, tmp_path: Path) -> None:
    dying = "import os\nif os.environ.get('NOETHER_PARENT_PID'):\n    os._exit(1)\n"
    (tmp_path / "dying_preload.py").write_text(dying)  # This preload ends the fork server.
    launcher = launch("answer", "dying_preload", method="forkserver")
    out, words = launcher.communicate(timeout=LIMIT_S)
    assert (launcher.returncode, out) == (0, "light\n")
    assert "noether: forkserver failed (EOFError" in words
    assert "workers are started by spawn" in words
    assert [rank["preloaded"] for rank in facts(tmp_path)] == [False, False]


def test_a_fork_server_survives_ctrl_c_in_its_first_moments(tmp_path: Path) -> None:
    """Regression: Ctrl-C reaches every process of the terminal, and ended a starting fork server with a traceback."""
    code = (
        "import os, signal, time; from multiprocessing import forkserver\n"
        "from noether.launch.processes import spawner\n"
        "spawner.PRELOAD = 'light_preload'; spawner.warm_up(); pid = forkserver._forkserver._forkserver_pid\n"
        "for number in (signal.SIGINT, signal.SIGUSR1): os.kill(pid, number)\n"
        "while not os.path.exists('there'): time.sleep(0.05)\n"
        "os.kill(pid, signal.SIGINT); os.kill(pid, 0)\n"
        "print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    )
    preload = "from noether.launch.processes.preload import outlive_signals\nimport os\n"
    preload += "outlive_signals(int(os.environ['NOETHER_PARENT_PID']))\nopen('there', 'w').close()\n"
    (tmp_path / "light_preload.py").write_text(preload)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = run_to_end([sys.executable, "-c", code], environ, cwd=tmp_path, limit_s=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def said_by(code: str, *words: str) -> str:
    command = [sys.executable, "-c", code, *words]
    return subprocess.check_output(command, cwd=REPOSITORY, text=True, timeout=120).strip()


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        pytest.param("noether.training.start", ["torch", "scipy", "matplotlib"], id="the launcher"),
        # In each rank, importing SciPy would take 0.5 s of processor time, as much as all other imports besides torch.
        pytest.param("noether.training.train", ["scipy", "matplotlib"], id="a rank"),
    ],
)
def test_what_is_not_imported_at_the_start(module: str, unwanted: list[str]) -> None:
    code = f"import sys; import {module}; print(sorted(set({unwanted}) & set(sys.modules)))"
    assert said_by(code) == "[]"


COUNT_FAULTS = """
import resource, sys
from noether.launch.processes.worker import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory({}):
    print("other C library")
    sys.exit()
import torch
torch.set_num_threads(1)
def update():
    return [torch.ones(1_000_000) for _ in range(20)]
update(), update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    update()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize(
    "said",
    ["GLIBC_TUNABLES=glibc.malloc.trim_threshold=1", "MALLOC_TRIM_THRESHOLD_=1",
     "LD_PRELOAD=/usr/lib/libjemalloc.so.2", "LD_PRELOAD=/usr/lib/libtcmalloc.so.4"],
)  # fmt: skip
def test_what_the_user_has_said_about_memory_stays(said: str) -> None:
    assert not keep_freed_memory(dict([said.split("=", 1)]))


def test_memory_that_was_freed_is_not_cleared_again() -> None:
    counted = {arm: said_by(COUNT_FAULTS, arm) for arm in ("kept", "returned")}
    if counted["kept"] == "other C library":
        pytest.skip("the C library is not glibc")
    # Each update makes 20 arrays of 4 MB, which have 20,000 pages.
    assert int(counted["kept"]) < int(counted["returned"]) / 10
