"""`noether status`, `logs` and `cancel` show the state and the output of runs, and stop them."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from conftest import TINY
from processes import wait_for

from noether.common.atomic_write import write_json
from noether.common.processes import JOB_STOP_SIGNAL, boot_id
from noether.launch.detect.slurm.queue import QueuedJob, clean_environment
from noether.runs.cancel import cancel_run
from noether.runs.folder import RunFolder
from noether.runs.lease import job_of_task, read_attempt, read_attempts, record_meeting, take_lease
from noether.runs.overview import job_of_run, run_state, runs_under, status_table
from noether.runs.records import parse_record
from tests.refusal import refusal

HERE = {
    **{"number": 1, "id": "a", "job": None, "is_task": False, "requeues": 0, "host": socket.gethostname()},
    **{"pid": os.getpid(), "started": 0, "boot": boot_id(), "began": 0.0, "exit_code": None},
}
ELSEWHERE = {**HERE, "host": "n7"}
OF_JOB = {**ELSEWHERE, "job": "12", "is_task": True}
SAVED, BY_SIGTERM = {**OF_JOB, "exit_code": 75}, {"reason": "SIGTERM", "update": 3}
STATES = {
    "waits": ({"job.json": {"job": "12"}}, ("PENDING", "Priority"), "waiting", "job 12 PENDING (Priority)"),
    "runs-in-its-job": ({"attempt.json": OF_JOB}, ("RUNNING", "None"), "running", "job 12 RUNNING"),
    "is-suspended": ({"attempt.json": OF_JOB}, ("SUSPENDED", "None"), "running", "job 12 SUSPENDED"),
    "waits-for-its-nodes-to-boot": ({"job.json": {"job": "12"}}, ("CONFIGURING", "None"), "waiting", "job 12 CONFIG"),
    "waits-after-a-requeue": (
        {"attempt.json": SAVED, "stopped.json": {}},
        ("PENDING", "BeginTime"),
        "waiting",
        "Begin",
    ),
    "done": ({"attempt.json": {**HERE, "exit_code": 0}, "result.json": {"metrics": {}}}, None, "done", "evaluated"),
    "stopped": ({"attempt.json": SAVED, "stopped.json": BY_SIGTERM}, None, "stopped", "SIGTERM, everything is saved"),
    "stopped-while-it-started": (
        {"attempt.json": SAVED, "stopped.json": {"update": 0}},
        None,
        "stopped",
        "nothing was saved",
    ),
    "stopped-and-killed-while-it-left": ({"attempt.json": OF_JOB, "stopped.json": {}}, None, "stopped", "is saved"),
    "failed": ({"attempt.json": {**HERE, "exit_code": 1}}, None, "failed", "exit code 1"),
    "killed": ({"attempt.json": HERE}, None, "lost", "without a record"),
    "job-gone-before-it-started": ({"job.json": {"job": "12"}}, None, "lost", "it was never started"),
    "cancelled-before-it-started": ({"job.json": {"job": "12"}, "cancelled": {}}, None, "stopped", "before it started"),
    "another-host": ({"attempt.json": ELSEWHERE}, None, "lost", "on n7"),
    "unreadable-file": ({"attempt.json": {"pid": 3}, "result.json": {}}, None, "done", "evaluated"),
}


def folder_with(path: Path, files: dict[str, dict]) -> RunFolder:
    for name, content in files.items():
        write_json(path / name, content)
    return RunFolder(path)


def test_a_start_that_is_refused_in_its_folder_is_a_failure_and_not_lost(noether, tmp_path: Path) -> None:
    words = ["--hp", str(TINY), f"output_path={tmp_path}", "run_id=refused", "trainer.select_by=beauty"]
    assert noether("train", *words).code == 2
    folder = RunFolder(tmp_path / "refused")
    attempt = read_attempt(folder)
    assert attempt.exit_code == 2
    assert [row.outcome for row in read_attempts(folder)] == ["failed"]
    assert run_state(folder, {}).state == "failed"
    assert not list(tmp_path.glob("refused/.attempt-*"))


@pytest.mark.parametrize(("files", "job", "state", "why"), STATES.values(), ids=STATES.keys())
def test_the_state_of_a_run(files, job, state, why, tmp_path: Path) -> None:
    queued = {"12": QueuedJob("12", job[0], "1:00", job[1], "cars")} if job else {}
    found = run_state(folder_with(tmp_path, files), queued)
    assert found.state == state
    assert why in found.why


@pytest.mark.parametrize(
    ("comment", "job", "run"),
    [
        pytest.param("noether:runs/cars", "12", "{here}/runs/cars", id="beside-where-it-was-submitted"),
        pytest.param("noether:/data/runs/it's a|b", "12", "/data/runs/it's a|b", id="elsewhere-and-awkward"),
        pytest.param("noether:runs/cars-%a", "12_3", "{here}/runs/cars-3", id="element-of-an-array"),
        pytest.param("noether:runs/cars-%a", "12", "{here}/runs/cars-%a", id="a-name-that-ends-like-an-array"),
        pytest.param("thanks, runs/cars", "12", None, id="somebody-else-s"),
    ],
)
def test_a_job_that_nothing_is_known_of_names_its_run_in_its_comment(comment, job, run, tmp_path: Path) -> None:
    queued = {job: QueuedJob(job, "PENDING", "1:00", "Priority", "cars", comment, str(tmp_path))}
    folder = Path(run.format(here=tmp_path)) if run else None
    assert queued[job].run == folder
    if folder:
        assert run_state(RunFolder(folder), queued).why == f"job {job} PENDING (Priority)"
        assert [found.path for found in runs_under(folder.parent, queued)] == [folder]


def test_progress_and_metrics_are_the_newest(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"plan.json": {"length": {"total_updates": 20}}, "attempt.json": OF_JOB})
    now = time.time()
    rows = [
        {"kind": "training", "update": 2, "loss": 3.0, "time": now - 8},
        {"kind": "training", "update": 4, "loss": 2.0, "time": now - 4},
        {"kind": "evaluation", "update": 4, "split": "validation", "metrics": {"p/relative_l2": 0.5}, "selected": True},
        {"kind": "evaluation", "update": 4, "metrics": {"p/relative_l2": 0.9}, "weights": "raw", "time": now},
    ]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"cut')
    found = run_state(folder, {"12": QueuedJob("12", "RUNNING", "1:00", "None", "cars")})
    assert (found.update, found.total_updates, found.training_loss, found.time_left) == (4, 20, 2.0, "1:00")
    assert (found.split, found.metrics) == ("validation", {"p/relative_l2": 0.5})
    assert found.seconds_left == pytest.approx(16 * 2 - 4, abs=2)
    shown = {column.header: list(column.cells) for column in status_table([found]).columns}
    assert (shown["training loss"], shown["split"]) == (["2.000"], ["validation"])


def test_the_newer_of_two_jobs_is_the_run_s(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"attempt.json": {**OF_JOB, "began": time.time() - 60}, "job.json": {"job": "13"}})
    assert job_of_run(folder) == "13"
    write_json(folder.attempt, {**OF_JOB, "began": time.time() + 60})
    assert job_of_run(folder) == "12"


def test_a_process_is_recorded_and_its_number_alone_does_not_count(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"stopped.json": {}})
    lease = take_lease(folder, {})
    lease.drop(folder.stopped)
    assert not folder.stopped.exists()
    assert lease.own.alive()
    write_json(folder.attempt, {**parse_record(folder.attempt), "started": lease.own.started - 1})
    assert read_attempt(folder).alive() is False  # type: ignore[union-attr]
    lease.release(75)
    assert (read_attempt(folder).exit_code, read_attempt(folder).alive()) == (75, False)  # type: ignore[union-attr]
    assert not list(tmp_path.rglob(".attempt-*"))
    write_json(folder.attempt, newer := {**OF_JOB, "id": "b"})
    lease.release(1)
    assert parse_record(folder.attempt) == newer, "an attempt that has lost the run must not record its own end"


def test_the_job_of_a_task() -> None:
    assert job_of_task({}) is None
    assert job_of_task(job := {"SLURM_JOB_ID": "12"}) == "12"
    # The last task of a job array has the id of the array, and to requeue this id would restart all tasks.
    assert job_of_task({**job, "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}) == "12_3"


def test_a_submission_from_inside_a_job_leaves_that_job_s_variables_behind() -> None:
    kept = {"PATH": "/bin", "SBATCH_ACCOUNT": "cfd", "SLURM_CONF": "/etc/slurm/slurm.conf", "HOME": "/root"}
    left = ("SLURM_MEM_PER_CPU", "RANK", "MASTER_PORT", "SRUN_CPUS_PER_TASK", "SLURMD_NODENAME")
    assert clean_environment({**kept, **dict.fromkeys(left, "1")}) == kept


@pytest.mark.slow
def test_a_local_run_is_shown_read_and_stopped(start, noether, tmp_path: Path) -> None:
    words = ("train", "--hp", str(TINY), f"output_path={tmp_path}", "trainer.max_updates=3000")
    running = start(*words, "run_id=mine", "devices=2")
    folder = RunFolder(tmp_path / "mine")
    wait_for("the first rows", folder.metrics.exists, 120, process=running)
    (state,) = json.loads(noether("status", "--json", "--output-path", str(tmp_path)).out)["runs"]
    assert (state["state"], state["total_updates"]) == ("running", 3000)
    assert "running" in noether("status", "--output-path", str(tmp_path)).out
    done = noether("cancel", str(folder.path), code=0)
    assert f"everything is saved; to continue:\n  noether train resume={folder.path}" in done.out
    assert running.wait(timeout=30) == 75
    assert json.loads(folder.stopped.read_text())["reason"] == signal.Signals.SIGTERM.name
    (state,) = json.loads(noether("status", "--json", "--output-path", str(tmp_path)).out)["runs"]
    assert state["state"] == "stopped"
    assert "stopped by SIGTERM after update" in noether("logs", str(folder.path), "-f").out
    assert noether("logs", str(folder.path), "--rank", "1").out.startswith(f"==> {folder.logs}/rank-1.log")
    again = noether("cancel", str(folder.path))
    assert (again.code, "is not running" in again.err) == (2, True)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of fake Slurm commands. The file `state` has the state of job 12; scancel removes this file."""
    line = chr(31).join(("12", "$(cat state)", "1:00", "None", "cars", "", ""))
    for name, text in {
        "sbatch": "",
        "squeue": f'cd {tmp_path} && [ -e state ] && echo "{line}"; true',
        "scancel": f"cd {tmp_path} && echo $* >> told && rm state",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


TOLD = {"RUNNING": f"--signal={JOB_STOP_SIGNAL} 12", "PENDING": "12", "REQUEUE_HOLD": "12"}


@pytest.mark.parametrize(("state", "told"), TOLD.items(), ids=TOLD)
def test_a_job_that_has_begun_is_told_to_save_and_one_that_waits_is_removed(state: str, told: str, slurm: Path) -> None:
    folder = folder_with(slurm / "run", {"job.json": {"job": "12"}, "result.json": {}})
    lease = take_lease(folder, {"SLURM_JOB_ID": "12"}, is_task=True)
    record_meeting(folder, lease.own.number)  # No plan is needed: an evaluation writes none.
    (slurm / "state").write_text(state)
    assert cancel_run(str(folder.path)) == 0
    assert (slurm / "told").read_text() == f"{told}\n"
    assert folder.cancelled.exists()
    lease.release(0)


def test_a_suspended_job_is_not_ended_unsaved(slurm: Path) -> None:
    folder = folder_with(slurm / "run", {"job.json": {"job": "12"}})
    (slurm / "state").write_text("SUSPENDED")
    with refusal("job-suspended"):
        cancel_run(str(folder.path))
    assert not folder.cancelled.exists()
    assert not (slurm / "told").exists()


def test_a_job_that_is_ending_is_waited_for_and_not_queued_again(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(slurm / "run", {"job.json": {"job": "12"}, "stopped.json": BY_SIGTERM})
    (slurm / "state").write_text("COMPLETING")
    monkeypatch.setattr("time.sleep", lambda seconds: (slurm / "state").write_text("PENDING"))
    assert cancel_run(str(folder.path)) == 0
    assert (slurm / "told").read_text() == "12\n"


MISTAKES = {
    "status-of-no-folder": (["status", "--output-path", "{tmp}/none"], "--output-path FOLDER"),
    "logs-of-no-run": (["logs", "{tmp}/none"], "not a run folder"),
    "logs-of-no-such-rank": (["logs", "{tmp}/run", "--rank", "9"], "--rank 0"),
    "cancel-what-is-done": (["cancel", "{tmp}/run"], "is not running"),
    "cancel-on-another-host": (["cancel", "{tmp}/far"], "ssh n7 noether cancel"),
    "sweep-under-torchrun": (["train", "-m", "seed=1,2", "accelerator=cpu"], "noether submit -m"),
    "sweep-from-another-run": (["train", "-m", "seed=1,2", "resume=latest", "accelerator=cpu"], "resume=auto"),
    "short-flag-of-another-verb": (["logs", "{tmp}/run", "-m"], "no flag -m"),
}


@pytest.mark.parametrize(("arguments", "way_out"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_end_with_2_and_the_line_to_change(arguments, way_out, noether, tmp_path: Path) -> None:
    for name, files in {"run": {"result.json": {}}, "far": {"attempt.json": ELSEWHERE}}.items():
        folder = folder_with(tmp_path / name, files)
        folder.config.write_text("seed: 1\n")
        folder.logs.mkdir()
        (folder.logs / "rank-0.log").write_text("said\n")
    launcher = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a"}
    launcher |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    more = launcher if way_out == "noether submit -m" else {}
    done = noether(*(word.format(tmp=tmp_path) for word in arguments), **more)
    assert (done.code, way_out in done.err) == (2, True), done.out + done.err
