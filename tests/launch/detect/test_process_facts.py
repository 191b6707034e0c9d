"""The Slurm step of a process is read from the system, and so is whether a person types into its shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from noether.launch.detect.process_facts import ProcessFacts, interactive_shell, read_process_facts, step_seen

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("facts", "job", "step"),
    [
        pytest.param(ProcessFacts(ancestors=("slurmstepd: [13.0]",)), "13", "0", id="a task"),
        pytest.param(ProcessFacts(ancestors=("bash job.sh", "slurmstepd: [13.batch]")), "13", "batch", id="batch"),
        pytest.param(ProcessFacts(ancestors=("slurmstepd: [31+1.0]",)), "31", "0", id="heterogeneous component"),
        pytest.param(ProcessFacts(ancestors=("slurmstepd: [31.0+1]",)), "31", "0", id="heterogeneous step"),
        pytest.param(ProcessFacts(ancestors=("slurmstepd: [14.0]", "slurmstepd: [13.batch]")), "14", "0",
            id="the nearest counts"),
        pytest.param(ProcessFacts(cgroup="4:devices:/slurm/uid_0/job_13/step_0\n"), "13", "0", id="cgroup v1"),
        pytest.param(ProcessFacts(cgroup="0::/system.slice/slurmstepd.scope/job_13/step_batch/user/task_0\n"), "13",
            "batch", id="cgroup v2"),
        pytest.param(ProcessFacts(ancestors=("slurmstepd: [13.1]",), cgroup="0::/job_12/step_0"), "13", "1",
            id="ancestor first"),
    ],
)  # fmt: skip
def test_the_step_that_is_seen(facts: ProcessFacts, job: str, step: str) -> None:
    seen = step_seen(facts)
    assert seen is not None
    assert (seen.job_id, seen.step) == (job, step)
    assert step in seen.evidence


def test_no_step_is_seen_in_a_file_of_that_name_or_another_job() -> None:
    assert step_seen(ProcessFacts(ancestors=("vim slurmstepd:notes", "systemd"))) is None
    assert step_seen(ProcessFacts(cgroup="0::/kubepods/job_1\n")) is None


@pytest.mark.parametrize(
    ("ancestors", "shell"),
    [
        pytest.param(("bash", "slurmstepd: [2.0]"), "bash", id="bash"),
        pytest.param(("bash --rcfile f -i", "slurmstepd: [2.0]"), "bash --rcfile f -i", id="-i"),
        pytest.param(("apptainer run x.sif", "bash", "slurmstepd: [2.0]"), "bash", id="a container between"),
        pytest.param(("bash -c noether train", "slurmstepd: [2.0]"), "", id="bash -c is a wrapper"),
        pytest.param(("bash job.sh", "slurmstepd: [2.0]"), "", id="a script is a wrapper"),
        pytest.param(("slurmstepd: [2.0]", "bash"), "", id="a shell above slurmstepd"),
        pytest.param(("python x.py", "tini"), None, id="neither is seen"),
    ],
)
def test_interactive_shells(ancestors: tuple[str, ...], shell: str | None) -> None:
    assert interactive_shell(ProcessFacts(ancestors=ancestors)) == shell


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_daemon_among_the_real_ancestors_is_found() -> None:
    code = (
        "from noether.launch.detect.process_facts import read_process_facts, step_seen\n"
        "facts = read_process_facts()\n"
        "print(facts.stdin_is_terminal, len(facts.ancestors) > 1, step_seen(facts).evidence)"
    )
    parent = "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"
    command = ["slurmstepd: [13.0]", "-c", parent, "bash", "-c", f"{sys.executable} -c '{code}'; exit $?"]
    io = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    result = subprocess.run(command, executable=sys.executable, cwd=ROOT, **io, timeout=60, check=True)
    assert result.stdout.strip() == "False True its ancestor process is slurmstepd: [13.0]"


def test_what_cannot_be_read_stays_unknown(tmp_path: Path) -> None:
    facts = read_process_facts(tmp_path)
    assert (facts.ancestors, facts.cgroup) == ((), "")
    (tmp_path / str(os.getppid())).mkdir()
    (tmp_path / str(os.getppid()) / "cmdline").write_bytes(b"")
    (tmp_path / str(os.getppid()) / "stat").write_text(f"{os.getppid()} (a (b) c) S 0" + 50 * " 1")
    assert read_process_facts(tmp_path).ancestors == ("a (b) c",)
