"""The system's process table: which process is which, and which are its descendants."""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
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


def process_table() -> dict[int, ProcessEntry]:
    """Read every process from /proc; empty where there is no /proc."""
    table = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    with open(f"/proc/{name}/stat", "rb") as stat:
                        # proc(5): "pid (any name) state ppid …"; the name may hold spaces and brackets.
                        fields = stat.read().rpartition(b")")[2].split()
                    pid, gone = int(name), fields[0] in (b"Z", b"X")
                    table[pid] = ProcessEntry(pid, int(fields[1]), int(fields[19]), gone)
    return table


def process_id(pid: int) -> ProcessId | None:
    """Return a process's number with its start; None where it is gone, or ended and was not waited for yet."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else ProcessId(pid, int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def ancestors() -> Iterator[tuple[int, str]]:
    """Yields number and name (15 characters at most) of the parent, its parent, and so on, as far as they are seen."""
    pid = os.getppid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while pid > 0:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                before, _, after = stat.read().rpartition(b")")
            yield pid, before.partition(b"(")[2].decode(errors="replace")
            pid = int(after.split()[1])


def is_alive(process: ProcessId) -> bool:
    """Whether this very process runs; a zombie does not."""
    return process_id(process.pid) == process


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process (SIGSTOP, SIGTSTP, a debugger); False where there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
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
