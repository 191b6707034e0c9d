"""The lease on a run folder: attempt.json records which attempt, and which process, may write. No torch here.

A scheduler can restart a run while a node that it believes dead is still training (a pulled cable, a frozen switch).
Each attempt takes the folder by writing its number and a random id to `attempt.json`. Every writer reads that file
before it writes, and an attempt that finds a different id there stops.

A process can also freeze between this check and its write while another attempt trains. So files in the folder are
replaced or removed only by a rename into or out of `.attempt-ID`, a folder private to the attempt. The next attempt
removes that folder when it takes over, so that a late rename by the previous attempt fails. Late appends go to files
that the next attempt has already replaced.
"""

import errno
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path

from pydantic import TypeAdapter

from noether.common.atomic_write import Writer, remove
from noether.common.errors import ExitCode, NoetherError, RequestError
from noether.common.processes import this_process, was_alive
from noether.common.safe_open import NotPlainFile, make_folder, refuse_strangers_link
from noether.launch.detect.slurm.step import restart_count
from noether.runs.continue_line import continue_line
from noether.runs.folder import RunFolder
from noether.runs.records import Row, append_row, is_count, parse_record, read_rows, write_record

_OWN_FOLDER = ".attempt-"


class FencedError(NoetherError):
    """A later attempt at the run has taken over the folder, or the folder was moved or removed."""

    exit_code = ExitCode.FAILED


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run, and the process that is responsible for its rank 0.

    number: number of attempts at this run so far, including this one.
    id: a random id that distinguishes this attempt from all others.
    job: the Slurm job that contains the process ("12", or "12_3" in an array), or None.
    is_task: whether the process is a task of that job, so that stopping the attempt means stopping the job.
    host, pid, started, boot: identify the process; `started` is in clock ticks since the boot whose id is `boot`.
    began: when the attempt took the folder, in seconds since the epoch.
    exit_code: None while the attempt runs, and also after it was killed.
    requeues: how often the scheduler had requeued the job when the attempt began.
    """

    number: int
    id: str
    job: str | None
    is_task: bool
    host: str
    pid: int
    started: int
    boot: str
    began: float
    exit_code: int | None = None
    requeues: int = 0

    @property
    def slurm_job(self) -> str | None:
        """The Slurm job that this process is a task of, or None."""
        return self.job if self.is_task else None

    def alive(self) -> bool | None:
        """Return whether the process is running; None if this host cannot tell."""
        if self.exit_code is not None:
            return False
        return was_alive(self.host, self.boot, self.pid, self.started)

    def describe(self) -> str:
        """Describe the attempt in words: "attempt 3 on n2, since 2026-01-31 12:00:00"."""
        return f"attempt {self.number} on {self.host}, since {_clock(self.began)}"


_ATTEMPT = TypeAdapter(Attempt)


@dataclass(frozen=True)
class Lease(Writer):
    """One attempt's right to write to a run folder, used as its Writer. `place` is the folder's device and inode."""

    folder: RunFolder
    own: Attempt
    place: tuple[int, int]

    def check(self) -> None:
        """Raise if this attempt may no longer write; rewrite attempt.json if it was damaged or removed.

        FencedError: a later attempt has taken the folder, or the folder was moved or removed. OSError: the disk does
        not answer or is not mounted, so that the check must be repeated later.
        """
        holder = read_attempt(self.folder)
        if holder is None:
            self._check_there()
            if newest_attempt(self.folder) > self.own.number:
                raise FencedError(self._lost("a later attempt, in attempts.jsonl"))
            write_record(self.folder.attempt, asdict(self.own))
        elif holder.id != self.own.id:
            raise FencedError(self._lost(holder.describe()))

    def _lost(self, holder: str) -> str:
        return (
            "another attempt now writes to this run's folder; this one exits and leaves the folder alone\n"
            f"  seen      {holder}, in {self.folder.path}\n"
            f"  expected  {self.own.describe()}: this one\n"
            "  fix       do nothing if the run was restarted; otherwise start it only once"
        )

    def partial(self, path: Path) -> Path:
        """Return the temporary path, in this attempt's private folder, of a file that is then renamed to `path`."""
        return self._own_folder(path.parent) / path.name

    def publish(self, partial: Path, path: Path) -> None:
        """Rename `partial` to `path` as `Writer.publish` does; raise as `check` does if this attempt may not write."""
        self.check()
        try:
            super().publish(partial, path)
        except FileNotFoundError:
            self.check()  # A later attempt may have removed this one's private folder.
            raise

    def drop(self, path: Path) -> None:
        """Remove a file or folder as `Writer.drop` does; raise as `check` does if this attempt may not write."""
        if not path.exists():
            return
        doomed = self._own_folder(path.parent) / f"{path.name}.removed"
        remove(doomed)
        self.check()
        try:
            path.rename(doomed)
        except FileNotFoundError:
            self.check()
            return
        remove(doomed)

    def _check_there(self) -> None:
        """Check that the run folder is in place. FencedError: it was moved or removed. OSError: its disk is gone."""
        path = self.folder.path.absolute()
        there = next(place for place in (path, *path.parents) if place.exists())
        about = there.stat()
        if (about.st_dev, about.st_ino) == self.place:
            return
        if self._is_in(self.folder):
            return  # It was remounted, or the file system has renumbered its inodes.
        if about.st_dev != self.place[0]:
            raise FileNotFoundError(errno.ENOENT, "the disk with the run's folder is not mounted", str(path))
        above, *below = path.relative_to(base := path.parent if there == path else there).parts
        now: list[Path] = []
        with suppress(OSError):
            beside = (folder.joinpath(*below) for folder in base.iterdir())
            same = [one for one in beside if os.path.isdir(one) and one.stat().st_ino == self.place[1]]
            now = [one for one in same if self._is_in(RunFolder(one))]
        raise FencedError(
            "the run's folder was moved or removed; this attempt exits and does not create a new one\n"
            f"  seen      {base / above} is {f'now {now[0]}' if now else 'gone, or replaced'}\n"
            "  expected  the same folder from the start of a run to its end\n"
            f"  fix       {'' if now else 'move it back, then '}{continue_line(now[0] if now else path)}"
        )

    def _is_in(self, folder: RunFolder) -> bool:
        holder = read_attempt(folder)
        return holder is not None and holder.id == self.own.id

    def _own_folder(self, beside: Path) -> Path:
        self._check_there()
        if beside != self.folder.path:
            make_folder(beside)
        make_folder(own := beside / f"{_OWN_FOLDER}{self.own.id}")
        return own

    def release(self, exit_code: int) -> None:
        """Record this attempt's exit code if it still owns the run folder. Ignore a disk that refuses the write."""
        with suppress(OSError, FencedError):  # No error here may hide the exit code.
            if self._is_in(self.folder):
                write_record(self.folder.attempt, asdict(replace(self.own, exit_code=int(exit_code))), self)
        with suppress(OSError):
            for own in _own_folders(self.folder, f"{_OWN_FOLDER}{self.own.id}"):
                remove(own)


@dataclass(frozen=True)
class _Claim(Writer):
    """Writer that renames attempt.json out of a new attempt's private folder, and fails if that folder is gone."""

    own: Path

    def partial(self, path: Path) -> Path:
        """Return the path to write to before the rename: in the private folder, which is never created again."""
        return self.own / path.name


def take_lease(
    folder: RunFolder,
    environ: Mapping[str, str] = os.environ,
    *,
    is_task: bool = False,
    start_update: int = 0,
    after: int | None = None,
) -> Lease:
    """Take a run folder for a new attempt, and prevent all earlier attempts from writing to it.

    start_update: the update after which the new attempt resumes; 0 if it starts from the beginning.
    after: the number of attempts when the starting point was chosen; None: do not check for attempts made since then.
    FencedError: another attempt has taken the folder since then. RequestError: the folder belongs to a later attempt of
    the same job, or to an attempt that is alive on this host. OSError: the disk refuses.
    """
    name = secrets.token_hex(8)
    refuse_strangers_link(folder.path)
    claim = _Claim(folder.path / f"{_OWN_FOLDER}{name}")
    # Make this folder first: an attempt that takes the run from now on removes it, so that the rename below fails.
    claim.own.mkdir(parents=True)
    about = folder.path.stat()
    try:
        own = Attempt(
            number=1 + attempts_so_far(folder),
            id=name,
            job=job_of_task(environ),
            is_task=is_task,
            requeues=restart_count(environ)[0],
            **this_process(),
            began=round(time.time(), 3),
        )
        holder = read_attempt(folder)
        if holder is not None:
            _refuse_a_live_holder(folder, holder, own)
        if after is not None and own.number != after + 1:
            raise _begun_meanwhile(folder)
        try:
            write_record(folder.attempt, asdict(own), claim)
        except FileNotFoundError:
            raise _begun_meanwhile(folder) from None
    except BaseException:
        remove(claim.own)
        raise
    # Record the attempt in a second file too: if one file is damaged, the other still shows who owns the run.
    with suppress(OSError):
        record_attempt(folder, own.number, start_update, own.host, own.job or "", unique=own.id)
    for earlier in _own_folders(folder, f"{_OWN_FOLDER}*"):
        doomed = earlier.with_name(f".removed-{secrets.token_hex(4)}")
        with suppress(OSError):
            if earlier != claim.own:
                earlier.rename(doomed)  # Atomic: nothing can be renamed out of the folder any more.
                remove(doomed)
    return Lease(folder, own, (about.st_dev, about.st_ino))


def _begun_meanwhile(folder: RunFolder) -> FencedError:
    holder = read_attempt(folder)
    return FencedError(
        "another attempt at this run started while this one was preparing; this one exits and leaves the run alone\n"
        f"  seen      {holder.describe() if holder else 'a later attempt'}, in {folder.path}\n"
        "  expected  no other attempt since this one chose its starting point\n"
        "  fix       do nothing if the run was restarted; otherwise start it only once"
    )


def _own_folders(folder: RunFolder, pattern: str) -> list[Path]:
    places = (folder.path, folder.checkpoints, folder.evaluation)
    return [path for place in places for name in (pattern, ".removed-*") for path in place.glob(name)]


def _refuse_a_live_holder(folder: RunFolder, holder: Attempt, own: Attempt) -> None:
    same_job = own.job is not None and holder.job == own.job
    if same_job and own.requeues < holder.requeues:
        raise RequestError("stale-start", "this attempt is stale: the job has been requeued since it began",
                           seen=f"requeue {own.requeues} of job {own.job}; requeue {holder.requeues} has {folder.path}",
                           expected="the newest attempt of a job")  # fmt: skip
    requeued = same_job and own.requeues > holder.requeues
    if not requeued and holder.pid != own.pid and holder.alive():
        raise RequestError(
            "run-in-use",
            f"the run {folder.path} is being written by another process",
            seen=f"{holder.describe()}, process {holder.pid}",
            expected="one writer of a run at a time",
            fix=f"kill -TERM {holder.pid}      (it saves and exits; or run_id=ANOTHER_NAME)",
        )


def read_attempt(folder: RunFolder) -> Attempt | None:
    """Return the newest attempt at a run; None if there is none or its record is damaged.

    OSError: the record exists but cannot be read, which must not be mistaken for a run without a writer.
    """
    try:
        return _ATTEMPT.validate_python(parse_record(folder.attempt))
    except (FileNotFoundError, NotADirectoryError, NotPlainFile, ValueError):  # ValidationError is a ValueError.
        return None  # A flipped bit must not stop a run: the next attempt rewrites the record.


def attempts_so_far(folder: RunFolder) -> int:
    """Return the number of the newest attempt, from attempt.json or attempts.jsonl; 0 if there was no attempt."""
    folder.look_afresh()  # Otherwise another host's attempt may become visible too late.
    holder = read_attempt(folder)
    return max(newest_attempt(folder), holder.number if holder else 0)


def newest_attempt(folder: RunFolder) -> int:
    """Return the highest attempt number in attempts.jsonl; 0 if there is none."""
    return max((number for row in read_rows(folder.attempts) if is_count(number := row.get("number"))), default=0)


def job_of_task(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the id of the Slurm job that contains this process, in the form that scancel accepts, or None."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    # An array's last element has the id of the whole array: requeuing that id would restart every element.
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID") or None


def _clock(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s after 1970"


@dataclass(frozen=True)
class AttemptRecord:
    """One attempt at a run. It resumed after `start_update` (0: new run), and last saved after `last_update`.

    `last_update` and `outcome` are None if the attempt's end was not recorded and no later attempt exists.
    """

    number: int
    start_update: int
    last_update: int | None
    outcome: str | None
    host: str
    started: str
    job: str


def record_attempt(
    folder: RunFolder, number: int, start_update: int, host: str, job: str = "", *, unique: str = ""
) -> None:
    """Append an attempt that has taken the folder to attempts.jsonl. OSError: the file cannot be written.

    job: the scheduler's id of the attempt's job. unique: the attempt's random id.
    """
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    row = {"number": number, "id": unique, "start_update": start_update, "host": host, "started": started, "job": job}
    append_row(folder.attempts, row)


def record_meeting(folder: RunFolder, number: int) -> None:
    """Record that all ranks of an attempt have connected and handle signals. OSError: the file cannot be written."""
    append_row(folder.attempts, {"number": number, "ranks_met": True})


def have_ranks_met(folder: RunFolder, number: int) -> bool:
    """Return whether every rank of an attempt handles signals. If not, a signal kills a rank before it can save."""
    return any(row.get("number") == number and row.get("ranks_met") for row in read_rows(folder.attempts))


def record_outcome(folder: RunFolder, number: int, last_update: int, outcome: str) -> None:
    """Record how an attempt ended (done, SIGTERM, the time limit, …). OSError: the file cannot be written."""
    append_row(folder.attempts, {"number": number, "last_update": last_update, "outcome": outcome})


def record_asked(folder: RunFolder, number: int, why: str, update: int) -> None:
    """Record that an attempt was asked to stop during `update`, and why. OSError: the file cannot be written."""
    append_row(folder.attempts, {"number": number, "asked": why, "asked_at": round(time.time()), "in_update": update})


def killed_while_stopping(folder: RunFolder, number: int) -> str:
    """Describe an attempt that was asked to stop but was killed before it had saved; return "" for other attempts."""
    known = _rows_by_attempt(folder).get(number, {})
    if "asked" not in known or "outcome" in known:
        return ""
    asked = f"{known['asked']}, {_clock(known['asked_at']) if is_count(known.get('asked_at')) else '?'}"
    in_update = f"killed in update {known.get('in_update')}, which could not be saved"
    return f"attempt {number} was asked to stop ({asked}) and {in_update}"


def _rows_by_attempt(folder: RunFolder) -> dict[int, Row]:
    attempts: dict[int, Row] = {}
    for row in read_rows(folder.attempts):
        if is_count(row.get("number")):
            attempts.setdefault(row["number"], {}).update(row)
    return attempts


def read_attempts(folder: RunFolder) -> list[AttemptRecord]:
    """Return the attempts at a run, oldest first. The last update of a killed attempt is where the next one resumed."""
    rows = [row for row in _rows_by_attempt(folder).values() if is_count(row.get("start_update"))]
    records = []
    for row, following in zip_longest(rows, rows[1:]):
        last = row.get("last_update", following and following["start_update"])
        outcome = row.get("outcome", following and "killed")
        ended = (last if is_count(last) else None, None if outcome is None else str(outcome))
        host, started, job = (str(row.get(name, "")) for name in ("host", "started", "job"))
        records.append(AttemptRecord(row["number"], row["start_update"], *ended, host, started, job))
    return records


def record_stop(folder: RunFolder, reason: str, saved: int, writer: Writer) -> None:
    """Write stopped.json: the reason for the stop, and the last saved update (0 if nothing is saved yet)."""
    write_record(folder.stopped, {"reason": reason, "update": saved}, writer)
