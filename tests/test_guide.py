"""The guide's commands, unchanged, are planned on 1 to 8 devices, on 2 nodes of 4 tasks, by submit and by uv."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

from noether.config.slurm import SlurmConfig
from noether.jobs.job import stand_in_environment

ONE = r"""
noether-train --hp configs/train_shapenet.yaml \
    +experiment/shapenet=upt \
    +accelerator=gpu \
    dataset_root=/home/user/data/shapenet_car
"""
FOUR_DEVICES = r"""
noether-train --hp configs/train_shapenet.yaml \
    +experiment/shapenet=upt \
    +accelerator=gpu \
    +devices=\"0,1,2,3\" \
    dataset_root=/home/user/data/shapenet_car
"""
BATCH_SCRIPT = r"""#!/bin/bash
#SBATCH --job-name=noether-train
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=4         # MUST equal --gpus-per-node
#SBATCH --cpus-per-task=16
#SBATCH --mem=256G
#SBATCH --time=12:00:00
#SBATCH --output=logs/%j.out

source .venv/bin/activate

srun uv run noether-train --hp configs/train_shapenet.yaml \
    +experiment/shapenet=upt \
    +accelerator=gpu \
    dataset_root=/data/shapenet_car
"""
SETTINGS = """\
slurm:
   folder: /home/%u/logs/shapenet
   slurm_partition: gpu
   nodes: 2
   gpus_per_node: 4        # tasks_per_node defaults to 4 (= gpus_per_node)
   cpus_per_task: 16
   mem_gb: 256
   timeout_min: 720
   slurm_setup:
      - source .venv/bin/activate
"""
OWN_BATCH = """
trainer:
   effective_batch_size: 64   # multiple of world_size = nodes * gpus_per_node = 8
"""
SUBMIT = r"""
noether-train-submit-job --hp configs/train_shapenet.yaml \
    +experiment/shapenet=upt \
    dataset_root=/data/shapenet_car
"""
EXPERIMENTS = ("upt", "ab_upt", "transformer", "transolver")
STEP = SlurmConfig(nodes=2, gpus_per_node=4)


def run(command: str, environ: dict[str, str], cwd: Path = REPOSITORY, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a reader of the guide types it, with this environment's programs on the PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    variables = {**environ, "PATH": path, "VIRTUAL_ENV": sys.prefix, **more}
    return subprocess.run(["bash", "-c", command], cwd=cwd, env=variables, capture_output=True, text=True, timeout=120)


def as_plan(command: str, devices: str) -> str:
    """Return the `noether plan` command that plans a `noether-train` command for a machine with these devices."""
    assert command.count("noether-train ") == 1
    return command.strip().replace("noether-train ", "noether plan ") + f" --json --visible-devices {devices}"


def planned(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def mask(count: int) -> str:
    return ",".join(map(str, range(count)))


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_guide_s_command_on_one_machine(experiment: str, count: int, environ) -> None:
    command = ONE.replace("shapenet=upt", f"shapenet={experiment}")
    plan = planned(run(as_plan(command, mask(count)), environ))
    assert (plan["world_size"], plan["batch"]["effective"]) == (count, 8)
    assert [worker["device"] for worker in plan["workers"]] == [f"cuda:{index}" for index in range(count)]


@pytest.mark.parametrize("count", [4, 8])
def test_the_guide_s_choice_of_devices(count: int, environ) -> None:
    plan = planned(run(as_plan(FOUR_DEVICES, mask(count)), environ))
    assert [worker["device"] for worker in plan["workers"]] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]


@pytest.mark.parametrize("prefix", ["", "uv run "])
def test_the_guide_s_step_of_two_nodes_of_four_tasks(prefix: str, environ) -> None:
    if prefix and not shutil.which("uv", path=str(Path(sys.executable).parent)):
        pytest.skip("uv is not installed")
    srun = BATCH_SCRIPT.partition("srun uv run ")[2]
    for rank in (0, 7) if prefix else range(8):
        task = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 4), "SLURM_NODEID": str(rank // 4)}
        plan = planned(run(prefix + as_plan(srun, mask(4)), {**environ, **stand_in_environment(STEP), **task}))
        assert (plan["world_size"], plan["batch"]["per_rank"]) == (8, 1)
        assert [(worker["rank"], worker["device"]) for worker in plan["workers"]] == [(rank, f"cuda:{rank % 4}")]


def test_our_settings_hold_the_guide_s_slurm_section(environ, tmp_path: Path) -> None:
    assert SETTINGS in (REPOSITORY / "configs/train_shapenet.yaml").read_text()
    done = run(SUBMIT.strip() + " --print", environ)
    assert done.returncode == 0, done.stderr
    asked = [line.removeprefix("#SBATCH --") for line in done.stdout.splitlines() if line.startswith("#SBATCH --")]
    for option in BATCH_SCRIPT.splitlines():
        name, _, value = option.removeprefix("#SBATCH --").partition(" ")[0].partition("=")
        if option.startswith("#SBATCH") and name not in ("job-name", "output"):
            assert f"{name}={'720' if name == 'time' else value}" in asked, asked
    assert "\nsource .venv/bin/activate\n" in done.stdout
    shown = run(SUBMIT.strip() + " --dry-run", environ)
    assert "8 samples per update = 8 ranks × 1" in shown.stdout, shown.stderr


@pytest.mark.parametrize("has_defaults", [True, False], ids=["added-to-ours", "alone"])
def test_the_guide_s_file_with_its_own_batch(has_defaults: bool, environ, tmp_path: Path) -> None:
    """The batch size in the guide's file overrides that of the experiment."""
    (tmp_path / "configs").mkdir()
    ours = (REPOSITORY / "configs/train_shapenet.yaml").read_text() if has_defaults else SETTINGS
    (tmp_path / "configs/train_shapenet.yaml").write_text(ours + OWN_BATCH)
    done = run(SUBMIT.strip() + " --dry-run", environ, cwd=tmp_path)
    assert (done.returncode, "64 samples per update = 8 ranks × 8" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_recipe_of_one_sample_is_there(experiment: str, environ) -> None:
    published = ONE.replace("=upt", f"={experiment}_published")
    assert planned(run(as_plan(published, "0"), environ))["batch"]["effective"] == 1
    refused = run(as_plan(published, "0,1"), environ)
    assert (refused.returncode, "trainer.effective_batch_size=2" in refused.stderr) == (2, True), refused.stderr


def test_the_guide_s_batch_script_has_no_error(environ, tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    (tmp_path / "logs").mkdir()
    (tmp_path / "job.sbatch").write_text(BATCH_SCRIPT)
    done = run("noether lint job.sbatch", environ, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
