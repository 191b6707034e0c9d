"""Finds the deadline of a run, and the moment at which the run must begin to stop; does not import torch."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from noether.common.numbers import whole
from noether.launch.detect.slurm.queue import SlurmError, run_slurm

MARGIN_S = 10.0
"""Extra seconds: Slurm checks time limits every few seconds, host clocks differ, and a process needs time to exit."""

ASSUMED_BYTES_PER_S = 50e6
"""The speed of a slow shared disk. It is assumed until the first checkpoint of this run has been timed."""


@dataclass
class Deadline:
    """The time by which a run must have ended, and how long its last steps take.

    `moment`: the deadline in seconds of the monotonic clock, which is never set back. `source`: the setting or query
    that gave the deadline. `save_s`, `boundary_s`: the longest time so far of a checkpoint, and between two boundaries.
    """

    moment: float
    source: str
    save_s: float = 0.0
    boundary_s: float = 0.0
    _last_boundary: float | None = field(default=None, repr=False)

    @property
    def lead_s(self) -> float:
        """The seconds before the deadline at which the ranks must begin to stop.

        This allows for the checkpoint in progress and the last one; a stop is agreed one boundary after its request.
        """
        return MARGIN_S + 2 * self.save_s + 2 * self.boundary_s

    def is_near(self, now: Callable[[], float] = time.monotonic) -> bool:
        """Return whether it is time to stop. Call this at every boundary: it also measures the time between calls."""
        moment = now()
        if self._last_boundary is not None:
            self.boundary_s = max(self.boundary_s, moment - self._last_boundary)
        self._last_boundary = moment
        return moment + self.lead_s >= self.moment

    def describe(self) -> str:
        """Return the deadline for the plan: "2026-01-31 14:05:00 (slurm.timeout_min=60)"."""
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.moment + _clock_offset()))} ({self.source})"


def _clock_offset() -> float:
    """Return the time at which the monotonic clock read 0, in seconds since the epoch."""
    return time.time() - time.monotonic()


def ask_squeue(job: str) -> str | None:
    """Return a job's remaining time as squeue prints it; None if squeue is missing, as in most containers, or fails."""
    try:
        return run_slurm(["squeue", "--noheader", f"--jobs={job}", "--format=%L"], limit_s=10).strip() or None
    except SlurmError:
        return None


def find_deadline(
    timeout_min: float | None,
    job_minutes: int | None,
    environ: Mapping[str, str],
    *,
    started: float,
    ask: Callable[[str], str | None] = ask_squeue,
) -> Deadline | None:
    """Return the earliest deadline set by a setting or by Slurm; None if there is none.

    Args:
        timeout_min: `trainer.timeout_min`, counted from `started`.
        job_minutes: `slurm.timeout_min`, the job's requested time; used inside a job if its end is not known otherwise.
        environ: the environment; newer versions of Slurm set SLURM_JOB_END_TIME in it.
        started: when this process started, in seconds of the monotonic clock.
        ask: returns a job's remaining time in the format of `squeue --format=%L`.
    """
    found = []
    if timeout_min is not None:
        found.append(Deadline(started + 60 * timeout_min, f"trainer.timeout_min={timeout_min:g}"))
    if job := environ.get("SLURM_JOB_ID"):
        end = whole(environ.get("SLURM_JOB_END_TIME", "")) or 0
        moment = end - _clock_offset() if end < 10**11 else 0.0
        if moment > started:  # An end in the past is that of another job, from an inherited variable.
            found.append(Deadline(moment, "SLURM_JOB_END_TIME"))
        elif said := ask(job):
            if (left := seconds_left(said)) is not None:
                found.append(Deadline(time.monotonic() + left, f"squeue: {said} left to job {job}"))
        elif job_minutes is not None:
            found.append(Deadline(started + 60 * job_minutes, f"slurm.timeout_min={job_minutes}"))
    return min(found, key=lambda deadline: deadline.moment, default=None)


def seconds_left(text: str) -> float | None:
    """Parse squeue's days-hours:minutes:seconds; return None if `text` is no time (UNLIMITED, NOT_SET, INVALID)."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in [*parts, days or "0"]) or not 2 <= len(parts) <= 3:
        return None
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds + 86400 * int(days or 0)
