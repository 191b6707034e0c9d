"""Makes sure that no process outlives its run: death signals, adopted orphans, and a sweep of the process tree.

These functions work only on Linux. On other systems they do nothing, and only process groups are ended.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Collection

from noether.common.processes import ProcessId, living_descendants

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# The environment variable with the pid of a fork server's parent process. It is set only for the fork server.
PARENT_VARIABLE = "NOETHER_PARENT_PID"
# Signals that a fork server ignores, because its parent process forwards these signals to the workers.
NOT_FOR_SERVER = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def set_death_signal(number: int) -> bool:
    """Ask the kernel to send the signal `number` to this process when the thread that started it ends (prctl(2)).

    exec keeps this setting, but fork does not, so every child must set it again. Return whether the kernel accepted it.
    """
    return _prctl(PR_SET_PDEATHSIG, number)


def die_with_parent() -> bool:
    """End this process with SIGKILL when its parent ends, however the parent ends.

    Workers, and the loader processes that workers start, call this first. The signal is SIGKILL, because a process that
    is stuck in a collective, or that a background shell started, does not act on SIGINT. The kernel watches the thread
    that started the child, so that thread must outlive the child. Return False if the kernel does not support death
    signals.
    """
    asked = set_death_signal(signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(1)  # The parent ended before the death signal was set.
    return asked


def adopt_orphans(enabled: bool) -> bool:
    """Make this process the new parent of a descendant whose own parent ends (PR_SET_CHILD_SUBREAPER).

    A grandchild that has left its process group, or whose worker has died, is then still found as a descendant.
    """
    return _prctl(PR_SET_CHILD_SUBREAPER, int(enabled))


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)


def end_descendants(root: int, spare: Collection[ProcessId] = (), *, patience_s: float = 0.0) -> list[int]:
    """Wait `patience_s` seconds for the descendants of `root` to end; kill the rest, and return their pids.

    SIGKILL is sent again until no process is left, because a process can start another one just before it dies. This
    takes at most 5 s, because a process in uninterruptible I/O cannot be killed.
    """
    patience_ends = time.monotonic() + patience_s
    gives_up = patience_ends + 5.0
    killed: set[int] = set()
    while left := living_descendants(root, spare):
        now = time.monotonic()
        if now >= gives_up:
            break
        if now >= patience_ends:
            for entry in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(entry.pid, signal.SIGKILL)
                killed.add(entry.pid)
        time.sleep(0.01 if now >= patience_ends else 0.05)
    for pid in killed:  # Adopted orphans are children of this process, and nobody else reaps them.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return sorted(killed)
