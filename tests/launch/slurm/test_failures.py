"""A run on two hosts of a real Slurm that fails: all hosts name the cause, and no process is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import REPOSITORY, TINY
from misbehaving import WORDS, misbehave, processes_of

from launch.slurm.conftest import CLUSTER, Slurm, wait_for

# noether promises ten seconds, but test machines are busy.
GONE_S = 40
START_S = 150
WELL = ("+model.how=never", "+model.rank=0")


@dataclass(frozen=True)
class Started:
    """A run of four ranks on n1 and n2, and the process that runs its srun command."""

    srun: subprocess.Popen[str]
    folder: Path

    def wait_gone(self, limit_s: float = GONE_S) -> tuple[int, str]:
        """Return srun's exit code and output, once no process of the run is left on any host."""
        mine = str(self.folder)
        wait_for("the end of every process of the run", lambda: not processes_of(mine), limit_s, lambda: self.left())
        out, err = self.srun.communicate(timeout=GONE_S)
        return self.srun.returncode, out + err

    @property
    def pid(self) -> int:
        """The pid of srun's main process, which is the oldest one."""
        return min(pid for pid, command in processes_of(str(self.folder)).items() if command.startswith("srun "))

    def left(self) -> str:
        return "\n".join(f"{pid} {command}" for pid, command in processes_of(str(self.folder)).items())


@pytest.fixture
def start(slurm: Slurm, variables: dict[str, str], tmp_path: Path) -> Iterator:
    started: list[Started] = []

    def run(*words: str, script: bool = False) -> Started:
        train = ["train", "--hp", str(TINY), "devices=null", *words, f"output_path={tmp_path}", "run_id=run"]
        noether = [sys.executable, "-m", "noether", *(["run", *words] if script else train)]
        srun = ["srun", "-t5", "-N2", f"--ntasks-per-node={1 if script else 2}", "-wn1,n2", *noether]
        environ = variables | {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}", "OF_THE_TEST": str(tmp_path)}
        command = [sys.executable, str(CLUSTER), f"--state={slurm.folder}", "on", "login", "--", *srun]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True)
        started.append(Started(process, tmp_path))
        return started[-1]

    yield run
    for each in started:
        for pid in processes_of(str(tmp_path)):
            os.kill(pid, signal.SIGKILL)
        each.srun.communicate(timeout=GONE_S)


def first_updates(folder: Path) -> bool:
    metrics = folder / "run" / "metrics.jsonl"
    return metrics.exists() and len(metrics.read_text().splitlines()) >= 2


def ranks(folder: Path) -> list[str]:
    """Return the command lines of the ranks on all hosts."""
    return [words for words in processes_of(str(folder)).values() if "noether train" in words and "srun" not in words]


CASES = {
    "is-killed": ("SIGKILL", 3, "rank 3 on n2 was killed by SIGKILL"),
    "rank-0-is-stopped": ("SIGSTOP", 0, "rank 0 on n1 did not reach the all_reduce of the gradients of update 3"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("how", "rank", "words"), CASES.values(), ids=CASES)
def test_a_rank(start, tmp_path: Path, how: str, rank: int, words: str) -> None:
    mark = tmp_path / "moment"
    run = start(*misbehave(how, rank, mark))
    wait_for("the moment", lambda: mark.exists() or run.srun.poll() is not None, START_S)
    code, said = run.wait_gone()
    assert mark.exists(), said
    assert code != 0, said
    assert f"noether: {words}" in said
    if how == "SIGSTOP":
        assert "does not respond: stopped by a signal" in said
    others = [line for line in said.splitlines() if "ends with the run: " in line]
    assert len([line for line in others if words in line]) >= 1, said


@pytest.mark.slow
def test_a_rank_of_a_script(start, tmp_path: Path) -> None:
    """Of two tasks with two ranks each, one rank fails; the other three ranks end too."""
    script = REPOSITORY / "tests/launch/slurm/any_script.py"
    code, said = start("accelerator=cpu", "devices=2", str(script), "killed", script=True).wait_gone(START_S)
    assert code == 137, said
    assert "noether: rank 3 on n2 was killed by SIGKILL" in said
    assert "learned" not in said


@pytest.mark.slow
def test_a_node_is_unplugged(start, slurm: Slurm, tmp_path: Path) -> None:
    """Both sides must end by themselves; otherwise the isolated node would continue to compute and write."""
    run = start(*WORDS, *WELL, "distributed.timeout_s=60")
    wait_for("the first updates", lambda: first_updates(tmp_path) or run.srun.poll() is not None, START_S)
    slurm.power("unplug", "n2")
    try:
        wait_for("the end of every rank", lambda: not ranks(tmp_path), GONE_S, run.left)
    finally:
        slurm.power("plug", "n2")
    code, said = run.wait_gone(limit_s=90)
    assert code != 0
    assert "on n2 has not been heard from for 6 s: its host is down, or cut off" in said, said


@pytest.mark.nightly
def test_srun_is_killed(start, tmp_path: Path) -> None:
    run = start(*WORDS, *WELL)
    wait_for("the first updates", lambda: first_updates(tmp_path) or run.srun.poll() is not None, START_S)
    os.kill(run.pid, signal.SIGKILL)
    code, said = run.wait_gone()
    assert code != 0, said
