"""The system's process table: which process is which, and which are its descendants."""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class ProcessId(NamedTuple):
    """One process for certain: numbers are used again, a number with its start time (clock ticks) is not."""

    pid: int
    started: int


class ProcessEntry(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    started: int
    zombie: bool

    @property
    def identity(self) -> ProcessId:
        """The process, whatever becomes of its number."""
        return ProcessId(self.pid, self.started)


def _stat(pid: int | str, proc: Path = Path("/proc")) -> tuple[str, list[bytes]]:
    """Reads a process's name, and the fields from its state on: proc(5), "pid (any name) state ppid …"."""
    # The name may hold spaces and brackets itself.
    before, _, after = (proc / str(pid) / "stat").read_bytes().rpartition(b")")
    return before.partition(b"(")[2].decode(errors="replace"), after.split()


def process_table() -> dict[int, ProcessEntry]:
    """Read every process from /proc; empty where there is no /proc."""
    table = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    _, fields = _stat(name)
                    pid, gone = int(name), fields[0] in (b"Z", b"X")
                    table[pid] = ProcessEntry(pid, int(fields[1]), int(fields[19]), gone)
    return table


def process_id(pid: int) -> ProcessId | None:
    """Return a process's number with its start; None where it is gone, or ended and was not waited for yet."""
    try:
        _, fields = _stat(pid)
        return None if fields[0] in (b"Z", b"X") else ProcessId(pid, int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def ancestors(proc: Path = Path("/proc")) -> Iterator[tuple[int, str]]:
    """Yields number and name (15 characters at most) of the parent, its parent, and so on, as far as they are seen."""
    pid = os.getppid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while pid > 0:
            name, fields = _stat(pid, proc)
            yield pid, name
            pid = int(fields[1])


def is_alive(process: ProcessId) -> bool:
    """Whether this very process runs; a zombie does not."""
    return process_id(process.pid) == process


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process (SIGSTOP, SIGTSTP, a debugger); False where there is no /proc."""
    try:
        return _stat(pid)[1][0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def descendants(table: Mapping[int, ProcessEntry], root: int) -> list[ProcessEntry]:
    """Return the children of `root`, their children, and so on, parents first; zombies included."""
    children: dict[int, list[ProcessEntry]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry)
    found: list[ProcessEntry] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += [entry.pid for entry in below]
    return found


def living_descendants(root: int, spare: Collection[ProcessId] = ()) -> list[ProcessEntry]:
    """Return the descendants of `root` that are running and not in `spare`."""
    return [entry for entry in descendants(process_table(), root) if not entry.zombie and entry.identity not in spare]
