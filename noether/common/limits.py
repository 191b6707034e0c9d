"""The limits of descriptors and processes that the system sets this process: raised, and held against a world."""

import contextlib
import resource
from dataclasses import dataclass

MOST_DESCRIPTORS = 1 << 20
"""Some programs close every number up to the limit when they start: a limit of billions would keep them busy."""

OWN_DESCRIPTORS = 96
"""What a rank has open beside its connections to other ranks: files, logs, libraries, loaders."""


@dataclass(frozen=True)
class Limits:
    """How many descriptors a process may open and how many processes its user may have; None: no limit is known."""

    descriptors: int | None
    processes: int | None


def raise_limits() -> None:
    """Raises the soft limits of descriptors and processes to the hard ones; processes started later inherit them."""
    for name, most in ((resource.RLIMIT_NOFILE, MOST_DESCRIPTORS), (resource.RLIMIT_NPROC, None)):
        soft, hard = resource.getrlimit(name)
        wanted = hard if most is None or 0 <= hard <= most else most
        if soft != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or soft < wanted):
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(name, (wanted, hard))


def read_limits() -> Limits:
    """Returns the hard limits: those that `raise_limits` goes up to."""
    hard = [resource.getrlimit(name)[1] for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)]
    return Limits(*(None if limit == resource.RLIM_INFINITY else limit for limit in hard))


def descriptors_of_a_rank(world_size: int, device_kind: str) -> int:
    """Returns how many descriptors rank 0, which needs the most, opens in a world of so many ranks.

    Gloo connects every rank to every other; on GPUs NCCL connects neighbours only. Rank 0's store has a connection of
    each rank.
    """
    mesh = world_size - 1 if device_kind == "cpu" else 0
    return OWN_DESCRIPTORS + world_size + mesh


def why_too_large(world_size: int, local_world_size: int, device_kind: str, limits: Limits) -> list[str]:
    """Returns a line for each limit of this host that is too low for a world of ranks; an empty list where it fits."""
    lines = []
    needed = descriptors_of_a_rank(world_size, device_kind)
    if limits.descriptors is not None and needed > limits.descriptors:
        lines.append(
            f"{world_size} ranks need about {needed} open files in one process, and the limit here is "
            f"{limits.descriptors} (ulimit -Hn): raise it (limits.conf, docker run --ulimit nofile=65536)"
        )
    if limits.processes is not None and 8 * local_world_size > limits.processes:
        lines.append(
            f"{local_world_size} ranks on one host need about {8 * local_world_size} processes and threads, and the "
            f"limit here is {limits.processes} (ulimit -Hu): raise it (limits.conf)"
        )
    return lines
