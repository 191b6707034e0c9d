"""Imports what every worker needs once: the fork server imports this module, and its forks inherit the imports.

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

    Collecting garbage during the imports costs a third of their time and finds nothing. The collector never visits
    frozen objects again, so the workers keep sharing their memory pages. A module that fails to import is left for
    the worker to import, so that the error is reported as that worker's own.
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
    """Make the fork server survive every signal that is meant for the run, but not the end of its parent process.

    A scheduler signals each process of a step. A fork server that ended on SIGUSR1 would take the workers with
    it, because its end is what triggers their death signal. Its own death signal is SIGTERM: when that arrives and
    the parent process is gone (SIGKILL included), all descendants are ended. Multiprocessing itself notices
    a client's end by a closed pipe, but that never comes while a worker holds the other end.
    """
    server_pid = os.getpid()

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        if os.getpid() != server_pid:
            # This is a worker that was just forked and has not set its own handlers.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif os.getppid() != parent_pid:
            end_descendants(server_pid)
            os._exit(0)

    for ignored in NOT_FOR_SERVER:
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOT_FOR_SERVER)  # Blocked by the parent process until now.
    signal.signal(signal.SIGTERM, on_sigterm)
    set_death_signal(signal.SIGTERM)
    if os.getppid() != parent_pid:
        os._exit(0)  # The parent ended before the death signal was set.


if PARENT_VARIABLE in os.environ:
    outlive_signals(int(os.environ[PARENT_VARIABLE]))
import_once()
