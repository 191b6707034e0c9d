"""`srun noether train` on a real Slurm: the ranks find each other, and learn what one process learns."""

import sys
from pathlib import Path

import pytest
from conftest import TINY
from learned import PROOF, check_learned

from launch.slurm.conftest import Slurm
from noether.runs.folder import RunFolder

NOETHER = (sys.executable, "-m", "noether")


def command(output: Path, name: str, *overrides: str) -> list[str]:
    arguments = ["--hp", str(TINY), f"output_path={output}", f"run_id={name}", *PROOF, *overrides]
    return [*NOETHER, "train", *arguments]


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "devices"), [(2, "null"), (1, "2")], ids=["task-per-rank-2x2", "hybrid-2x2"])
def test_ranks_over_two_hosts_learn_what_one_process_learns(
    tasks, devices, slurm: Slurm, by_one, variables, tmp_path
) -> None:
    train = command(tmp_path, "run", f"devices={devices}")
    done = slurm.srun("-N2", f"--ntasks-per-node={tasks}", "-t5", *train, limit_s=170, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    check_learned(RunFolder(tmp_path / "run"), "slurm", 4, by_one)
    assert done.stdout.count("unseen cases of the test split") == 1, "only rank 0 speaks"


def test_granted_gpus_without_a_driver_are_refused(slurm: Slurm, variables) -> None:
    for verb in ("train", "plan"):
        done = slurm.srun("-N1", "--gpus-per-node=2", *NOETHER, verb, "run_id=granted", limit_s=150, **variables)
        assert done.returncode == 2, done.stderr
        assert "CUDA_VISIBLE_DEVICES=0,1" in done.stderr
        assert "accelerator=cpu" in done.stderr


def test_bare_training_in_a_batch_script_never_hangs(slurm: Slurm, variables, tmp_path) -> None:
    """Four tasks were asked for, and nobody starts them: it says so, and what to write, within seconds."""
    script = " ".join(f"'{word}'" for word in command(tmp_path, "bare", "devices=null"))
    job = slurm.submit(script, "-n4", "-t5", **variables)
    slurm.wait(job, limit_s=120)
    assert "srun" in slurm.output(job)
    assert "SLURM_" in slurm.output(job)
