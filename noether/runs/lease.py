"""Which attempt at a run may write to its folder, and which process that is: attempt.json. No torch here.

A scheduler can start a run again while a node that it believes dead still trains: a cable that was pulled, a switch
that froze. Each attempt takes the folder by putting its own number and a random id into `attempt.json`, and whoever
writes reads that file first. An attempt that finds another id there ends.

A process can also be frozen between that look and its write, for as long as another attempt trains. So nothing in the
folder is replaced or removed but by a rename into or out of `.attempt-ID`, a folder of the attempt's own that the
next attempt removes when it takes over: the rename of one that has lost the run then fails, whenever it comes. What
is appended goes to files that the next attempt has replaced.
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
    """A later attempt at the run has taken the folder over, or it is no longer where it was."""

    exit_code = ExitCode.FAILED


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run, and the process that answers for its rank 0.

    number: attempts at this run so far, this one included.
    id: random, so that two attempts are never taken for one.
    job: the Slurm job that this process is in ("12", of an array "12_3"), or None; is_task: as a task of its, so that
        the job is what is asked to stop.
    host, pid, started, boot: the process; `started` in clock ticks since the boot with this id.
    began: when it took the folder, in seconds since the epoch.
    exit_code: None while it runs, and where it was killed.
    requeues: how often the scheduler has requeued the job.
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
        """The Slurm job that ends with this process, or None."""
        return self.job if self.is_task else None

    def alive(self) -> bool | None:
        """Return whether its process runs; None where that cannot be seen from this host."""
        if self.exit_code is not None:
            return False
        return was_alive(self.host, self.boot, self.pid, self.started)

    def describe(self) -> str:
        """Return the attempt in words: "attempt 3 on n2, since 2026-01-31 12:00:00"."""
        return f"attempt {self.number} on {self.host}, since {_clock(self.began)}"


_ATTEMPT = TypeAdapter(Attempt)


@dataclass(frozen=True)
class Lease(Writer):
    """One attempt's right to write to a run folder, and the way it does so; `place`: file system and inode of that."""

    folder: RunFolder
    own: Attempt
    place: tuple[int, int]

    def check(self) -> None:
        """Return where this attempt may still write. An attempt.json that was damaged or removed is written again.

        FencedError: a later attempt has the folder, or it was moved or removed. OSError: the disk does not answer, or
        it is gone; ask again.
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
            "another attempt at this run writes to its folder now; this one ends and leaves it alone\n"
            f"  seen      {holder}, in {self.folder.path}\n"
            f"  expected  {self.own.describe()}: this one\n"
            "  fix       nothing, where the run was started again; else start it once, not twice"
        )

    def partial(self, path: Path) -> Path:
        """Return where `path` is written before it gets its name, in the attempt's own folder beside it."""
        return self._own_folder(path.parent) / path.name

    def publish(self, partial: Path, path: Path) -> None:
        """Rename `partial` to `path`, as `Writer.publish`, where this attempt may still write."""
        self.check()
        try:
            super().publish(partial, path)
        except FileNotFoundError:
            self.check()  # A later attempt has removed this one's folder.
            raise

    def drop(self, path: Path) -> None:
        """Remove a file or a folder, as `Writer.drop`, where this attempt may still write."""
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
        """Return where the folder has its name. FencedError: it was moved or removed. OSError: its disk is gone."""
        path = self.folder.path.absolute()
        there = next(place for place in (path, *path.parents) if place.exists())
        about = there.stat()
        if (about.st_dev, about.st_ino) == self.place:
            return
        if self._is_in(self.folder):
            return  # Mounted again, or by a file system that numbers its folders anew.
        if about.st_dev != self.place[0]:
            raise FileNotFoundError(errno.ENOENT, "the disk of the run's folder is not there", str(path))
        above, *below = path.relative_to(base := path.parent if there == path else there).parts
        now: list[Path] = []
        with suppress(OSError):
            beside = (folder.joinpath(*below) for folder in base.iterdir())
            same = [one for one in beside if os.path.isdir(one) and one.stat().st_ino == self.place[1]]
            now = [one for one in same if self._is_in(RunFolder(one))]
        raise FencedError(
            "the run's folder was moved or removed; this attempt ends, and makes no other in its place\n"
            f"  seen      {base / above} is {f'now {now[0]}' if now else 'gone, or another'}\n"
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
        """Write how this attempt ended, where it still has the run; on a disk that takes nothing, nothing."""
        with suppress(OSError, FencedError):  # The exit code must come through in any case.
            if self._is_in(self.folder):
                write_record(self.folder.attempt, asdict(replace(self.own, exit_code=int(exit_code))), self)
        with suppress(OSError):
            for own in _own_folders(self.folder, f"{_OWN_FOLDER}{self.own.id}"):
                remove(own)


@dataclass(frozen=True)
class _Claim(Writer):
    """Renames attempt.json out of the own folder of an attempt that takes the run, which must still be there."""

    own: Path

    def partial(self, path: Path) -> Path:
        """Return where it is written: in the folder, which is not made again."""
        return self.own / path.name


def take_lease(
    folder: RunFolder,
    environ: Mapping[str, str] = os.environ,
    *,
    is_task: bool = False,
    start_update: int = 0,
    after: int | None = None,
) -> Lease:
    """Take a run folder for this attempt (see `Attempt`); from now on every earlier attempt is shut out.

    start_update: the update that it goes on after; 0: it starts from the beginning.
    after: the attempts that there had been when this one decided from where it starts; None: however many.
    FencedError: another has taken it since. RequestError: a later attempt of the same job has the folder, or one that
    is alive on this host. OSError: the disk refuses.
    """
    name = secrets.token_hex(8)
    refuse_strangers_link(folder.path)
    claim = _Claim(folder.path / f"{_OWN_FOLDER}{name}")
    # Before it looks who has the run: whoever takes it from now on removes this folder, and the rename below fails.
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
    # Twice, so that no single damaged file makes an older attempt believe that the run is still its own.
    with suppress(OSError):
        record_attempt(folder, own.number, start_update, own.host, own.job or "", unique=own.id)
    for earlier in _own_folders(folder, f"{_OWN_FOLDER}*"):
        doomed = earlier.with_name(f".removed-{secrets.token_hex(4)}")
        with suppress(OSError):
            if earlier != claim.own:
                earlier.rename(doomed)  # At one moment: what lies in it has no way out any more.
                remove(doomed)
    return Lease(folder, own, (about.st_dev, about.st_ino))


def _begun_meanwhile(folder: RunFolder) -> FencedError:
    holder = read_attempt(folder)
    return FencedError(
        "another attempt at this run has begun while this one prepared its own; this one ends and leaves it alone\n"
        f"  seen      {holder.describe() if holder else 'a later attempt'}, in {folder.path}\n"
        "  expected  no other since this one decided from where it starts\n"
        "  fix       nothing, where the run was started again; else start it once, not twice"
    )


def _own_folders(folder: RunFolder, pattern: str) -> list[Path]:
    places = (folder.path, folder.checkpoints, folder.evaluation)
    return [path for place in places for name in (pattern, ".removed-*") for path in place.glob(name)]


def _refuse_a_live_holder(folder: RunFolder, holder: Attempt, own: Attempt) -> None:
    same_job = own.job is not None and holder.job == own.job
    if same_job and own.requeues < holder.requeues:
        raise RequestError("stale-start", "this is a stale attempt: the job has been requeued since",
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
    """Return the newest attempt at a run; None where there is none, or where the record is damaged.

    OSError: it is there and cannot be read: that must not be taken for a run without a writer.
    """
    try:
        return _ATTEMPT.validate_python(parse_record(folder.attempt))
    except (FileNotFoundError, NotADirectoryError, NotPlainFile, ValueError):  # pydantic's is a ValueError too.
        return None  # A flipped bit must not stop a run: the next attempt writes it again.


def attempts_so_far(folder: RunFolder) -> int:
    """Return the number of the newest attempt at a run, by both records of it; 0 where there was none."""
    folder.look_afresh()  # Else one of another host, long dead, is seen only after this start has decided.
    holder = read_attempt(folder)
    return max(newest_attempt(folder), holder.number if holder else 0)


def newest_attempt(folder: RunFolder) -> int:
    """Return the highest number that an attempt at the run has had, by attempts.jsonl; 0 where none is known."""
    return max((number for row in read_rows(folder.attempts) if is_count(number := row.get("number"))), default=0)


def job_of_task(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the name of the Slurm job that this process is in, as scancel and scontrol take it, or None."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    # The id of an array's last element is that of the whole array: requeued by it, every element would start again.
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID") or None


def _clock(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s after 1970"


@dataclass(frozen=True)
class AttemptRecord:
    """One attempt at a run: its number, the update it went on after (0: of a new run), and the last it has saved.

    `last_update` and `outcome` are None where it was killed and the run has not been started since.
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
    """Add an attempt to attempts.jsonl, as it takes the folder. Raises OSError where it cannot be.

    `job` is the scheduler's name for it, `unique` its random id.
    """
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    row = {"number": number, "id": unique, "start_update": start_update, "host": host, "started": started, "job": job}
    append_row(folder.attempts, row)


def record_meeting(folder: RunFolder, number: int) -> None:
    """Add that the ranks of an attempt have met, which they do listening for signals. Raises OSError as above."""
    append_row(folder.attempts, {"number": number, "ranks_met": True})


def have_ranks_met(folder: RunFolder, number: int) -> bool:
    """Whether every rank of an attempt listens for signals: those that come earlier end a process as it stands."""
    return any(row.get("number") == number and row.get("ranks_met") for row in read_rows(folder.attempts))


def record_outcome(folder: RunFolder, number: int, last_update: int, outcome: str) -> None:
    """Add how an attempt ended (done, SIGTERM, the time limit, …). Raises OSError where it cannot be written."""
    append_row(folder.attempts, {"number": number, "last_update": last_update, "outcome": outcome})


def record_asked(folder: RunFolder, number: int, why: str, update: int) -> None:
    """Add that an attempt was asked to stop, in an update. Raises OSError as above."""
    append_row(folder.attempts, {"number": number, "asked": why, "asked_at": round(time.time()), "in_update": update})


def killed_while_stopping(folder: RunFolder, number: int) -> str:
    """Return what is known of an attempt that was asked to stop and is gone without having saved; "" of any other."""
    known = _rows_by_attempt(folder).get(number, {})
    if "asked" not in known or "outcome" in known:
        return ""
    asked = f"{known['asked']}, {_clock(known['asked_at']) if is_count(known.get('asked_at')) else '?'}"
    in_update = f"killed in update {known.get('in_update')}: nothing of that could be saved"
    return f"attempt {number} was asked to stop ({asked}) and {in_update}"


def _rows_by_attempt(folder: RunFolder) -> dict[int, Row]:
    attempts: dict[int, Row] = {}
    for row in read_rows(folder.attempts):
        if is_count(row.get("number")):
            attempts.setdefault(row["number"], {}).update(row)
    return attempts


def read_attempts(folder: RunFolder) -> list[AttemptRecord]:
    """Return the attempts at a run, oldest first; one that was killed came as far as the next began."""
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
    """Write stopped.json: why, and up to which update everything is saved; 0: nothing is saved yet."""
    write_record(folder.stopped, {"reason": reason, "update": saved}, writer)
