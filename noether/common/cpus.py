"""Count the CPUs that this process may use, and divide them among the threads of its ranks."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from noether.common.numbers import counted, whole_number


@dataclass(frozen=True)
class UsableCpus:
    """The CPUs in this process's affinity, the CPU count of the machine, and the cgroup quota (None: no quota)."""

    allowed: tuple[int, ...]
    machine: int
    quota: float | None = None

    @property
    def count(self) -> int:
        """The number of threads that can compute at the same time, at least 1."""
        return max(1, int(min(len(self.allowed), self.quota or len(self.allowed))))

    def __str__(self) -> str:
        cores = counted(len(self.allowed), "usable core")
        return cores if self.quota is None else f"{cores}, a quota of {self.quota:g}"


@dataclass(frozen=True)
class CpuShare:
    """The thread count of each rank of this process, the CPUs for its threads, and the reason for the count."""

    threads: int
    cpus: tuple[int, ...]
    quota: float | None
    reason: str


def read_cpus() -> UsableCpus:
    """Return the CPUs that this process may use: all CPUs on a system without affinity and cgroups."""
    machine = os.cpu_count() or 1
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(machine)
    return UsableCpus(tuple(sorted(allowed)), machine, cpu_quota())


def usable_cpus() -> int:
    """Return the number of threads of this process that can compute at the same time."""
    return read_cpus().count


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the smallest CPU quota of this process's cgroups, in CPUs; None if there is no limit."""
    quotas = map(_quota_of_group, own_groups("cpu", root))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_of_group(group: Path) -> float | None:
    with suppress(OSError, ValueError):  # cgroup v2: "200000 100000" means 2 CPUs, "max 100000" no limit.
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):  # cgroup v1: -1 means no limit.
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    return None


def own_groups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the folder of this process's cgroup for a controller ("cpu", "pids"), then the folder of each ancestor.

    Some of the folders may not exist: in a container, the cgroup of the process lies at the root of the mount, whatever
    path /proc/self/cgroup shows.
    """
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    mount = root / "sys/fs/cgroup"
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number != "0" and controller not in controllers.split(","):
            continue
        for tree in (mount, mount / "unified") if number == "0" else (mount / controllers, mount / controller):
            group = tree / path.lstrip("/")
            while group.is_relative_to(tree):
                yield group
                group = group.parent


def number_in(path: Path, prefix: str = "") -> int | None:
    """Return the whole number that a kernel file contains after `prefix`; None if it contains none."""
    with suppress(OSError, ValueError):
        return int(path.read_text().removeprefix(prefix))
    return None


def share_cpus(cpus: UsableCpus, environ: Mapping[str, str], ranks: int, ranks_on_node: int) -> CpuShare:
    """Return the threads for each of this process's `ranks`: OMP_NUM_THREADS if the user set it, else an equal share.

    All ranks of the node share the quota. They share the cores too, unless a scheduler gave each task its own cores.

    RequestError: OMP_NUM_THREADS is not a whole number from 1 to 65,535.
    """
    name = "OMP_NUM_THREADS"
    if first := environ.get(name, "").partition(",")[0].strip():  # It may list one count per nesting level.
        asked = whole_number({name: first}, name, 1, 65_535)
        return CpuShare(asked, cpus.allowed, cpus.quota, f"{name}={environ[name]}")
    sharing = ranks if len(cpus.allowed) < cpus.machine else ranks_on_node
    threads = len(cpus.allowed) // sharing
    if cpus.quota is not None:
        threads = min(threads, int(cpus.quota / ranks_on_node))
    among = f", for {sharing} ranks" if sharing > 1 else ""
    return CpuShare(max(1, threads), cpus.allowed, cpus.quota, f"{cpus}{among}")


def cpus_near(pci_address: str, root: Path = Path("/")) -> set[int]:
    """Return the CPUs of the NUMA node of a PCI device (such as "0000:dc:00.0"); empty if the node is unknown."""
    node = number_in(root / f"sys/bus/pci/devices/{pci_address}/numa_node")
    if node is None or node < 0:  # -1: the machine has one node, or its firmware names none.
        return set()
    with suppress(OSError, ValueError):
        ranges = (root / f"sys/devices/system/node/node{node}/cpulist").read_text().strip().split(",")
        ends = [[int(end) for end in own.split("-")] for own in ranges]
        return {cpu for own in ends for cpu in range(own[0], own[-1] + 1)}
    return set()


def stay_on(cpus: Iterable[int], threads: int) -> tuple[int, ...] | None:
    """Bind every thread of this process to the CPUs in `cpus` that the process may use, and return these CPUs.

    If these CPUs are fewer than `threads`, or are all that the process may use, change nothing and return None.
    """
    allowed = os.sched_getaffinity(0)
    near = allowed & set(cpus)
    if len(near) < threads or near == allowed:
        return None
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # The thread has ended.
            os.sched_setaffinity(int(thread), near)
    return tuple(sorted(near))
