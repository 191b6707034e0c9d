"""How many CPUs this process may use."""

import os


def usable_cpus() -> int:
    """Return how many cores this process may run on (its affinity, which schedulers and cpusets set)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
