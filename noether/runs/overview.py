"""How each run is doing: its folder, its newest attempt, the job it waits in; and `noether status`, a line each."""

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
"""Bytes at the end of a run's rows that tell its state, and damaged rows of a run that `status` names: a folder may
have thousands of runs, of anybody."""
RUNNING, WAITING, DONE, STOPPED, FAILED, LOST = "running", "waiting", "done", "stopped", "failed", "lost"


@dataclass(frozen=True)
class RunState:
    """What is known of a run.

    state: waiting (its job is in the queue), running, done, stopped (everything is saved, and it can go on, or it was
        cancelled before it started), failed, or lost (it ended unrecorded, or its host cannot be asked from here).
    why: what the state was read from.
    update, total_updates: progress; None before the first log line.
    training_loss: of the last log line; metrics: of the last evaluation, or of the result once the run is done; split:
        what they are of; headlines: those that say most, as text.
    seconds_left: of training at its pace so far, None where that is not known.
    job: the Slurm job's id; time_left: until its time limit, as squeue writes it.
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
    """Return a run's folder: one that has trained, or whose job waits to, and then it may still have none.

    `form` as for `existing_run`. RequestError: the path is neither.
    """
    folders = [RunFolder(folder) for folder in (Path(path).expanduser(), Path("runs") / path)]
    for folder in folders:
        if folder.config.is_file() or folder.job.is_file():
            return folder
    queued = queue_of(*folders)
    return next((folder for folder in folders if job_in_queue(folder, queued)), None) or existing_run(path, form)


def runs_under(output_path: Path, queued: Mapping[str, QueuedJob]) -> list[RunFolder]:
    """Return the run folders in a folder, by name, with those that a waiting job is still to make."""
    waiting = {job.run.name for job in queued.values() if job.run and job.run.parent == output_path.resolve()}
    if not output_path.is_dir() and not waiting:
        raise RequestError("no-such-folder", f"no folder {output_path}", seen="no such folder",
                           expected="the folder that holds the run folders, the output_path of the runs",
                           fix="noether status --output-path FOLDER")  # fmt: skip
    found = {path for path in output_path.glob("*") if is_run(path) or RunFolder(path).job.is_file()}
    return [RunFolder(folder) for folder in sorted(found | {output_path / name for name in waiting})]


def job_in_queue(folder: RunFolder, queued: Mapping[str, QueuedJob], own: str | None = None) -> QueuedJob | None:
    """Return the job of a run that has not ended: `own`, by `job_of_run`, or that of a script with its folder."""
    known = queued.get(own or job_of_run(folder) or "")
    return known or next((job for job in queued.values() if job.run == folder.path.resolve()), None)


def job_of_run(folder: RunFolder, attempt: Attempt | None = None) -> str | None:
    """Return the Slurm job that the run was submitted as or last ran in (its last `attempt`), whichever is newer."""
    attempt, submitted = attempt or last_attempt(folder), submitted_job(folder)
    if attempt is None or attempt.slurm_job is None:
        return submitted
    newer = folder.job.is_file() and folder.job.stat().st_mtime > attempt.began
    return submitted if newer and submitted else attempt.slurm_job


def last_attempt(folder: RunFolder) -> Attempt | None:
    """Return the newest attempt at a run; None where none is known."""
    with suppress(OSError):
        return read_attempt(folder)
    return None


def submitted_job(folder: RunFolder) -> str | None:
    """Return the Slurm job that the run was submitted as, or None."""
    job = records.read_record(folder.job).get("job")
    return job if isinstance(job, str) else None


def queue_of(*folders: RunFolder) -> dict[str, QueuedJob]:
    """Return the queue for the sake of some runs. SlurmError: it does not answer, and a run was in a job."""
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
    """Read how a run is doing from its folder and from the queue; `warn` is told of damaged records."""
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
    """Return a run's state and what it was read from: its job in the queue, its newest attempt, its folder."""
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
    return LOST, "it ended without a word" if attempt else "nothing has started it"


def planned_updates(plan: Mapping[str, Any]) -> int | None:
    """Return the updates of the whole run, as plan.json has them once its ranks have met; None before."""
    planned = records.mapping(plan, "length").get("total_updates")
    return planned if records.is_count(planned) and planned else None


def seconds_left(training: Sequence[Row], total: int | None) -> float | None:
    """Return the seconds of training that are left at the pace of the recent log lines, or None.

    Evaluations and checkpoints between those lines are included.
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
    """Print the runs in a folder with the jobs they wait or run in."""
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
        folders = []  # Before the first run there is no such folder, and nothing is wrong.
    if refusal and any(job_of_run(folder) for folder in folders):
        print(f"noether: {refusal}\nruns in jobs are shown from their folders alone", file=sys.stderr)
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
        if not console.terminal.is_terminal:  # A program reads lines: one for each run, however long.
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
    """Return where a run's folder would be kept, RUN.replaced-1 or the next number; None where it holds no work.

    RequestError: an attempt is alive, or its host cannot be asked; or the run's job waits or runs.
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
                fix=f"mv {folder.path} {_next_place(folder)}      (once it no longer runs on {holder.host})",
            )
    return _next_place(folder) if folder.holds_work() else None


def is_own_attempt(folder: RunFolder, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether what is in the folder was begun by an earlier attempt of this job; outside of a job that is taken so."""
    job = job_of_task(environ)
    holder = read_attempt(folder)
    return job is None or (holder is not None and holder.job == job)


def set_aside(folder: RunFolder, place: Path) -> None:
    """Move a run's folder away, as `place_aside` has decided.

    RequestError: another attempt has taken the run meanwhile; its folder stays where it is.
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
        f"the run {folder.path} has not ended, so it is not started over",
        seen=seen,
        expected="a run that nothing writes to",
        fix=f"noether cancel {folder.path}      (it saves and exits; or run_id=ANOTHER_NAME)",
    )
