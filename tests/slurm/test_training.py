"""`srun noether train` on a real Slurm: the ranks find each other, and learn what one process learns."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from conftest import TINY
from safetensors.torch import load_file
from sharing import in_every_push

from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder
from slurm.conftest import PATH, Slurm, wait_for

PROOF = ("trainer.precision=float64", "optimizer=sgd", "optimizer.learning_rate=0.05", "trainer.max_updates=6")
NOETHER = (sys.executable, "-m", "noether")


def command(output: Path, name: str, *overrides: str) -> list[str]:
    arguments = ["--hp", str(TINY), f"output_path={output}", f"run_id={name}", *PROOF, *overrides]
    return [*NOETHER, "train", *arguments]


def variables(cache: Path) -> dict[str, str]:
    return {"PATH": PATH, "XDG_CACHE_HOME": str(cache), "HOME": "/root", "OMP_NUM_THREADS": "1"}


def weights(folder: RunFolder) -> dict:
    return load_file(list_checkpoints(folder.checkpoints)[-1].path / "model.safetensors")


@pytest.fixture(scope="module")
def reference(train_in, tmp_path_factory) -> dict:
    return weights(train_in(tmp_path_factory.mktemp("reference"), "one", *PROOF))


SHAPES = {
    "one-task-per-rank-2x2": (["-N2", "--ntasks-per-node=2"], (), 4),
    "one-task-per-node-hybrid-2x2": (["-N2", "--ntasks-per-node=1"], ("devices=2",), 4),
    "cyclic": (["-N2", "--ntasks-per-node=2", "-mcyclic"], (), 4),
    "uneven-nodes": (["-N2", "-n4", "-mblock"], (), 4),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "overrides", "world"),
    in_every_push(SHAPES, "one-task-per-rank-2x2", "one-task-per-node-hybrid-2x2"),
)
def test_ranks_over_two_hosts_learn_what_one_process_learns(
    options, overrides, world, slurm: Slurm, reference, cache, tmp_path
) -> None:
    overrides = (*overrides, "devices=null") if "devices=2" not in overrides else overrides
    done = slurm.srun(*options, "-t5", *command(tmp_path, "run", *overrides), limit_s=170, **variables(cache))
    assert done.returncode == 0, done.stdout + done.stderr
    folder = RunFolder(tmp_path / "run")
    assert json.loads(folder.plan.read_text())["launcher"] == "slurm"
    assert json.loads(folder.result.read_text())["world_size"] == world
    found = weights(folder)
    assert max(float((reference[key] - found[key]).abs().max()) for key in reference) < 1e-10
    assert done.stdout.count("unseen cases of the test split") == 1, "only rank 0 speaks"


@pytest.mark.nightly
def test_a_step_on_the_second_node_alone(slurm: Slurm, reference, cache, tmp_path) -> None:
    """The job's first host has no rank 0: a master read from the job's node list would never answer."""
    script = " ".join(
        f"'{word}'" for word in ["srun", "-N1", "-n2", "-wn2", *command(tmp_path, "second", "devices=null")]
    )
    job = slurm.submit(script, "-N2", "--nodelist=n1,n2", "--ntasks-per-node=2", "-t5", **variables(cache))
    state = slurm.wait(job, limit_s=170)
    assert state == "COMPLETED", slurm.output(job)
    found = weights(RunFolder(tmp_path / "second"))
    assert max(float((reference[key] - found[key]).abs().max()) for key in reference) < 1e-10


@pytest.mark.nightly
def test_two_training_steps_at_once_in_one_job_do_not_meet(slurm: Slurm, cache, tmp_path) -> None:
    """With a port from the job id alone, a rank of one step joins the other's store."""
    steps = "\n".join(
        " ".join(f"'{word}'" for word in ["srun", "--exact", "-N2", "-n2", *command(tmp_path, name, "devices=null")])
        + " &"
        for name in ("first", "other")
    )
    job = slurm.submit(
        f"{steps}\nwait %1 && wait %2", "-N2", "--ntasks-per-node=2", "--cpus-per-task=1", "-t5", **variables(cache)
    )
    assert slurm.wait(job, limit_s=240) == "COMPLETED", slurm.output(job)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("first", "other")]
    assert [result["world_size"] for result in results] == [2, 2]
    first, other = (weights(RunFolder(tmp_path / name)) for name in ("first", "other"))
    assert all((first[key] == other[key]).all() for key in first)


SRUN_HET = "srun -t5 -N1 -n1 {train} : -N1 -n2 {train}"
BATCH_HET = """#!/bin/bash
#SBATCH -t5 -N1 -n1 --output={output}
#SBATCH hetjob
#SBATCH -N2 --ntasks-per-node=1
srun --het-group=0,1 {train}
"""


@pytest.fixture(scope="module")
def reference_of_six(train_in, tmp_path_factory) -> dict:
    """What one process learns from global batches that three ranks can share."""
    return weights(train_in(tmp_path_factory.mktemp("reference"), "one", *PROOF, "trainer.effective_batch_size=6"))


@pytest.mark.nightly
@pytest.mark.parametrize(("text", "nodes"), [(SRUN_HET, 2), (BATCH_HET, 3)], ids=["srun-of-two-parts", "sbatch-hetjob"])
def test_the_components_of_a_heterogeneous_job_train_together(
    text, nodes, slurm: Slurm, reference_of_six, cache, tmp_path
) -> None:
    """Each component is a job of its own to Slurm, and its tasks are ranks of one world all the same."""
    words = command(tmp_path, "het", "devices=null", "trainer.effective_batch_size=6")
    script = text.format(train=shlex.join(words), output=tmp_path / "out")
    if text.startswith("srun"):
        done = slurm.on("login", "sh", "-c", script, limit_s=170, **variables(cache))
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        job = slurm.submit(script, **variables(cache))
        assert slurm.wait(job, limit_s=170) == "COMPLETED", slurm.output(job)
    folder = RunFolder(tmp_path / "het")
    plan = json.loads(folder.plan.read_text())
    assert (plan["launcher"], plan["world_size"], len(plan["nodes"])) == ("slurm", 3, nodes)
    assert json.loads(folder.result.read_text())["world_size"] == 3
    found = weights(folder)
    assert max(float((reference_of_six[key] - found[key]).abs().max()) for key in reference_of_six) < 1e-10


@pytest.mark.nightly
def test_the_tasks_of_an_array_are_runs_of_their_own(slurm: Slurm, reference, cache, tmp_path) -> None:
    """Both at once, on the same two nodes: a run_id that is a number, a port for each."""
    words = shlex.join(command(tmp_path, "NAME", "devices=null")).replace("NAME", '"$SLURM_ARRAY_TASK_ID"')
    options = ("--array=1-2", "--nodelist=n1,n2", "-N2", "--ntasks-per-node=1", "-t5")
    array = slurm.submit(f"srun {words}", *options, **variables(cache))

    def left() -> set[str]:
        return set(slurm.run("squeue", "-h", f"-j{array}", "-o", "%i").split())

    def said() -> str:
        return "".join(path.read_text() for path in (slurm.folder / "jobs").glob("*.out")) + slurm.log

    wait_for("the end of an array", lambda: not left(), limit_s=240, explain=said)
    ports = set()
    for task in ("1", "2"):
        folder = RunFolder(tmp_path / task)
        assert folder.result.exists(), said()
        assert json.loads(folder.result.read_text())["world_size"] == 2
        found = weights(folder)
        assert max(float((reference[key] - found[key]).abs().max()) for key in reference) < 1e-10
        ports.add(json.loads(folder.plan.read_text())["endpoint"]["port"])
    assert len(ports) == 2


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


def test_plan_under_srun_says_what_it_saw(slurm: Slurm, cache) -> None:
    done = slurm.srun(
        "-N2", "--ntasks-per-node=2", *NOETHER, "plan", "--json", "accelerator=cpu", limit_s=60, **variables(cache)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"launcher": "slurm"') == 4
    assert done.stdout.count('"world_size": 4') == 4


def test_what_works_in_one_process_is_refused_as_two_tasks(slurm: Slurm, tmp_path) -> None:
    done = slurm.srun("-n2", *NOETHER, "report", str(tmp_path), **variables(tmp_path))
    assert done.returncode == 2, done.stderr
    assert "noether report runs in one process, but 2 were started" in done.stderr
    assert "fix       srun --nodes=1 --ntasks=1 noether report …" in done.stderr


def test_bare_training_in_a_batch_script_never_hangs(slurm: Slurm, cache, tmp_path) -> None:
    """Four tasks were asked for, and nobody starts them: it says so, and what to write, within seconds."""
    script = " ".join(f"'{word}'" for word in command(tmp_path, "bare", "devices=null"))
    job = slurm.submit(script, "-n4", "-t5", **variables(cache))
    slurm.wait(job, limit_s=120)
    assert "srun" in slurm.output(job)
    assert "SLURM_" in slurm.output(job)
