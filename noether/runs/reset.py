"""Starting a run of the same name over: its old folder is kept aside, and never taken from an attempt that is alive."""

import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from noether.common.errors import RequestError
from noether.common.whole_file import refusals_told
from noether.runs.folder import REPLACED, RunFolder
from noether.runs.lease import job_of_task, read_attempt
from noether.runs.overview import RUNNING, WAITING, queue_of, run_state


def place_aside(folder: RunFolder, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Returns where a run's folder would be kept, RUN.replaced-1 or the next number; None where it holds no work.

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
    """Moves a run's folder away, as `place_aside` has decided.

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
