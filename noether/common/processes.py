"""Processes as /proc lists them, and the signals that stop them."""

import os
import signal
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from noether.common.errors import signal_code

PROC = Path("/proc")


class ProcessId(NamedTuple):
    """A process's permanent identity: PIDs are reused, but a PID with its start time (in clock ticks) is not."""

    pid: int
    started: int


class ProcessEntry(NamedTuple):
    """One line of the process table; `state` is a letter from proc(5), `name` has at most 15 characters."""

    pid: int
    parent: int
    started: int
    state: str
    name: str = ""

    @property
    def identity(self) -> ProcessId:
        """The process's PID with its start time."""
        return ProcessId(self.pid, self.started)

    @property
    def zombie(self) -> bool:
        """True if the process has ended but has not been waited for."""
        return self.state in "ZX"


def _entry(pid: int | str, proc: Path = PROC) -> ProcessEntry | None:
    """Read a process's entry, "pid (any name) state ppid …" in proc(5); None if it has ended or there is no /proc."""
    try:
        # The name itself may contain spaces and brackets.
        before, _, after = (proc / str(pid) / "stat").read_bytes().rpartition(b")")
        fields, name = after.split(), before.partition(b"(")[2].decode(errors="replace")
        return ProcessEntry(int(pid), int(fields[1]), int(fields[19]), fields[0].decode(), name)
    except (OSError, ValueError, IndexError):
        return None


def boot_id() -> str:
    """Return an identifier of this boot of this machine; empty if the system has none."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_table() -> dict[int, ProcessEntry]:
    """Return {PID: entry} of every process in /proc; empty if there is no /proc."""
    try:
        numbers = filter(str.isdigit, os.listdir(PROC))
    except OSError:
        return {}
    return {entry.pid: entry for number in numbers if (entry := _entry(number))}


def process_id(pid: int) -> ProcessId | None:
    """Return a process's PID with its start time; None if the process has ended, even as a zombie."""
    entry = _entry(pid)
    return None if entry is None or entry.zombie else entry.identity


def ancestors(proc: Path = PROC) -> Iterator[tuple[int, str]]:
    """Yield PID and name of the parent, the grandparent, and so on, as far as /proc shows them."""
    pid = os.getppid()
    while pid > 0 and (entry := _entry(pid, proc)):
        yield pid, entry.name
        pid = entry.parent


def is_alive(process: ProcessId) -> bool:
    """Return whether exactly this process still runs; a zombie has ended."""
    return process_id(process.pid) == process


def this_process() -> dict[str, Any]:
    """Return host, boot, pid and start time of this process: the arguments of `was_alive`."""
    own = process_id(os.getpid())
    about = {"host": socket.gethostname(), "boot": boot_id()}
    return about | {"pid": os.getpid(), "started": own.started if own else 0}


def was_alive(host: str, boot: str, pid: int, started: int) -> bool | None:
    """Return whether the process described by `this_process` still runs; None if it is on another host."""
    return boot == boot_id() and is_alive(ProcessId(pid, started)) if host == socket.gethostname() else None


def is_stopped(pid: int) -> bool:
    """Return whether a process is suspended (SIGSTOP, SIGTSTP, a debugger); False if there is no /proc."""
    return (entry := _entry(pid)) is not None and entry.state in "Tt"


def descendants(table: Mapping[int, ProcessEntry], root: int) -> list[ProcessEntry]:
    """Return the children of `root`, their children, and so on, parents first; zombies included."""
    children: dict[int, list[ProcessEntry]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry)
    found = list(children.get(root, []))
    for entry in found:
        found += children.get(entry.pid, [])
    return found


def living_descendants(root: int, spare: Collection[ProcessId] = ()) -> list[ProcessEntry]:
    """Return the descendants of `root` that are running and not in `spare`."""
    return [entry for entry in descendants(process_table(), root) if not entry.zombie and entry.identity not in spare]


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""Signals that ask a run to save everything and stop; closing a terminal sends SIGHUP."""

ENDS_OF_OTHERS = (signal.SIGTERM, signal.SIGHUP)
"""The signals that every process of a Slurm step or a terminal receives when the step or the terminal ends."""


@contextmanager
def stops_handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[dict[int, Any]]:
    """Handle the stop signals inside the block; yield the previous handlers. SIGHUP stays ignored under nohup."""
    own = [one for one in STOP_SIGNALS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in own}
    try:
        yield before
    finally:
        for number, previous in before.items():
            if previous is not None:  # None: not set from Python, so Python cannot restore it.
                signal.signal(number, previous)


SECOND_INTERRUPT_S = 0.5
"""Two Ctrl-C within this time count as one: a terminal, a shell and a container may each forward the same Ctrl-C."""

JOB_STOP_SIGNAL = "USR2"
"""The signal that tells a job's ranks to save and stop. Slurm (before the time limit) and `noether cancel` send it.

submitit uses the same signal. NCCL uses SIGUSR1 in places (submitit #1697).
"""


class EndedBySignal(SystemExit):
    """A SystemExit raised for a signal. Code that catches the SystemExit of user code must re-raise this one."""


def leave_when_told() -> None:
    """Make `JOB_STOP_SIGNAL` end this process, with code 128 + the signal's number, until the process watches ranks.

    SIGTERM is ignored during the exit: srun sends it to all tasks once a task has ended, and returns the highest code.
    """
    signal.signal(signal.Signals[f"SIG{JOB_STOP_SIGNAL}"], _leave)


@contextmanager
def leaving_as_told() -> Iterator[None]:
    """Re-raise a signal's exception, which Python 3.11 turns into a RuntimeError if it is raised in `__set_name__`."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, SystemExit | KeyboardInterrupt):
            raise error.__cause__ from None
        raise


def leave_with_what_was_made() -> None:
    """Make SIGTERM and SIGHUP raise SystemExit, so that this process removes its temporary files."""
    for number in ENDS_OF_OTHERS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP.
            signal.signal(number, _leave)


def ignore_the_end_of_others() -> None:
    """Ignore SIGTERM and SIGHUP in a process that is ending; srun sends SIGTERM to all tasks once a task has ended."""
    for number in ENDS_OF_OTHERS:
        signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    ignore_the_end_of_others()
    raise EndedBySignal(signal_code(number))
