"""Determine the state of runs from folder, newest attempt and Slurm queue; `noether status` lists the runs."""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from rich.table import Table

from noether.common.atomic_write import refusals_told
from noether.common.console import Console
from noether.common.errors import ExitCode, RequestError
from noether.common.numbers import number_text
from noether.common.sanitize import shown_name
from noether.launch.detect.slurm.queue import QueuedJob, SlurmError, queued_jobs
from noether.runs import records
from noether.runs.folder import REPLACED, RunFolder, existing_run, is_run
from noether.runs.lease import Attempt, job_of_task, killed_while_stopping, read_attempt
from noether.runs.metrics import described_in
from noether.runs.records import RECENT_ROWS, Row, number

HEADLINES_SHOWN = 2
MOST_OF_A_HISTORY, MOST_TOLD = 2**22, 20
"""Maximum number of bytes to read from the end of a run's metrics.jsonl, and of damaged rows to report for a run.
Both are limited because a folder may contain thousands of runs by any user."""
RUNNING, WAITING, DONE, STOPPED, FAILED, LOST = "running", "waiting", "done", "stopped", "failed", "lost"


@dataclass(frozen=True)
class RunState:
    """The state and progress of a run.

    state: waiting (its job is in the queue), running, done, stopped (saved and resumable, or cancelled before it
        started), failed, or lost (it ended without a record, or this host cannot check the host that ran it).
    why: the evidence for the state.
    update, total_updates: the progress; None if not known yet.
    training_loss: the loss in the last log line. split, metrics: those of the result or, until there is a result, of
        the last evaluation. headlines: the most important metrics as text.
    seconds_left: the training time left at the recent pace; None if unknown.
    job: the Slurm job's id. time_left: the time until the job's limit, as squeue prints it.
    """

    run: str
    state: str
    why: str
    update: int | None
    total_updates: int | None
    training_loss: float | None
    split: str
    metrics: Mapping[str, float]
    headlines: Sequence[str]
    seconds_left: float | None
    job: str | None
    time_left: str | None


def find_run(path: str | Path, form: str = "{}") -> RunFolder:
    """Return the folder of a run that exists or whose job is waiting; a waiting run may not have a folder yet.

    form: as for `existing_run`. RequestError: there is no such run or job.
    """
    folders = [RunFolder(folder) for folder in (Path(path).expanduser(), Path("runs") / path)]
    for folder in folders:
        if folder.config.is_file() or folder.job.is_file():
            return folder
    queued = queue_of(*folders)
    return next((folder for folder in folders if job_in_queue(folder, queued)), None) or existing_run(path, form)


def runs_under(output_path: Path, queued: Mapping[str, QueuedJob]) -> list[RunFolder]:
    """Return the run folders in a folder, sorted by name, including those that waiting jobs have yet to create."""
    waiting = {job.run.name for job in queued.values() if job.run and job.run.parent == output_path.resolve()}
    if not output_path.is_dir() and not waiting:
        raise RequestError("no-such-folder", f"no folder {output_path}", seen="no such folder",
                           expected="the folder that contains the run folders: the output_path of the runs",
                           fix="noether status --output-path FOLDER")  # fmt: skip
    found = {path for path in output_path.glob("*") if is_run(path) or RunFolder(path).job.is_file()}
    return [RunFolder(folder) for folder in sorted(found | {output_path / name for name in waiting})]


def job_in_queue(folder: RunFolder, queued: Mapping[str, QueuedJob], own: str | None = None) -> QueuedJob | None:
    """Return a run's job in the queue: the job `own` (default: `job_of_run`), else a job with this run folder."""
    known = queued.get(own or job_of_run(folder) or "")
    return known or next((job for job in queued.values() if job.run == folder.path.resolve()), None)


def job_of_run(folder: RunFolder, attempt: Attempt | None = None) -> str | None:
    """Return the id of a run's newest Slurm job: that of its submission, or that of its last `attempt`."""
    attempt, submitted = attempt or last_attempt(folder), submitted_job(folder)
    if attempt is None or attempt.slurm_job is None:
        return submitted
    newer = folder.job.is_file() and folder.job.stat().st_mtime > attempt.began
    return submitted if newer and submitted else attempt.slurm_job


def last_attempt(folder: RunFolder) -> Attempt | None:
    """Return the newest attempt at a run; None if there is none or it cannot be read."""
    with suppress(OSError):
        return read_attempt(folder)
    return None


def submitted_job(folder: RunFolder) -> str | None:
    """Return the id of the Slurm job that the run was submitted as, or None."""
    job = records.read_record(folder.job).get("job")
    return job if isinstance(job, str) else None


def queue_of(*folders: RunFolder) -> dict[str, QueuedJob]:
    """Return the Slurm queue; {} if no run needs it. SlurmError: the queue does not answer, and a run has a job."""
    attempts = [last_attempt(folder) for folder in folders]
    if all(attempt and attempt.slurm_job is None and attempt.alive() for attempt in attempts):
        return {}
    try:
        return queued_jobs()
    except SlurmError:
        if any(job_of_run(folder) for folder in folders):
            raise
        return {}


def run_state(
    folder: RunFolder, queued: Mapping[str, QueuedJob], warn: Callable[[str], None] = lambda text: None
) -> RunState:
    """Determine a run's state and progress from its folder and the queue; report damaged records to `warn`."""
    attempt = last_attempt(folder)
    own = job_of_run(folder, attempt)
    job = job_in_queue(folder, queued, own)
    state, why = state_and_reason(folder, attempt, job)
    rows = records.read_metrics(folder.metrics, warn, MOST_OF_A_HISTORY)
    training = [row for row in rows if row["kind"] == "training"]
    plan, result = records.read_record(folder.plan, warn), records.read_record(folder.result, warn)
    split, metrics = records.newest_metrics(result, rows)
    total = planned_updates(plan)
    return RunState(
        run=str(folder.path),
        state=state,
        why=why,
        update=records.last_update(rows),
        total_updates=total,
        training_loss=number(training[-1], "loss") if training else None,
        split=split,
        metrics=metrics,
        headlines=[" ".join(pair) for pair in described_in(plan, result).headlines(metrics, HEADLINES_SHOWN)],
        seconds_left=seconds_left(training, total) if state == RUNNING else None,
        job=job.job_id if job else own,
        time_left=job.time_left if job else None,
    )


def state_and_reason(folder: RunFolder, attempt: Attempt | None, job: QueuedJob | None) -> tuple[str, str]:
    """Return a run's state and the evidence for it: its queued job, its newest attempt, or its folder."""
    if job is not None:
        if not job.waits:
            return RUNNING, f"job {job.job_id} {job.state}"
        return WAITING, f"job {job.job_id} {job.state}" + (f" ({job.reason})" if job.reason != "None" else "")
    alive = attempt.alive() if attempt else False
    if attempt and alive:
        return RUNNING, f"pid {attempt.pid} on {attempt.host}"
    if folder.stopped.is_file() or (attempt and attempt.exit_code == ExitCode.CHECKPOINTED):
        stopped = records.read_record(folder.stopped)
        saved = "nothing was saved yet" if stopped.get("update") == 0 else "everything is saved"
        return STOPPED, f"{stopped.get('reason', 'a signal')}, {saved}"
    if folder.result.is_file():
        return DONE, "trained and evaluated"
    if attempt and attempt.exit_code is not None:
        return FAILED, f"exit code {attempt.exit_code}, {folder.logs}"
    if attempt and alive is None and attempt.slurm_job is None:
        return LOST, f"it ran as pid {attempt.pid} on {attempt.host}"
    if attempt is None and folder.cancelled.is_file():
        return STOPPED, "cancelled before it started"
    if attempt and (killed := killed_while_stopping(folder, attempt.number)):
        return FAILED, killed
    return LOST, "it ended without a record" if attempt else "it was never started"


def planned_updates(plan: Mapping[str, Any]) -> int | None:
    """Return the run's total number of updates from plan.json; None until its ranks have connected."""
    planned = records.mapping(plan, "length").get("total_updates")
    return planned if records.is_count(planned) and planned else None


def seconds_left(training: Sequence[Row], total: int | None) -> float | None:
    """Estimate the seconds left from the pace of the recent log lines; return None if that is not possible.

    The pace includes the evaluations and checkpoints between the log lines.
    """
    recent = [(row["update"], moment) for row in training[-RECENT_ROWS:] if (moment := number(row, "time")) is not None]
    if total is None or len(recent) < 2:
        return None
    updates, seconds = recent[-1][0] - recent[0][0], recent[-1][1] - recent[0][1]
    if updates <= 0 or seconds <= 0:
        return None
    left: float = (total - recent[-1][0]) * seconds / updates - (time.time() - recent[-1][1])
    return max(0.0, left)


DEFAULT_FOLDER = "runs"
MOST_COLUMNS = 1000


def show_status(output_path: str, *, as_json: bool) -> int:
    """Print the runs in a folder, with their Slurm jobs."""
    queued, refusal = {}, None
    try:
        queued = queued_jobs()
    except SlurmError as error:
        refusal = error
    try:
        folders = runs_under(Path(output_path).expanduser(), queued)
    except RequestError:
        if output_path != DEFAULT_FOLDER:
            raise
        folders = []  # Before the first run, a missing folder is not an error.
    if refusal and any(job_of_run(folder) for folder in folders):
        print(f"noether: {refusal}\nthe state of runs in jobs is inferred from their folders alone", file=sys.stderr)
    states = []
    for folder in folders:
        damaged: list[str] = []
        states.append(run_state(folder, queued, damaged.append))
        more = [f"{folder.path}: {len(damaged) - MOST_TOLD:,} more like these"] * (len(damaged) > MOST_TOLD)
        for text in (*damaged[:MOST_TOLD], *more):
            print(f"noether: {shown_name(text)}", file=sys.stderr)
    if as_json:
        print(json.dumps({"runs": [asdict(state) for state in states]}, indent=2))
    elif not states:
        print(f"no runs in {output_path}; noether train makes one")
    else:
        console, table = Console(None, speaks=True), status_table(states)
        if not console.terminal.is_terminal:  # A program reads this: one long line per run.
            console.terminal.width = MOST_COLUMNS
        console.say(table)
    return ExitCode.DONE


def status_table(states: list[RunState]) -> Table:
    """Return the runs as a table."""
    columns = ("run", "state", "job", "update", "training loss", "left", "split", "last metrics")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for state in states:
        progress = "" if state.update is None else f"{state.update:,}"
        if state.total_updates:
            progress = f"{progress or 0}/{state.total_updates:,}"
        left = "" if state.seconds_left is None else str(timedelta(seconds=round(state.seconds_left)))
        table.add_row(
            shown_name(Path(state.run).name),
            state.state if state.state in ("done", "running") else f"{state.state}: {shown_name(state.why)}",
            state.job or "",
            progress,
            "" if state.training_loss is None else number_text(state.training_loss),
            left + (f" (job {state.time_left})" if state.time_left else ""),
            shown_name(state.split),
            ", ".join(map(shown_name, state.headlines)),
        )
    return table


def place_aside(folder: RunFolder, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path to which to move a run's folder, such as RUN.replaced-1; None if the folder contains no work.

    RequestError: an attempt is or may be alive, or the run's job is waiting or running.
    """
    with refusals_told(folder.path):
        holder = read_attempt(folder)
        alive = holder.alive() if holder else False
    if holder is not None and alive:
        raise _not_ended(folder, holder.describe())
    if folder.path.exists():
        state = run_state(folder, queue_of(folder))
        own_job = state.job is not None and state.job == job_of_task(environ)
        if state.state in (RUNNING, WAITING) and not own_job:
            raise _not_ended(folder, state.why)
        if alive is None and holder is not None and holder.slurm_job is None:
            raise RequestError(
                "run-may-be-alive",
                f"cannot see from here whether anything still writes to {folder.path}",
                seen=holder.describe(),
                expected="a run that has ended",
                fix=f"mv {folder.path} {_next_place(folder)}      (after the run has ended on {holder.host})",
            )
    return _next_place(folder) if folder.holds_work() else None


def is_own_attempt(folder: RunFolder, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the folder's newest attempt belongs to this process's job; True outside a job."""
    job = job_of_task(environ)
    holder = read_attempt(folder)
    return job is None or (holder is not None and holder.job == job)


def set_aside(folder: RunFolder, place: Path) -> None:
    """Move a run's folder to the `place` that `place_aside` returned.

    RequestError: another attempt has taken the run in the meantime; the folder stays where it is.
    """
    with refusals_told(folder.path):
        before = read_attempt(folder)
        folder.path.rename(place)
        after = read_attempt(RunFolder(place))
        if after is not None and after.exit_code is None and (before is None or before.id != after.id):
            place.rename(folder.path)
            raise _not_ended(folder, after.describe())


def _next_place(folder: RunFolder) -> Path:
    places = (folder.path.with_name(f"{folder.path.name}{REPLACED}{number}") for number in count(1))
    return next(place for place in places if not place.exists())


def _not_ended(folder: RunFolder, seen: str) -> RequestError:
    return RequestError(
        "run-not-ended",
        f"the run {folder.path} has not ended, so it cannot be started over",
        seen=seen,
        expected="a run that no process writes to",
        fix=f"noether cancel {folder.path}      (it saves and exits; or run_id=ANOTHER_NAME)",
    )
