"""The test cluster ends cleanly: nothing of it stays, and the machine is left alone."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from launch.slurm.conftest import Slurm, running_cluster, wait_for


def namespaces(pids: Sequence[int]) -> set[str]:
    """Return the namespaces of these processes, less those that this process is in too."""
    kinds = ("net", "uts", "mnt", "pid", "ipc")
    own = {os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}
    return {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in pids for kind in kinds} - own


def leftovers(folder: Path, spaces: set[str]) -> list[str]:
    """Return the processes that are in one of the namespaces, or name or mount the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            within = {os.readlink(path) for path in (process / "ns").iterdir()} & spaces
            text = (process / "cmdline").read_text(errors="replace") + (process / "mountinfo").read_text()
        except OSError:  # It ended while it was looked at, or is more than root may look at.
            continue
        if within or str(folder) in text:
            found.append(f"{process.name} {text[:200]}")
    return found


def host_pids(slurm: Slurm) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)", slurm.cluster("status").stdout)]


@pytest.mark.slow
def test_hosts_end_by_themselves_when_their_life_is_over() -> None:
    with running_cluster(nodes=1, life=6) as short:
        spaces = namespaces(host_pids(short))
        assert len(spaces) == 2 * 5
        wait_for("the hosts end", lambda: not leftovers(short.folder, spaces), 10)
        assert "pid" not in short.cluster("status").stdout
