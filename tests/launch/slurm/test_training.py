"""`srun noether train` on a real Slurm: the ranks find each other, and learn what one process learns."""

import json
import sys
from pathlib import Path

import pytest
from conftest import TINY
from learned import PROOF, check_learned

from launch.slurm.conftest import PATH, Slurm
from noether.runs.folder import RunFolder

NOETHER = (sys.executable, "-m", "noether")


def command(output: Path, name: str, *overrides: str) -> list[str]:
    arguments = ["--hp", str(TINY), f"output_path={output}", f"run_id={name}", *PROOF, *overrides]
    return [*NOETHER, "train", *arguments]


def variables(cache: Path) -> dict[str, str]:
    return {"PATH": PATH, "XDG_CACHE_HOME": str(cache), "HOME": "/root", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "devices"), [(2, "null"), (1, "2")], ids=["task-per-rank-2x2", "hybrid-2x2"])
def test_ranks_over_two_hosts_learn_what_one_process_learns(
    tasks, devices, slurm: Slurm, by_one, cache, tmp_path
) -> None:
    train = command(tmp_path, "run", f"devices={devices}")
    done = slurm.srun("-N2", f"--ntasks-per-node={tasks}", "-t5", *train, limit_s=170, **variables(cache))
    assert done.returncode == 0, done.stdout + done.stderr
    check_learned(RunFolder(tmp_path / "run"), "slurm", 4, by_one)
    assert done.stdout.count("unseen cases of the test split") == 1, "only rank 0 speaks"


def test_one_visible_gpu_for_each_task_is_accepted(slurm: Slurm, cache, tmp_path) -> None:
    """No driver answers on this cluster, so the plan is for the mask that Slurm has set."""
    plan = f"{' '.join(NOETHER)} plan --json --visible-devices $CUDA_VISIBLE_DEVICES"
    # A file for each task: srun mixes the lines of tasks that print at the same time.
    options = ("-N2", "--ntasks-per-node=2", "--gpus-per-task=1", f"--output={tmp_path}/%t.json")
    done = slurm.srun(*options, "sh", "-c", plan, **variables(cache))
    assert done.returncode == 0, done.stderr
    plans = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    workers = [worker for plan in plans for worker in plan["workers"]]
    assert {plan["world_size"] for plan in plans} == {4}
    assert [worker["rank"] for worker in workers] == [0, 1, 2, 3]
    assert {worker["device"] for worker in workers} == {"cuda:0"}
    assert all("peer-to-peer" in warning for plan in plans for warning in plan["warnings"])
    assert all(plan["warnings"] for plan in plans)


def test_granted_gpus_without_a_driver_are_refused(slurm: Slurm, cache) -> None:
    for verb in ("train", "plan"):
        done = slurm.srun("-N1", "--gpus-per-node=2", *NOETHER, verb, "run_id=granted", limit_s=150, **variables(cache))
        assert done.returncode == 2, done.stderr
        assert "CUDA_VISIBLE_DEVICES=0,1" in done.stderr
        assert "accelerator=cpu" in done.stderr


def test_bare_training_in_a_batch_script_never_hangs(slurm: Slurm, cache, tmp_path) -> None:
    """Four tasks were asked for, and nobody starts them: it says so, and what to write, within seconds."""
    script = " ".join(f"'{word}'" for word in command(tmp_path, "bare", "devices=null"))
    job = slurm.submit(script, "-n4", "-t5", **variables(cache))
    slurm.wait(job, limit_s=120)
    assert "srun" in slurm.output(job)
    assert "SLURM_" in slurm.output(job)
