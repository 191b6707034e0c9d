"""The test cluster ends cleanly: nothing of it stays, and the machine is left alone."""

import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm.conftest import Slurm, running_cluster, wait_for


def lines(text: str) -> list[str]:
    return sorted(text.splitlines())


def machine() -> dict[str, object]:
    """Return what a cluster must leave alone: the machine's links, mounts, host name and files of the network.

    Less what a container engine has, which other tests use at the same time.
    """
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    etc = [*Path("/etc/slurm").glob("*.conf"), *map(Path, ("/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf"))]
    return {
        "links": sorted(name for _, name in socket.if_nameindex() if not re.match(r"docker|br-|veth", name)),
        "mounts": [line for line in mounts if line.split()[4].startswith(("/etc", "/run", "/dev", "/proc", "/sys"))],
        "name": socket.gethostname(),
        "etc": {path: path.read_bytes() for path in etc if path.exists()},
    }


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


@pytest.mark.nightly
def test_cluster_beside_another_leaves_no_process_no_mount_and_the_machine_alone(slurm: Slurm) -> None:
    before = machine()
    with running_cluster(nodes=2, cpus=2, gpus=0, life=120) as other:
        pids = host_pids(other)
        spaces = namespaces(pids)
        assert len(pids) == 3
        assert len(spaces) == 3 * 5
        assert machine() == before
        assert lines(other.srun("-N2", "hostname").stdout) == ["n1", "n2"]
        # A job that has left its session, and whoever waits for it, must not outlive the cluster either.
        other.submit("setsid sleep 300 & sleep 300", "-N1")
        wait_for("the job runs", lambda: any("sleep" in line for line in leftovers(other.folder, spaces)))
    assert not other.folder.exists()
    wait_for("nothing is left", lambda: not leftovers(other.folder, spaces), 5)
    assert machine() == before
    assert lines(slurm.srun("-N2", "hostname").stdout) == ["n1", "n2"]


@pytest.mark.slow
def test_hosts_end_by_themselves_when_their_life_is_over() -> None:
    with running_cluster(nodes=1, life=6) as short:
        spaces = namespaces(host_pids(short))
        assert len(spaces) == 2 * 5
        wait_for("the hosts end", lambda: not leftovers(short.folder, spaces), 10)
        assert "pid" not in short.cluster("status").stdout
