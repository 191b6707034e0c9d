"""Raise this process's limits on descriptors and processes; check that the limits and /dev/shm suffice for a run."""

import contextlib
import resource
import shutil
from pathlib import Path

from noether.common.cpus import number_in, own_groups
from noether.common.errors import RequestError
from noether.common.numbers import counted

MOST_DESCRIPTORS = 1 << 20
"""The highest limit that is set. Some programs first close every descriptor up to the limit: a huge limit is slow."""

OWN_DESCRIPTORS = 96
"""The descriptors that a rank needs for files, logs, libraries and loaders; connections to other ranks come on top."""


def raise_limits() -> None:
    """Raise the soft limits on descriptors and processes to the hard limits. Child processes inherit the new limits."""
    for name, most in ((resource.RLIMIT_NOFILE, MOST_DESCRIPTORS), (resource.RLIMIT_NPROC, None)):
        soft, hard = resource.getrlimit(name)
        wanted = hard if most is None or 0 <= hard <= most else most
        if soft != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or soft < wanted):
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(name, (wanted, hard))


def read_limits() -> list[int | None]:
    """Return the hard limits on descriptors and processes, in this order; None stands for no limit."""
    hard = [resource.getrlimit(name)[1] for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)]
    return [None if limit == resource.RLIM_INFINITY else limit for limit in hard]


def most_processes(root: Path = Path("/")) -> int | None:
    """Return the maximum number of processes and threads in this process's cgroups (`--pids-limit`); None: no limit."""
    found = (number_in(group / "pids.max") for group in own_groups("pids", root))
    return min((most for most in found if most is not None), default=None)


def refused_processes(root: Path = Path("/")) -> int:
    """Return how many processes and threads this process's cgroups have refused so far."""
    return sum(number_in(group / "pids.events", "max ") or 0 for group in own_groups("pids", root))


def check_processes(ranks: int, most: int | None) -> None:
    """Raise RequestError if this host's ranks need more than `most` processes and threads before their first update.

    On CPUs without loader workers, measurements gave 15 or 16 processes and threads for 2 ranks, and at most 28 for 4.
    """
    if ranks > 1 and most is not None and most < 6 * ranks + 4:
        raise too_few_processes(most)


def too_few_processes(most: int | None) -> RequestError:
    """Return the error for a limit of `most` processes and threads; `most=None`: an unknown limit was reached."""
    return RequestError(
        "too-few-processes", "there are too few processes and threads for the ranks of this host",
        seen=f"this container or service may have {most} of them at a time" if most else "one was refused",
        expected="about 8 processes and threads for each rank, plus those of its loader workers (num_workers)",
        fix="docker run --pids-limit=-1 …      (podman too; in a service of systemd, TasksMax=infinity)",
    )  # fmt: skip


def why_too_large(
    world_size: int, local_world_size: int, device_kind: str, descriptors: int | None, processes: int | None
) -> list[str]:
    """Return a line of text for each limit of this host that is too low for a run of this size (see `read_limits`)."""
    lines = []
    # Rank 0 needs the most descriptors, because each rank connects to its store. On CPUs, gloo connects every rank to
    # every other rank; on GPUs, NCCL connects only neighbours.
    needed = OWN_DESCRIPTORS + world_size + (world_size - 1 if device_kind == "cpu" else 0)
    if descriptors is not None and needed > descriptors:
        lines.append(
            f"{world_size} ranks need about {needed} open files in one process, and the limit here is "
            f"{descriptors} (ulimit -Hn): raise it (limits.conf, docker run --ulimit nofile=65536)"
        )
    if processes is not None and 8 * local_world_size > processes:
        lines.append(
            f"{local_world_size} ranks on one host need about {8 * local_world_size} processes and threads, and the "
            f"limit here is {processes} (ulimit -Hu): raise it (limits.conf)"
        )
    return lines


MEBIBYTE = 2**20
LEAST = 128 * MEBIBYTE
"""The minimum shared memory if there are any loader workers: twice docker's default (64 MiB)."""
PER_READER = 32 * MEBIBYTE
"""The shared memory per loader worker, for two batches (torch's prefetch_factor) of a few MiB each."""


def check_shared_memory(num_workers: int, ranks_here: int, size: int | None) -> None:
    """Raise RequestError if shared memory is so small that loader workers would crash with "Bus error".

    Each of the `ranks_here` ranks has `num_workers` workers. `size`: the size of /dev/shm in bytes; None if unknown.
    """
    readers = num_workers * ranks_here
    need = max(LEAST, readers * PER_READER)
    if not readers or size is None or size >= need:
        return
    roomy = max(1, -(-2 * need // 2**30))
    raise RequestError(
        "shared-memory-too-small", "/dev/shm is too small for loader workers",
        seen=f"{size // MEBIBYTE} MiB of shared memory, {counted(readers, 'loader worker')} on this "
        f"machine (num_workers={num_workers})",
        expected=f"at least {need // MEBIBYTE} MiB: workers pass batches through it, and crash if it is full",
        fix=f"docker run --shm-size={roomy}g …      (or --ipc=host; or num_workers=0, to read without workers)",
    )  # fmt: skip


def shared_memory_size(folder: Path = Path("/dev/shm")) -> int | None:
    """Return the size of /dev/shm in bytes, or None if there is none."""
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None
