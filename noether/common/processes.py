"""Processes, asked of /proc, and the signals that end them."""

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
    """One process for certain: numbers are used again, a number with its start time (clock ticks) is not."""

    pid: int
    started: int


class ProcessEntry(NamedTuple):
    """One line of the process table; `state` is a letter of proc(5), `name` has 15 characters at most."""

    pid: int
    parent: int
    started: int
    state: str
    name: str = ""

    @property
    def identity(self) -> ProcessId:
        """The process, whatever becomes of its number."""
        return ProcessId(self.pid, self.started)

    @property
    def zombie(self) -> bool:
        """Whether it has ended and was not waited for yet."""
        return self.state in "ZX"


def _entry(pid: int | str, proc: Path = PROC) -> ProcessEntry | None:
    """Read one process, "pid (any name) state ppid …" in proc(5); None where it is gone, or there is no /proc."""
    try:
        # The name may hold spaces and brackets itself.
        before, _, after = (proc / str(pid) / "stat").read_bytes().rpartition(b")")
        fields, name = after.split(), before.partition(b"(")[2].decode(errors="replace")
        return ProcessEntry(int(pid), int(fields[1]), int(fields[19]), fields[0].decode(), name)
    except (OSError, ValueError, IndexError):
        return None


def boot_id() -> str:
    """Return what tells this boot of this machine from every other; empty where the system does not say."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_table() -> dict[int, ProcessEntry]:
    """Read every process from /proc; empty where there is no /proc."""
    try:
        numbers = filter(str.isdigit, os.listdir(PROC))
    except OSError:
        return {}
    return {entry.pid: entry for number in numbers if (entry := _entry(number))}


def process_id(pid: int) -> ProcessId | None:
    """Return a process's number with its start; None where it is gone, or ended and was not waited for yet."""
    entry = _entry(pid)
    return None if entry is None or entry.zombie else entry.identity


def ancestors(proc: Path = PROC) -> Iterator[tuple[int, str]]:
    """Yield number and name of the parent, its parent, and so on, as far as they are seen."""
    pid = os.getppid()
    while pid > 0 and (entry := _entry(pid, proc)):
        yield pid, entry.name
        pid = entry.parent


def is_alive(process: ProcessId) -> bool:
    """Return whether this very process runs; a zombie does not."""
    return process_id(process.pid) == process


def this_process() -> dict[str, Any]:
    """Return host, boot, pid and start of this process, by which others can ask `was_alive`."""
    own = process_id(os.getpid())
    about = {"host": socket.gethostname(), "boot": boot_id()}
    return about | {"pid": os.getpid(), "started": own.started if own else 0}


def was_alive(host: str, boot: str, pid: int, started: int) -> bool | None:
    """Return whether a process that said so of itself runs; None where that cannot be seen from this host."""
    return boot == boot_id() and is_alive(ProcessId(pid, started)) if host == socket.gethostname() else None


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process (SIGSTOP, SIGTSTP, a debugger); False where there is no /proc."""
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
"""Each asks a run to stop with everything saved; SIGHUP comes when a terminal is closed."""

ENDS_OF_OTHERS = (signal.SIGTERM, signal.SIGHUP)
"""Come to every process of a step, or of a terminal, that ends."""


@contextmanager
def stops_handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[dict[int, Any]]:
    """Handle the stop signals until left; yield the previous handlers. SIGHUP stays ignored where nohup ignores it."""
    own = [one for one in STOP_SIGNALS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in own}
    try:
        yield before
    finally:
        for number, previous in before.items():
            if previous is not None:  # Set by what is not Python, which alone can set it again.
                signal.signal(number, previous)


SECOND_INTERRUPT_S = 0.5
"""Two Ctrl-C closer together are one: a terminal, a shell and a container may each pass it on."""

JOB_STOP_SIGNAL = "USR2"
"""Tells the ranks of a job to save and stop: sent by Slurm before its time limit, and by `noether cancel`.

submitit uses it too. NCCL uses SIGUSR1 in places (submitit #1697).
"""


class EndedBySignal(SystemExit):
    """Ends this process as a signal asks. What takes other code's SystemExit for a failure lets this one pass."""


def leave_when_told() -> None:
    """End this process with 128 + its number when `JOB_STOP_SIGNAL` comes; for a parent that watches no ranks yet.

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
    """Make SIGTERM and SIGHUP end this process by SystemExit, so that it removes what it made."""
    for number in ENDS_OF_OTHERS:
        if signal.getsignal(number) != signal.SIG_IGN:  # As SIGHUP is under nohup.
            signal.signal(number, _leave)


def ignore_the_end_of_others() -> None:
    """Ignores SIGTERM, which srun sends to all tasks when one has ended, and SIGHUP: this process ends by itself."""
    for number in ENDS_OF_OTHERS:
        signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    ignore_the_end_of_others()
    raise EndedBySignal(signal_code(number))
