"""`srun apptainer exec noether.sif train` on a real Slurm: the ranks find each other from inside the SIF."""

import json
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, TINY
from launch.slurm.conftest import Slurm, end_jobs, slurm  # noqa: F401
from learned import PROOF, check_learned

from noether.runs.folder import RunFolder

pytestmark = pytest.mark.slow


@pytest.fixture
def inside(sif: Path, image_variables: dict[str, str], cache, tmp_path):
    """Return the command and variables of `srun … apptainer exec … SIF train` for a run in this test's folder."""
    variables = {
        "PATH": image_variables["PATH"],
        "APPTAINER_DROP_CAPS": image_variables.get("APPTAINER_DROP_CAPS", ""),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(cache),
        "OMP_NUM_THREADS": "1",
    }
    binds = f"--bind={TINY.parent},{tmp_path},{cache}"

    def words(name: str, *overrides: str, flags: tuple[str, ...] = ()) -> list[str]:
        run = ["train", "--hp", str(TINY), f"output_path={tmp_path}", f"run_id={name}", *PROOF, *overrides]
        return ["apptainer", "exec", binds, *flags, str(sif), *run]

    return words, variables


def test_cleanenv_is_refused_by_its_name(slurm: Slurm, inside, tmp_path) -> None:  # noqa: F811
    """Without the variables SLURM_*, each of four tasks would train alone into its own folder, on the same device."""
    words, variables = inside
    command = words("alone", flags=("--cleanenv",))
    done = slurm.srun("-N2", "--ntasks-per-node=2", "-t3", *command, limit_s=200, **variables)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "--cleanenv" in done.stderr
    assert not (tmp_path / "alone").exists()


def test_a_submitted_job_learns_in_its_container_what_one_process_learns(
    slurm: Slurm,  # noqa: F811
    sif,
    inside,
    by_one,
    tmp_path,
) -> None:
    """Run `noether submit slurm.container=noether.sif` on a login node that has noether and the image."""
    _, variables = inside
    settings = ["devices=null", "output_path=runs", "run_id=submitted", *PROOF]
    mounts = ",".join(map(str, (TINY.parent, variables["XDG_CACHE_HOME"])))
    place = ["slurm.nodes=2", "slurm.tasks_per_node=2", f"slurm.container={sif}", f"slurm.container_mounts=[{mounts}]"]
    words = [sys.executable, "-m", "noether", "submit", "--hp", str(TINY), *settings, *place]
    variables = {**variables, "PYTHONPATH": str(REPOSITORY)}
    done = slurm.on("login", "env", f"--chdir={tmp_path}", *words, limit_s=120, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = RunFolder(tmp_path / "runs" / "submitted")
    job = json.loads(folder.job.read_text())
    state = slurm.wait(int(job["job"]), limit_s=300)
    assert state == "COMPLETED", Path(job["output"]).read_text()
    assert json.loads(folder.environment.read_text())["image"], "the job must run in the image"
    check_learned(folder, "slurm", 4, by_one)
