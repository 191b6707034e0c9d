"""What every worker needs, imported once: the fork server imports this module, and its forks start with it.

`import torch` costs a worker seconds. Forking is safe here because nothing below starts a thread or touches CUDA.
"""

import contextlib
import gc
import importlib
import os
import signal
from types import FrameType

from noether.launch.processes.death_signal import NOT_FOR_SERVER, PARENT_VARIABLE, end_descendants, set_death_signal

MODULES = (
    "numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch.optim", "noether.config.distributed",
    "noether.launch.script",
)  # fmt: skip


def import_once() -> None:
    """Import what workers need, without the garbage collector, and keep it out of later collections.

    Collecting during the imports costs a third of their time and finds nothing. Frozen objects are never
    visited again, so the workers go on sharing the pages they lie on. A module that cannot be imported is
    left for the worker to meet, where the error is reported as that worker's own.
    """
    gc.disable()
    try:
        for name in MODULES:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    finally:
        gc.enable()
    gc.freeze()


def outlive_signals(parent_pid: int) -> None:
    """Outlive every signal that is meant for the run, and not the parent process.

    A scheduler signals each process of a step; a fork server that ended on SIGUSR1 would take the workers,
    whose death signal it carries, with it. Its own death signal is SIGTERM: when that comes and the parent process
    is gone (SIGKILL included), the whole tree below is ended. Multiprocessing's own sign that a client left,
    the end of a pipe, never comes while a worker holds the other end.
    """
    server_pid = os.getpid()

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        if os.getpid() != server_pid:
            # A worker so young that it has not set its own signals.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif os.getppid() != parent_pid:
            end_descendants(server_pid)
            os._exit(0)

    for ignored in NOT_FOR_SERVER:
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOT_FOR_SERVER)  # Blocked by the parent process until this moment.
    signal.signal(signal.SIGTERM, on_sigterm)
    set_death_signal(signal.SIGTERM)
    if os.getppid() != parent_pid:
        os._exit(0)  # It ended before the kernel was asked.


if PARENT_VARIABLE in os.environ:
    outlive_signals(int(os.environ[PARENT_VARIABLE]))
import_once()
