"""The code of docs/python.md on a cluster: jobs of `noether.submit`, and `noether.train` in a job of submitit."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import REPOSITORY, TINY
from documented import python_blocks

from launch.slurm.conftest import PATH, Slurm, wait_for

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
PAGE = python_blocks(REPOSITORY / "docs" / "python.md")
BROKEN = """
import torch
class Model(torch.nn.Module):
    def __init__(self): raise RuntimeError("it breaks")
    def forward(self, batch): return batch
"""
FAILS = """
import noether
job = noether.submit("--hp cars.yaml", run_id="wrong", model={"kind": "broken.Model"})
try:
    job.result()
except noether.RunEnded as ended:
    print(ended.code, ended.exit_code, ended.path, job.state, ended.seen)
"""
CANCELS = """
import noether
from pathlib import Path
job = noether.SubmittedJob("{job}", Path("runs/long"))
try:
    job.wait(timeout=1)
except TimeoutError:
    print("not ended", job.done())
job.cancel()
try:
    job.result()
except noether.RunEnded as ended:
    print(ended.code, ended.exit_code, job.done())
"""


@pytest.fixture
def types(slurm: Slurm, tmp_path: Path, variables: dict[str, str]) -> Callable[..., str]:
    """Return a function that runs a script in a folder with cars.yaml on the login host, and returns its output."""
    (tmp_path / TINY.name).write_text(TINY.read_text())
    (tmp_path / "broken.py").write_text(BROKEN)

    def run(code: str, updates: int = 4) -> str:
        own = f"defaults: [{TINY.stem}, _self_]\ndevices: null\ntrainer: {{max_updates: {updates}}}\n"
        (tmp_path / "cars.yaml").write_text(own)
        (tmp_path / "script.py").write_text(code)
        line = ["env", f"--chdir={tmp_path}", sys.executable, "script.py"]
        environ = variables | {"PATH": PATH, "PYTHONPATH": f"{REPOSITORY}:{':'.join(sys.path)}"}
        done = slurm.on("login", *line, limit_s=240, **environ)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def is_told_to_save(slurm: Slurm, folder: Path, job: int) -> None:
    """When a job trains, send it the signal that Slurm sends before a time limit; wait until the job is requeued."""
    wait_for("an update", (folder / "metrics.jsonl").is_file, 150, lambda: slurm.explain(job))
    slurm.run("scancel", "--signal=USR2", str(job))
    wait_for("its requeue", lambda: slurm.show(job)["Restarts"] == "1", 150, lambda: slurm.explain(job))


def test_a_job_is_waited_for_and_gives_its_run_or_says_why_not(types, tmp_path: Path) -> None:
    said = types(PAGE["On Slurm"] + "print(job, run)\n")
    assert f": COMPLETED, {tmp_path}/runs/cars> <run {tmp_path}/runs/cars: done, update 4/4" in said
    failed = types(FAILS)
    assert re.match(rf"run-failed 1 {tmp_path}/runs/wrong FAILED job \d+, FAILED\n", failed), failed
    assert "RuntimeError: it breaks" in failed


def test_a_requeued_job_has_not_ended_and_a_cancelled_one_has(slurm: Slurm, types, tmp_path: Path) -> None:
    job = int(types("import noether\nprint(noether.submit('--hp cars.yaml', run_id='long').id)\n", 9000))
    is_told_to_save(slurm, tmp_path / "runs/long", job)
    said = types(CANCELS.format(job=job))
    assert "not ended False" in said
    assert "run-stopped 75 True" in said


def test_a_task_of_submitit_that_stops_goes_on_when_it_is_queued_again(slurm: Slurm, types, tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    job = int(types(PAGE["With submitit"] + "print(job.job_id)\n", 100))
    is_told_to_save(slurm, tmp_path / "runs/cars", job)
    assert slurm.wait(job, limit_s=200) == "COMPLETED", slurm.explain(job)
    log = (tmp_path / f"submitit/{job}_0_log.out").read_text()
    assert "resumed cars after update" in log
    said = types(f"import submitit\nprint(submitit.SlurmJob('submitit', '{job}', [0, 1]).results())\n")
    assert said.count(f"{tmp_path}/runs/cars") == 2
