"""Does the test cluster itself work: hosts on a network, the Slurm that users know, power cuts, a clean end."""

import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm.conftest import CLUSTER, REPOSITORY, Slurm, running_cluster, wait_for

CONNECT = "import socket; socket.create_connection(('{}', 29500), timeout=2)"


def lines(text: str) -> list[str]:
    return sorted(text.splitlines())


# Hosts


def test_nodes_reach_each_other_both_ways(slurm: Slurm) -> None:
    task = Path(__file__).with_name("exchange_names.py")
    done = slurm.srun("-N2", "-n2", sys.executable, str(task))
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout) == ["n1 heard n2 from 10.89.77.2", "n2 heard n1 from 10.89.77.1"]


def test_hosts_share_files_but_not_processes_or_shared_memory(slurm: Slurm) -> None:
    look = f"touch /dev/shm/$(hostname); ls /dev/shm; test -e {CLUSTER} && tr '\\0' ' ' < /proc/1/cmdline; echo"
    seen = slurm.srun("-N2", "--label", "sh", "-c", look).stdout
    assert re.findall(r"\d: (n\d)$", seen, re.MULTILINE) in (["n1", "n2"], ["n2", "n1"])
    assert re.findall(r"_be (n\d)", seen) in (["n1", "n2"], ["n2", "n1"])


def test_checkout_and_virtual_environment_are_at_the_same_path(slurm: Slurm) -> None:
    ask = "import noether, sys; print(noether.__file__, sys.prefix)"
    done = slurm.srun("-wn2", "--chdir=/", sys.executable, "-c", ask)
    assert done.stdout.split() == [str(REPOSITORY / "noether" / "__init__.py"), sys.prefix], done.stderr


@pytest.mark.slow
def test_unplugged_node_runs_on_out_of_reach(slurm: Slurm, tmp_path: Path) -> None:
    ticks = tmp_path / "ticks"
    ticks.touch()
    slurm.submit(f"while sleep 0.1; do date >> {ticks}; done", "-N1", "-wn4")
    wait_for("the job ticks", lambda: ticks.stat().st_size)
    ping = (sys.executable, "-c", CONNECT.format("n4"))
    slurm.unplug("n4")
    assert "unplugged" in slurm.cluster("status").stdout
    before = ticks.stat().st_size
    unplugged = slurm.on("n1", *ping)
    assert "timed out" in unplugged.stderr or "No route" in unplugged.stderr
    assert ticks.stat().st_size > before
    slurm.plug("n4")
    assert "unplugged" not in slurm.cluster("status").stdout
    # Refused by n4 itself, where nothing listens; n1 may for seconds remember that there was no route.
    wait_for("n4 is in reach", lambda: "refused" in slurm.on("n1", *ping).stderr, 10)
    assert slurm.srun("-wn4", "hostname").stdout == "n4\n"


# The end


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
