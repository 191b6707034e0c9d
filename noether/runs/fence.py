"""Who may write to a run folder: the newest start of the run, and nobody else. No torch here.

A scheduler can start a run again while a node that it believes dead still trains: a cable that was pulled, a switch
that froze. Each start takes the folder by putting its own number and a random id into `attempt.json`. Whoever writes
reads that file first: before a checkpoint gets its name, before a row is added to the history. A start that finds
another id there ends. What remains is the moment between that look and the write; a rename is one moment, and what
it brings is a whole checkpoint of the same history.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from noether.common.whole_file import write_json
from noether.errors import ExitCode, NoetherError, RequestError
from noether.runs.folder import RunFolder

_FIELDS = ("number", "id", "job", "restarts", "host", "process", "since")


class FencedError(NoetherError):
    """A later start of the run has taken the folder over."""

    exit_code = ExitCode.FAILED


@dataclass(frozen=True)
class Attempt:
    """One start of a run.

    number: starts of this run so far, this one included.
    id: random, so that two starts are never taken for one.
    job: the scheduler's name for the job, or empty. restarts: how often it has requeued that job.
    host, process: where the start runs; `process` tells a process from a later one of the same number.
    since: when it took the folder.
    """

    number: int
    id: str
    job: str
    restarts: int
    host: str
    process: str
    since: str

    def describe(self) -> str:
        """Returns the attempt in words: "attempt 3 on n2, since 2026-01-31 12:00:00"."""
        return f"attempt {self.number} on {self.host}, since {self.since}"


@dataclass(frozen=True)
class Fence:
    """One start's right to write to a run folder."""

    path: Path
    own: Attempt

    def check(self) -> None:
        """Returns where this start may still write.

        Raises:
            FencedError: a later start has taken the folder.
            OSError: the file system does not answer; ask again before writing.
        """
        holder = read_attempt(self.path)
        if holder is not None and holder.id != self.own.id:
            raise FencedError(
                "another start of this run writes to its folder now; this one ends and leaves it alone\n"
                f"  seen      {holder.describe()}, in {self.path}\n"
                f"  expected  {self.own.describe()}: this one\n"
                "  fix       nothing, where the run was started again; else start it once, not twice"
            )


def take_fence(folder: RunFolder, restarts: int, environ: Mapping[str, str] = os.environ) -> Fence:
    """Takes a run folder for this start; from now on every earlier start is shut out.

    Args:
        folder: the run's, which exists.
        restarts: how often the scheduler has requeued the job (the placement's attempt).
        environ: the environment this process was started with.

    Raises:
        RequestError: where a later start of the same job has the folder, or one that is alive on this host.
    """
    holder = read_attempt(folder.attempt)
    own = Attempt(
        number=1 if holder is None else holder.number + 1,
        id=secrets.token_hex(8),
        job=_job(environ),
        restarts=restarts,
        host=socket.gethostname(),
        process=_identity(os.getpid()),
        since=time.strftime("%Y-%m-%d %H:%M:%S"),
    )
    if holder is not None:
        _refuse_to_rob(folder, holder, own)
    write_json(folder.attempt, asdict(own))
    return Fence(folder.attempt, own)


def _refuse_to_rob(folder: RunFolder, holder: Attempt, own: Attempt) -> None:
    same_job = bool(own.job) and own.job == holder.job
    if same_job and own.restarts < holder.restarts:
        raise RequestError(
            "this is a stale start: the job has been requeued since",
            seen=f"restart {own.restarts} of job {own.job}; restart {holder.restarts} has {folder.path}",
            expected="the newest start of a job",
        )
    requeued = same_job and own.restarts > holder.restarts
    if not requeued and holder.host == own.host and holder.process != own.process and _is_alive(holder.process):
        raise RequestError(
            f"the run {folder.path} is being written by another process",
            seen=f"{holder.describe()}, process {holder.process.partition(' ')[0]}",
            expected="one writer of a run at a time",
            fix=f"kill -TERM {holder.process.partition(' ')[0]}      (it saves and leaves; or run_id=ANOTHER_NAME)",
        )


def read_attempt(path: Path) -> Attempt | None:
    """Returns the start that has a run folder; None where none has, or where the file is damaged.

    Raises:
        OSError: where it is there and cannot be read.
    """
    try:
        content = json.loads(path.read_text())
        return Attempt(**{name: content[name] for name in _FIELDS})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return None  # A flipped bit here must not stop a run: the next start writes it anew.


def _job(environ: Mapping[str, str]) -> str:
    if environ.get("SLURM_JOB_ID"):
        return f"slurm {environ['SLURM_JOB_ID']}"
    return ""


def _identity(pid: int) -> str:
    """Names a process so that a later one with its number has another name: number, start, boot (proc(5))."""
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, IndexError):
        return ""
    return f"{pid} {start} {boot}"


def _is_alive(process: str) -> bool:
    pid = process.partition(" ")[0]
    if not pid.isdigit() or _identity(int(pid)) != process:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"  # One that nobody has waited for yet writes no more.
