"""The system's process table: which process is which, and which are its descendants."""

import os
import socket
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
    """Reads one process, "pid (any name) state ppid …" in proc(5); None where it is gone, or there is no /proc."""
    try:
        # The name may hold spaces and brackets itself.
        before, _, after = (proc / str(pid) / "stat").read_bytes().rpartition(b")")
        fields, name = after.split(), before.partition(b"(")[2].decode(errors="replace")
        return ProcessEntry(int(pid), int(fields[1]), int(fields[19]), fields[0].decode(), name)
    except (OSError, ValueError, IndexError):
        return None


def boot_id() -> str:
    """Returns what tells this boot of this machine from every other; empty where the system does not say."""
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
    """Yields number and name of the parent, its parent, and so on, as far as they are seen."""
    pid = os.getppid()
    while pid > 0 and (entry := _entry(pid, proc)):
        yield pid, entry.name
        pid = entry.parent


def is_alive(process: ProcessId) -> bool:
    """Whether this very process runs; a zombie does not."""
    return process_id(process.pid) == process


def this_process() -> dict[str, Any]:
    """Returns host, boot, pid and start of this process, by which others can ask `was_alive`."""
    own = process_id(os.getpid())
    about = {"host": socket.gethostname(), "boot": boot_id()}
    return about | {"pid": os.getpid(), "started": own.started if own else 0}


def was_alive(host: str, boot: str, pid: int, started: int) -> bool | None:
    """Whether a process that said so of itself runs; None where that cannot be seen from this host."""
    return boot == boot_id() and is_alive(ProcessId(pid, started)) if host == socket.gethostname() else None


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process (SIGSTOP, SIGTSTP, a debugger); False where there is no /proc."""
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
