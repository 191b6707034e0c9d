"""`noether cancel RUN`: make a run save and stop, wait until it has, and keep its job from being requeued."""

import os
import signal
import sys
import time
from collections.abc import Callable

from noether.common.errors import ExitCode, NoetherError, RequestError
from noether.common.processes import JOB_STOP_SIGNAL
from noether.common.safe_open import create_plain
from noether.common.sanitize import shown_name
from noether.launch.detect.slurm.queue import WAITING, QueuedJob, queued_jobs, run_slurm
from noether.runs.continue_line import continue_line
from noether.runs.folder import RunFolder
from noether.runs.lease import Attempt, have_ranks_met
from noether.runs.overview import find_run, job_in_queue, last_attempt, queue_of, run_state
from noether.runs.records import read_record

LIMIT_S = 600.0
"""Longest time that a run may need to finish its update and save."""


def cancel_run(run: str) -> int:
    """Stop a run, in its Slurm job or on this machine.

    RequestError: the run is not running here, is another user's, or its job is suspended. NoetherError: it still runs.
    """
    folder = find_run(run, "")
    job = job_in_queue(folder, queue_of(folder))
    if job is not None:
        return _cancel_job(folder, job)
    attempt = last_attempt(folder)
    if attempt is not None and attempt.alive():
        return _stop_process(folder, attempt)
    state = run_state(folder, {})
    elsewhere = attempt.host if attempt and attempt.alive() is None and attempt.slurm_job is None else ""
    raise RequestError(
        "run-not-here",
        f"{folder.path} runs on another machine" if elsewhere else f"{folder.path} is not running",
        seen=f"{state.state}: {state.why}",
        expected="a run that is waiting or running, here or in Slurm",
        fix=f"ssh {elsewhere} noether cancel {folder.path.absolute()}" if elsewhere else "noether status",
    )


def _cancel_job(folder: RunFolder, job: QueuedJob) -> int:
    job_id = job.job_id
    if job.state in ("SUSPENDED", "STOPPED"):
        raise RequestError(
            "job-suspended",
            f"job {job_id} is suspended: its ranks cannot save until they run again",
            seen=f"job {job_id} {job.state}",
            expected="a waiting or running job",
            fix=f"scontrol resume {job_id}      (then cancel again; or scancel {job_id}, which ends the run unsaved)",
        )
    # If this file exists when the ranks have saved, the job's script does not requeue the job.
    folder.path.mkdir(parents=True, exist_ok=True)
    create_plain(folder.cancelled).close()
    if not job.waits:
        _wait_for_trainer(folder, job_id)
        if _state(job_id) == "RUNNING":  # A completing job ends by itself.
            # Signal only the ranks: the job's script needs no signal, because it gets their exit codes.
            run_slurm(["scancel", f"--signal={JOB_STOP_SIGNAL}", job_id])
            print(f"job {job_id} was told to save and stop", flush=True)
        if not _within(lambda: _state(job_id) in (None, *WAITING), pause_s=1.0):
            raise NoetherError(
                f"job {job_id} has not stopped within {LIMIT_S:g} s\n  to end it unsaved: scancel {job_id}"
            )
    state = _state(job_id)
    if state is not None:  # The job has not started yet, or Slurm has requeued it.
        run_slurm(["scancel", job_id])
        print(f"job {job_id} was {state.lower()}: removed from the queue")
    return ExitCode.DONE if job.waits else _say_end(folder, "submit")


def _state(job_id: str) -> str | None:
    """Return the state of a job; None if it has ended."""
    job = queued_jobs().get(job_id)
    return job.state if job is not None else None


def _wait_for_trainer(folder: RunFolder, job_id: str) -> None:
    """Wait until the ranks of the job handle signals. Before that, a signal would kill a rank, and so all ranks."""

    def listens() -> bool:
        attempt = last_attempt(folder)
        # An attempt that has ended is from before a requeue: the job's new attempt has not begun yet.
        own = attempt if attempt and (attempt.slurm_job, attempt.exit_code) == (job_id, None) else None
        return bool(own and have_ranks_met(folder, own.number)) or _state(job_id) != "RUNNING"

    if not listens():
        print(f"job {job_id} is starting; it will stop as soon as its ranks have connected", flush=True)
        _within(listens, pause_s=1.0)


def _stop_process(folder: RunFolder, attempt: Attempt) -> int:
    _within(lambda: have_ranks_met(folder, attempt.number) or not attempt.alive(), pause_s=0.1)
    try:
        if attempt.alive():
            os.kill(attempt.pid, signal.SIGTERM)
    except PermissionError:
        owner = os.stat(f"/proc/{attempt.pid}").st_uid
        raise RequestError(
            "another-users-run",
            f"{folder.path} is being trained by another user; only that user can stop it",
            seen=f"pid {attempt.pid} of user {owner}",
            expected="a run that you started",
            fix=f"sudo -u '#{owner}' noether cancel {folder.path.absolute()}      (or ask that user)",
        ) from None
    print(f"pid {attempt.pid} was told to save and stop", flush=True)
    if not _within(lambda: not attempt.alive(), pause_s=0.1):
        raise NoetherError(
            f"pid {attempt.pid} has not stopped within {LIMIT_S:g} s\n  to end it unsaved: kill -9 {attempt.pid}"
        )
    return _say_end(folder, "train")


def _say_end(folder: RunFolder, verb: str) -> int:
    stopped = read_record(folder.stopped)
    if stopped.get("update") == 0:
        print("stopped before it had saved anything; to start it again, repeat the command that started it")
        return ExitCode.DONE
    if stopped:
        print(
            f"stopped after update {shown_name(str(stopped.get('update')))}, everything is saved; to continue:\n"
            f"  {shown_name(continue_line(folder.path, verb))}"
        )
        return ExitCode.DONE
    state = run_state(folder, {})
    print(f"noether: the run ended before it was stopped\n  {state.state}: {shown_name(state.why)}", file=sys.stderr)
    return ExitCode.DONE if folder.result.is_file() else ExitCode.FAILED


def _within(reached: Callable[[], bool], *, pause_s: float) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not reached():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
    return True
