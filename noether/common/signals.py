"""The signals that ask a process to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from noether.common.errors import signal_code

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Each asks a run to stop with everything saved."""

SECOND_INTERRUPT_S = 0.5
"""Two Ctrl-C closer together are one: a terminal, a shell and a container may each pass it on."""

JOB_STOP_SIGNAL = "USR2"
"""Tells the ranks of a job to save and stop: sent by Slurm before its time limit, and by `noether cancel`.

submitit uses it too. NCCL uses SIGUSR1 in places (submitit #1697).
"""


def leave_when_told() -> None:
    """Ends this process with 128 + its number when `JOB_STOP_SIGNAL` comes; for a parent that watches no ranks yet.

    SIGTERM is ignored on the way out: srun sends it to all tasks once one has ended, and returns the highest code.
    """
    signal.signal(signal.Signals[f"SIG{JOB_STOP_SIGNAL}"], _leave)


@contextmanager
def leaving_as_told() -> Iterator[None]:
    """Let a signal during an import leave as itself: in `__set_name__` Python 3.11 makes a RuntimeError of it."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, SystemExit | KeyboardInterrupt):
            raise error.__cause__ from None
        raise


def leave_with_what_was_made() -> None:
    """Makes SIGTERM end this process by SystemExit, so that it removes what it made; SIGHUP does the same.

    Not where SIGHUP is ignored, as under nohup.
    """
    signal.signal(signal.SIGTERM, _leave)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))


def ignore_the_end_of_others() -> None:
    """Ignores SIGTERM, which srun sends to all tasks when one has ended: this process ends by itself, with its code."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    ignore_the_end_of_others()
    raise SystemExit(signal_code(number))
