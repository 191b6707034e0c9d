"""`noether.join` under any launcher: ranks stop together, save intact checkpoints, and continue bit for bit."""

import os
import re
import socket
import sys
from pathlib import Path

import pytest
import torch
from processes import AS_ROOT, find_program, run_to_end, torchrun
from refusal import refusal

import noether
from noether.common import atomic_write

EXAMPLE = re.findall(r"```python\n(.*?)```", Path("docs/join.md").read_text(), re.DOTALL)[0]
SIGNAL = "if done == 123 and ranks.rank == ranks.world - 1: signal.raise_signal(15)"
SIGNALLED = "import signal\n" + EXAMPLE.replace("done += 1\n", f"done += 1\n        {SIGNAL}\n")
PYTHON = (sys.executable,)
LAUNCHERS = {
    "python": PYTHON,
    "noether run": (*PYTHON, "-m", "noether", "run", "--accelerator", "cpu", "--devices", "2"),
    "torchrun": torchrun(),
    "mpirun": ("mpirun", "--oversubscribe", "-n", "2", *PYTHON),
}


def start(launcher: str, text: str, environ: dict[str, str], folder: Path) -> tuple[int, str]:
    """Run a script in a folder; return its exit code and output."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    if launcher == "mpirun":
        find_program("mpirun", "openmpi-bin")
    done = run_to_end([*LAUNCHERS[launcher], "train.py"], environ | AS_ROOT | {"PYTHONPATH": os.getcwd()}, cwd=folder)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_documented_script_stops_everywhere_and_continues_bit_for_bit(launcher, environ, tmp_path) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    code, said = start(launcher, SIGNALLED, environ, stopped)
    assert code == (1 if launcher == "torchrun" else 75), said
    assert 123 <= torch.load(stopped / "checkpoint" / "state.pt")["done"] <= 125
    for folder in (stopped, whole):
        code, said = start(launcher, EXAMPLE, environ, folder)
        assert code == 0, said
    assert {path.name for path in stopped.iterdir()} == {"checkpoint", "train.py"}
    state, expected = (torch.load(folder / "checkpoint" / "state.pt") for folder in (stopped, whole))
    assert state["done"] == expected["done"]
    assert all(torch.equal(value, expected["net"][name]) for name, value in state["net"].items())


JOINS_AGAIN = """
import os
import noether, torch.distributed as dist

if "RANK" in os.environ:
    dist.init_process_group("gloo")
with noether.join() as ranks, ranks.saving("a/b") as folder:
    (folder / str(ranks.rank)).write_text("first")
with noether.join() as ranks, noether.join() as same, ranks.saving("a/b") as folder:
    assert same is ranks
    (folder / str(ranks.rank)).write_text("second")
    if ranks.rank == 1:
        raise ValueError("in the middle")
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [launcher for launcher in LAUNCHERS if launcher != "python"])
def test_a_rank_that_fails_in_the_middle_of_saving_leaves_what_was_saved(launcher, environ, tmp_path) -> None:
    code, said = start(launcher, JOINS_AGAIN, environ, tmp_path)
    assert (code, "in the middle" in said) == (1, True), said
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert {path.name: path.read_text() for path in (tmp_path / "a" / "b").iterdir()} == {"0": "first", "1": "first"}


LEAVES_A_TENSOR = """
import os, sys, time, weakref
import noether, torch, torch.distributed as dist

if "RANK" in os.environ:
    dist.init_process_group("gloo")
with noether.join() as ranks:
    ranks.barrier()
    sys.setswitchinterval(60)  # A thread waits as long for Python's lock, if this one does not let go of it.
    summed = torch.zeros(3)
    freed = weakref.ref(summed)
    dist.all_reduce(summed, async_op=True)
    del summed
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass
sys.exit(freed() is not None)
"""


@pytest.mark.slow
def test_no_thread_is_left_a_tensor_to_free_at_the_interpreters_end(environ, tmp_path) -> None:
    code, said = start("torchrun", LEAVES_A_TENSOR, environ, tmp_path)
    assert code == 0, said


@pytest.mark.parametrize("swaps", [True, False])
def test_what_a_kill_in_the_middle_of_saving_leaves_is_cleared(swaps, tmp_path, monkeypatch) -> None:
    if not swaps:
        monkeypatch.setattr(atomic_write, "_swapped", lambda *names: False)
    for left in (".model.partial/half", ".model.0123.replaced/old"):
        (tmp_path / left).mkdir(parents=True)
    with noether.join() as ranks:
        assert ranks.saved(tmp_path / "other") is None
        assert (ranks.saved(tmp_path / "model") / "old").is_dir()
        with ranks.saving(tmp_path / "model") as folder:
            (folder / "new").touch()
            assert (tmp_path / "model" / "old").is_dir()
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "new"]


def test_ranks_that_cannot_meet_are_refused_in_words(monkeypatch) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for name, value in {**variables, "MASTER_PORT": str(taken.getsockname()[1])}.items():
            monkeypatch.setenv(name, value)
        with refusal("no-master-address"), noether.join():
            pass
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        with refusal("port-unusable", seen="MASTER_PORT="), noether.join():
            pass
