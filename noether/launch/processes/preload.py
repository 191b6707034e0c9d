"""Imports once what every worker needs: the fork server imports this module, and its forks inherit the imports.

`import torch` would cost each worker seconds. Forking is safe, because no import here starts a thread or touches CUDA.
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
    """Import the modules that workers need, with the garbage collector off, and then freeze all objects.

    During the imports, the collector would take a third of the time and find nothing. It never visits frozen objects
    again, so the workers keep sharing the memory pages of these objects. If a module fails to import, the error is
    ignored here; a worker imports the module again, and reports the error as its own.
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
    """Make the fork server ignore every signal that is meant for the run, but end when its parent process ends.

    A scheduler sends signals to each process of a step. A fork server that ended on SIGUSR1 would end the workers too,
    because its end triggers their death signal. The server's own death signal is SIGTERM: if it gets SIGTERM and its
    parent process has ended, even by SIGKILL, it ends all its descendants. multiprocessing itself ends the server when
    the pipe from its client closes, but the pipe stays open as long as a worker has the other end.
    """
    server_pid = os.getpid()

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        if os.getpid() != server_pid:
            # This process is a worker that was just forked and has not yet set its own handlers.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif os.getppid() != parent_pid:
            end_descendants(server_pid)
            os._exit(0)

    for ignored in NOT_FOR_SERVER:
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOT_FOR_SERVER)  # The parent process had blocked these signals.
    signal.signal(signal.SIGTERM, on_sigterm)
    set_death_signal(signal.SIGTERM)
    if os.getppid() != parent_pid:
        os._exit(0)  # The parent ended before the death signal was set.


if PARENT_VARIABLE in os.environ:
    outlive_signals(int(os.environ[PARENT_VARIABLE]))
import_once()
