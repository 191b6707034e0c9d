"""`noether submit` on a real Slurm: preemption, requeue, cancel, sweeps, and the commands of docs/slurm.md."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, TINY
from misbehaving import processes_of
from sharing import in_every_push

from launch.slurm.conftest import PATH, Finished, Slurm, check_learned_alike, wait_for
from noether.checkpoints.format import newest_update
from noether.runs.folder import RunFolder
from noether.runs.lease import read_attempts

pytestmark = pytest.mark.timeout(900)  # The jobs wait for each other.
NOETHER = (sys.executable, "-m", "noether")
SHAPE = ("devices=null", "slurm.slurm_partition=low", "slurm.nodes=2")
LONG, ENDLESS = "trainer.max_updates=160", "trainer.max_updates=9000"
MOMENTS = {"before-torch-is-imported": "/python", "while-ranks-meet": "libtorch_cpu"}
"""By moment: part of the name of a file that each rank of a job has mapped from that moment on."""


class User:
    """A user who types commands on the login node, in a private folder."""

    def __init__(self, slurm: Slurm, folder: Path, variables: dict[str, str]) -> None:
        self.slurm, self.folder = slurm, folder
        self.variables = variables | {"PATH": f"{folder}/bin:{PATH}", "PYTHONPATH": str(REPOSITORY)}

    def types(self, *command: str, limit_s: float = 120, code: int = 0) -> Finished:
        done = self.slurm.on("login", "env", f"--chdir={self.folder}", *command, limit_s=limit_s, **self.variables)
        assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
        return done

    def submits(self, name: str, *words: str) -> tuple[int, RunFolder]:
        flags = [word for word in words if word.startswith("-")]
        settings = [word for word in words if not word.startswith("-")]
        self.types(*NOETHER, "submit", *flags, "--hp", str(TINY), *SHAPE, f"run_id={name}", *settings)
        folder = RunFolder(self.folder / "runs" / name)
        return int(json.loads(folder.job.read_text())["job"]), folder

    def rows(self, folder: RunFolder) -> list[dict]:
        lines = folder.metrics.read_text().splitlines() if folder.metrics.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def waits_for_updates(self, folder: RunFolder, job: int, more_than: int = 0) -> None:
        def trained() -> bool:
            return any(row["kind"] == "training" and row["update"] > more_than for row in self.rows(folder))

        wait_for(f"updates of {folder.path.name}", trained, 150, lambda: said(folder) + str(self.slurm.show(job)))


def said(folder: RunFolder) -> str:
    output = Path(json.loads(folder.job.read_text())["output"])
    return output.read_text() if output.exists() else "no output"


def maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # The process has ended.
        return ""


@pytest.fixture
def user(slurm: Slurm, tmp_path: Path, variables: dict[str, str]) -> User:
    return User(slurm, tmp_path, variables)


@pytest.mark.slow
def test_a_job_survives_a_preemption(slurm: Slurm, user: User) -> None:
    """Every rank receives SIGTERM, the run is saved, Slurm requeues the job, and the run is trained to its end."""
    job, folder = user.submits("preempted", LONG)
    user.waits_for_updates(folder, job)
    slurm.submit("sleep 1", "--partition=high", "-N4", "--exclusive")
    assert slurm.wait(job, limit_s=250) == "COMPLETED", said(folder)
    assert slurm.show(job)["Restarts"] == "1"
    resumed = re.search(r"resumed \w+ after update (\d+)", said(folder))
    assert resumed, said(folder)
    assert 0 < int(resumed[1]) < 160
    assert json.loads(folder.result.read_text())["world_size"] == 2
    assert newest_update(folder.checkpoints) == 160
    updates = [row["update"] for row in user.rows(folder) if row["kind"] == "training"]
    assert updates == list(range(2, 161, 2)), "no update may be lost or repeated"


@pytest.mark.slow
def test_a_job_told_to_save_is_queued_again_and_a_cancelled_one_is_not(slurm: Slurm, user: User) -> None:
    """First the job gets the signal that --signal sends before a limit; then `noether cancel` saves and ends it."""
    job, folder = user.submits("told", ENDLESS)
    user.waits_for_updates(folder, job)
    slurm.run("scancel", "--signal=USR2", str(job))
    wait_for("the run to be resumed", lambda: "resumed" in said(folder), 120, lambda: said(folder))
    assert slurm.show(job)["Restarts"] == "1"
    assert "queued again" in said(folder)
    done = user.types(*NOETHER, "cancel", "runs/told")
    assert "everything is saved" in done.stdout, done.stdout + said(folder)
    assert "cancelled; everything is saved" in said(folder)
    (state,) = json.loads(user.types(*NOETHER, "status", "--json").stdout)["runs"]
    assert state["state"] == "stopped"
    assert 0 < state["update"] < state["total_updates"] == 9000
    assert str(job) not in slurm.jobs()


def told_to_save(slurm: Slurm, folder: RunFolder, job: int, mapped: str) -> None:
    """Tell the ranks of a job to save, once each process has mapped a file with `mapped` in its path."""

    def tasks() -> list[int]:
        found = processes_of(f"SLURM_JOB_ID={job}\0")
        return [pid for pid, command in found.items() if command.startswith(sys.executable) and mapped in maps(pid)]

    wait_for("the tasks", lambda: len(tasks()) >= 2, 120, lambda: said(folder))
    slurm.run("scancel", "--signal=USR2", str(job))


@pytest.mark.slow
@pytest.mark.parametrize("mapped", in_every_push(MOMENTS, "before-torch-is-imported"))
def test_a_job_told_to_save_before_its_ranks_have_met_is_queued_again(mapped: str, slurm: Slurm, user: User) -> None:
    """If the ranks have met before they get the signal, they get it during the first of many updates."""
    job, folder = user.submits("early", LONG, 'slurm.nodelist="n[1-2]"')
    told_to_save(slurm, folder, job, mapped)
    assert slurm.wait(job, limit_s=250) == "COMPLETED", said(folder)
    assert int(slurm.show(job)["Restarts"]) >= 1
    assert "queued again" in said(folder)
    assert folder.result.is_file()
    assert newest_update(folder.checkpoints) == 160


@pytest.mark.slow
def test_a_job_that_is_stopped_whenever_it_starts_is_not_queued_again_for_ever(slurm: Slurm, user: User) -> None:
    """Regression: although no attempt wrote a record, each was requeued with "everything is saved"."""
    job, folder = user.submits("loop", ENDLESS, 'slurm.nodelist="n[1-2]"')
    for start in range(3):
        wait_for("the start", lambda start=start: slurm.show(job)["Restarts"] == str(start), 120)
        told_to_save(slurm, folder, job, "/python")
        wait_for(
            "the stop", lambda start=start: said(folder).count("nothing is saved") > start, 60, lambda: said(folder)
        )
    slurm.wait(job, until="CANCELLED")
    assert "nothing is saved in runs/loop yet; 3 starts in a row saved nothing new; not queued again" in said(folder)
    assert "everything is saved" not in said(folder)


@pytest.mark.slow
def test_a_run_that_gets_nowhere_is_not_queued_again_for_ever(slurm: Slurm, user: User) -> None:
    """The first attempt saves an update; each later attempt is stopped in the evaluation that is still due."""
    too_short = ("trainer.evaluate_every=1 updates", "trainer.timeout_min=0.1")  # Less than the margin before a limit.
    job, folder = user.submits("nowhere", "slurm.nodes=1", *too_short)
    slurm.wait(job, limit_s=280)
    assert "3 starts in a row saved nothing new; not queued again" in said(folder), said(folder)
    assert slurm.show(job)["Restarts"] == "3"
    starts = [(start.start_update, start.last_update) for start in read_attempts(folder)]
    assert starts == [(0, 1), (1, 1), (1, 1), (1, 1)]


@pytest.mark.slow
def test_a_sweep_is_one_array(slurm: Slurm, user: User) -> None:
    words = ("--hp", str(TINY), "devices=null", "slurm.slurm_array_parallelism=2", "trainer.max_updates=4")
    user.types(*NOETHER, "submit", "-m", *words, "run_id=swept", "seed=1,2", "optimizer=sgd,adamw")
    waiting = json.loads(user.types(*NOETHER, "status", "--json").stdout)["runs"]
    assert len(waiting) == 4
    wait_for("the array", lambda: not slurm.jobs(), 240, lambda: user.types("squeue").stdout)
    states = json.loads(user.types(*NOETHER, "status", "--json").stdout)["runs"]
    assert {state["state"] for state in states} == {"done"}, states
    configs = [(user.folder / "runs" / f"swept-{index}" / "config.yaml").read_text() for index in range(4)]
    found = [(re.search(r"^seed: (\d)", text, re.M)[1], "kind: sgd" in text) for text in configs]  # type: ignore[index]
    assert found == [("1", True), ("1", False), ("2", True), ("2", False)]


CONTRADICTION = ["slurm.tasks_per_node=3", "slurm.gpus_per_node=a100:4"]


@pytest.mark.parametrize("wrong", [["trainer.max_updates=soon"], CONTRADICTION], ids=["wrong-type", "contradiction"])
def test_a_wrong_configuration_never_reaches_the_queue(wrong, slurm: Slurm, user: User) -> None:
    before = slurm.jobs()
    submitted = user.types(*NOETHER, "submit", "--hp", str(TINY), *wrong, code=2)
    trained = user.types(*NOETHER, "train", "--hp", str(TINY), *wrong, code=2)
    assert submitted.stderr == trained.stderr
    assert slurm.jobs() == before


def test_what_slurm_refuses_is_said_in_its_words(user: User) -> None:
    words = ("--hp", str(TINY), "run_id=lost", "slurm.slurm_partition=nowhere")
    done = user.types(*NOETHER, "submit", *words, code=1)
    assert "invalid partition" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (user.folder / "runs" / "lost").exists()


def test_a_folder_that_cannot_be_made_is_the_user_s_to_mend(user: User) -> None:
    (user.folder / "file").touch()
    done = user.types(*NOETHER, "submit", "--hp", str(TINY), "slurm.folder=file/%j", "run_id=lost", code=2)
    assert "slurm.folder=FOLDER" in done.stderr


def test_a_run_in_the_queue_is_not_submitted_twice(slurm: Slurm, user: User) -> None:
    job, _ = user.submits("once", "slurm.slurm_additional_parameters={begin: now+1hour}")
    words = (*NOETHER, "submit", "--hp", str(TINY), *SHAPE, "run_id=once")
    assert f"job {job}, PENDING" in user.types(*words, code=2).stderr
    assert "removed from the queue" in user.types(*NOETHER, "cancel", "runs/once").stdout
    assert "nothing" in user.types(*NOETHER, "logs", "runs/once", code=2).stderr
    assert str(job) not in slurm.jobs()


def test_a_printed_script_is_a_run_from_the_moment_it_waits(slurm: Slurm, user: User) -> None:
    """Only squeue knows the waiting job: there is neither a run folder nor job.json."""
    later = ("slurm.slurm_additional_parameters={begin: now+1hour}", "run_id=a b")
    words = shlex.join([*NOETHER, "submit", "--print", "-m", "--hp", str(TINY), *SHAPE, *later, "seed=1,2"])
    job = int(user.types("sh", "-c", f"{words} | sbatch --parsable").stdout)
    assert not (user.folder / "runs").exists()
    states = json.loads(user.types(*NOETHER, "status", "--json").stdout)["runs"]
    found = [(state["run"], state["state"], state["job"]) for state in states]
    assert found == [(f"runs/a b-{index}", "waiting", f"{job}_{index}") for index in range(2)]
    assert "has written nothing yet" in user.types(*NOETHER, "logs", "a b-0", code=2).stderr
    for index in range(2):
        assert "removed from the queue" in user.types(*NOETHER, "cancel", f"runs/a b-{index}").stdout
    assert not any(queued.startswith(str(job)) for queued in slurm.jobs())


@pytest.mark.slow
def test_the_commands_of_the_page_on_slurm_run(slurm: Slurm, user: User) -> None:
    """The commands run in the page's order, in one folder; wrapper programs reduce only data and lengths."""
    from test_readme import SMALL

    quick = f"{SMALL} accelerator=cpu trainer.max_updates=4 tracker.report=false tracker.tensorboard=false"
    program = user.folder / "bin" / "noether"
    program.parent.mkdir()
    start = f"exec {sys.executable} -m noether"
    small = f'quick="{quick}"; [ "$1" = submit ] && [ "$2" != run ] || quick='
    program.write_text(f'#!/bin/sh\n{small}\n{start} "$@" $quick\n')
    documented = user.folder / "bin" / "noether-train-submit-job"
    entry = Path(sys.executable).with_name("noether-train-submit-job")
    documented.write_text(f'#!/bin/sh\nexec {entry} "$@" {quick}\n')
    for path in (program, documented):
        path.chmod(0o755)
    (user.folder / "cars.yaml").write_text("defaults: [/train, _self_]\nseed: 3\n")
    (user.folder / "train.py").symlink_to(Path(__file__).with_name("any_script.py"))
    blocks = re.findall(r"^```sh\n(.*?)^```", (REPOSITORY / "docs" / "slurm.md").read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines() if line.strip()]
    assert len(lines) > 5
    for line in lines:
        if "noether logs" in line:
            wait_for("the first run", (user.folder / "runs" / "cars" / "result.json").exists, 170)
        user.types("sh", "-c", line, limit_s=170)
    wait_for("the jobs of the page", lambda: not slurm.jobs(), 240, lambda: user.types("squeue").stdout)
    states = json.loads(user.types(*NOETHER, "status", "--json").stdout)["runs"]
    assert {state["state"] for state in states} == {"done"}, states
    outputs = {path.stem: path.read_text() for path in (user.folder / "slurm").glob("*.out")}
    of_script = {name: text for name, text in outputs.items() if " learned " in text}
    (whole,) = (text for name, text in of_script.items() if "_" not in name)
    check_learned_alike(whole)
    again = {name.partition("_")[2]: "queued again" in text for name, text in of_script.items() if "_" in name}
    assert again == {"0": False, "1": True}, "only the task that exited with 75 may be queued again"
