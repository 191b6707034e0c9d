"""Run Slurm's commands (squeue, sbatch, scancel) and read this user's jobs."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from noether.common.errors import NoetherError

SEPARATOR = "\x1f"  # A control character, because names and comments may contain any printable one.
FIELDS = SEPARATOR.join(("%i", "%T", "%L", "%r", "%j", "%k", "%Z"))
RUN_COMMENT = "noether:"
"""The prefix of the comment of noether's jobs. After it comes the run's folder, relative to the folder of submission;
for a job array, the folder ends in %a, which stands for the element's index."""
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
"""The states of a job that waits for its start, or for its restart after a requeue (squeue(1), "JOB STATE CODES")."""
RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


@dataclass(frozen=True)
class QueuedJob:
    """A job, or an element of a job array ("12_3"), that has not ended, as squeue describes it.

    `state`: PENDING, RUNNING, COMPLETING, …
    `time_left`: the remaining time as squeue writes it: "1:59:30", "UNLIMITED".
    `comment`: the job's comment. `submitted_in`: the folder from which the job was submitted.
    """

    job_id: str
    state: str
    time_left: str
    reason: str
    name: str
    comment: str = ""
    submitted_in: str = ""

    @property
    def waits(self) -> bool:
        """True until the job starts. A job that has started can have something to save, even if it is suspended."""
        return self.state in WAITING

    @cached_property
    def run(self) -> Path | None:
        """The folder of the run, from the job's comment; None if noether did not submit the job."""
        if not self.comment.startswith(RUN_COMMENT):
            return None
        _, is_element, element = self.job_id.partition("_")
        named = self.comment.removeprefix(RUN_COMMENT)
        named = named.removesuffix("%a") + element if is_element and named.endswith("%a") else named
        return (Path(self.submitted_in) / named).resolve()


class SlurmError(NoetherError):
    """A Slurm command failed. The text of this error contains the command's own message."""


def has_slurm() -> bool:
    """Return whether Slurm's commands are installed here, which they typically are not in a container."""
    return shutil.which("sbatch") is not None and shutil.which("squeue") is not None


def queued_jobs() -> dict[str, QueuedJob]:
    """Return this user's unfinished jobs by job id, or {} if Slurm is not installed. SlurmError: it does not answer."""
    if not has_slurm():
        return {}
    text = run_slurm(["squeue", "--noheader", "--array", f"--user={os.getuid()}", f"--format={FIELDS}"])
    rows = (line.split(SEPARATOR) for line in text.split("\n"))
    jobs = (QueuedJob(*row) for row in rows if len(row) == FIELDS.count(SEPARATOR) + 1)
    return {job.job_id: job for job in jobs}


def job_state(job_id: str) -> str | None:
    """Return the state of a waiting, running or ended job, in Slurm's words; None if Slurm does not know the job."""
    if known := queued_jobs().get(job_id):
        return known.state
    # scontrol does not know a job that ended minutes ago; sacct does, but only on a cluster with accounting.
    for command in (f"scontrol -o show job {job_id}", f"sacct -n -X -P -o State -j {job_id}"):
        with suppress(SlurmError):
            if found := re.search(r"(?:JobState=|^)([A-Z_]+)\b(?!=)", run_slurm(command.split())):
                return found[1]
    return None


def run_slurm(
    command: Sequence[str], text: str = "", environ: Mapping[str, str] | None = None, *, limit_s: float = 60
) -> str:
    """Run a Slurm command and return its output. SlurmError: it failed or did not answer within `limit_s` seconds."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=limit_s, env=environ and dict(environ)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{command[0]} does not answer: {error}") from None
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise SlurmError(f"{command[0]} refused\n  seen      {said}\n  command   {' '.join(command)}")
    return done.stdout


def clean_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return `environ` for sbatch, without the variables of the job or step in which this process runs.

    Otherwise sbatch would use them as defaults for the new job (SLURM_MEM_PER_CPU with --mem is an error), and the
    job's processes would read their ranks from them. SBATCH_… and SLURM_CONF are kept: users set them for sbatch.
    """
    return {
        name: value
        for name, value in environ.items()
        if name not in RANK_VARIABLES and (not name.startswith(("SLURM_", "SLURMD_", "SRUN_")) or name == "SLURM_CONF")
    }
