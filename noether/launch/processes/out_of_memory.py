"""Finds out whether the kernel killed a process for lack of memory, which limit it reached, and how to raise it."""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from noether.common.cpus import number_in, own_groups
from noether.common.errors import MidRunError
from noether.common.numbers import size_text

# Each pair names a file of cgroup v2, then the corresponding file of cgroup v1.
COUNTS, LIMITS, PEAKS = (
    ("memory.events", "memory.oom_control"),
    ("memory.max", "memory.limit_in_bytes"),
    ("memory.peak", "memory.max_usage_in_bytes"),
)
NO_LIMIT = 1 << 60
"""A limit above this (bytes) means that there is no limit: in this case cgroup v1 reports a huge number."""


def killed_for_memory(root: Path = Path("/")) -> int:
    """Return how many processes the kernel has killed for lack of memory, summed over this process's cgroups and host.

    The host's count includes cgroups that this process cannot see. Callers only check whether the sum rises.
    """
    files = {group / name for group in own_groups("memory", root) for name in COUNTS}
    return sum(_field(file, "oom_kill") or 0 for file in (*files, root / "proc/vmstat"))


def _field(file: Path, name: str) -> int | None:
    with suppress(OSError, ValueError):
        fields = dict(line.split(maxsplit=1) for line in file.read_text().splitlines())
        return int(fields[name].split()[0]) if name in fields else None
    return None


def no_memory_left(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> MidRunError:
    """Return the error for a process that was killed for lack of memory; it names the limit and how to raise it."""
    found = ((number_in(group / name), group / name) for group in own_groups("memory", root) for name in LIMITS)
    limit, file = min(((most, path) for most, path in found if most and most < NO_LIMIT), default=(0, Path()))
    total = _field(root / "proc/meminfo", "MemTotal:")
    seen = f"no limit other than the memory of this machine, {size_text(1024 * (total or 0))}"
    fix = "num_workers=0, or a smaller trainer.max_batch_size      (or a machine with more memory)"
    if limit:
        peak = next((used for name in PEAKS if (used := number_in(file.with_name(name)))), None)
        seen = f"a limit of {size_text(limit)} ({file})" + (f", of which {size_text(peak)} were used" if peak else "")
        more = math.ceil(1.5 * limit / 2**30)
        by_slurm, by_pod = f"slurm.mem_gb={more}      (sbatch --mem={more}G)", f"resources.limits.memory: {more}Gi"
        in_pod, in_job = "KUBERNETES_SERVICE_HOST" in environ, "SLURM_JOB_ID" in environ
        fix = (
            by_slurm if in_job else by_pod if in_pod else f"docker run --memory={more}g …      (or systemd's MemoryMax)"
        )
        fix += "\nor use less memory: num_workers=0, or a smaller trainer.max_batch_size"
    if line := _kernel_line(root):
        seen += f"\n{line}"
    return MidRunError(
        "killed-for-memory",
        "the kernel has killed a process because no memory was left",
        seen=seen,
        expected="memory for the ranks of this host and their loader workers",
        fix=fix,
    )


def _kernel_line(root: Path) -> str:
    """Return the kernel log's line about the last process that was killed for lack of memory, or "" if it has none."""
    last = ""
    with suppress(OSError), open(os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as log:
        while record := log.read(8192):  # At the end of the log, the read returns nothing, without waiting.
            if b"Killed process" in record:
                last = record.decode(errors="replace").partition(";")[2].partition("\n")[0]
    return last[:200]
