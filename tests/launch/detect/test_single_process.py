"""`srun -n2 noether evaluate RUN` is refused in words, and a lone process anywhere in a job works."""

from pathlib import Path

import pytest
from processes import mpirun
from slurm_steps import batch_script, job_variables, step
from test_torchrun_placement import torchrun

from noether.launch.detect.process_facts import NOTHING_KNOWN
from noether.launch.detect.resolve import refuse_several
from tests.refusal import refusal

TWO_NODES = ["n1", "n2"]
FOUR_TASKS = step([2, 2], names=TWO_NODES)
TORCHRUN = torchrun(2)[1]


@pytest.mark.parametrize(
    ("environ", "host", "started", "fix"),
    [
        pytest.param(
            FOUR_TASKS[3], "n2", 4, "srun --nodes=1 --ntasks=1 noether evaluate …", id="the last task of srun"
        ),
        pytest.param(TORCHRUN, "box", 2, "noether evaluate …      (without the launcher)", id="torchrun"),
    ],
)
def test_several_processes_are_refused(environ: dict[str, str], host: str, started: int, fix: str) -> None:
    with refusal("one-process-only") as caught:
        refuse_several("evaluate", environ, host, NOTHING_KNOWN)
    assert caught.value.fix == fix


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        pytest.param({}, "box", id="a person"),
        pytest.param(step([1], names=["n1"])[0], "n1", id="one task"),
        pytest.param(job_variables(TWO_NODES, [2, 2]), "login", id="a shell of salloc"),
        pytest.param(batch_script(TWO_NODES, [2, 2]), "n1", id="a batch script of a larger job"),
        pytest.param({"RANK": "1"}, "box", id="a variable left behind"),
    ],
)
def test_one_process_works(environ: dict[str, str], host: str) -> None:
    refuse_several("evaluate", environ, host, NOTHING_KNOWN)


def test_mpirun_of_a_report_is_refused_and_writes_nothing(environ, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    done = mpirun(["report", str(tmp_path)], environ)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "noether report runs in one process, but 2 were started" in done.stderr
    assert "mpirun -n 1 noether report …" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
