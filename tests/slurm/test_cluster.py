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


def test_srun_reaches_two_hosts(slurm: Slurm) -> None:
    assert lines(slurm.srun("-N2", "hostname").stdout) == ["n1", "n2"]


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


# Launch shapes and devices

VARIABLES = ("PROCID", "LOCALID", "NODEID", "NTASKS", "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE", "STEP_NODELIST")


@pytest.mark.parametrize(
    ("options", "places", "per_node"),
    [
        pytest.param(["--ntasks-per-node=2"], ["0 0 0", "1 1 0", "2 0 1", "3 1 1"], "2(x2)", id="2x2"),
        pytest.param(["--ntasks-per-node=2", "-mcyclic"], ["0 0 0", "1 0 1", "2 1 0", "3 1 1"], "2(x2)", id="cyclic"),
        pytest.param(["-n4", "-mblock"], ["0 0 0", "1 1 0", "2 2 0", "3 0 1"], "3,1", id="uneven"),
    ],
)
def test_tasks_see_their_places(slurm: Slurm, options: Sequence[str], places: Sequence[str], per_node: str) -> None:
    print_variables = "echo " + " ".join(f"$SLURM_{name}" for name in VARIABLES)
    done = slurm.srun("-N2", *options, "sh", "-c", print_variables)
    assert lines(done.stdout) == [f"{place} 4 4 {per_node} n[1-2]" for place in places], done.stderr


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        pytest.param(["--gpus-per-node=4"], ["0,1,2,3"] * 2, id="whole-nodes"),
        pytest.param(["--gpus-per-node=2"], ["0,1"] * 2, id="two-a-node"),
        pytest.param(["--gres=gpu:1"], ["0"] * 2, id="gres"),
        pytest.param(["--ntasks-per-node=2", "--gpus-per-task=1"], ["0", "0", "1", "1"], id="one-a-task"),
        pytest.param([], ["unset"] * 2, id="none-asked"),
    ],
)
def test_gpus_set_cuda_visible_devices(slurm: Slurm, options: Sequence[str], seen: Sequence[str]) -> None:
    done = slurm.srun("-N2", *options, "sh", "-c", "echo ${CUDA_VISIBLE_DEVICES-unset}")
    assert lines(done.stdout) == seen, done.stderr


# Jobs


@pytest.mark.parametrize(
    ("script", "state", "code"),
    [
        pytest.param("srun -N2 hostname", "COMPLETED", 0, id="success"),
        pytest.param("exit 3", "FAILED", 3, id="script-fails"),
        pytest.param("srun -n2 sh -c 'exit $((SLURM_PROCID * 7))'", "FAILED", 7, id="one-rank-fails"),
        pytest.param("srun -n1 false; true", "COMPLETED", 0, id="srun-code-not-kept"),
    ],
)
def test_batch_job_ends_with_its_exit_code(slurm: Slurm, script: str, state: str, code: int) -> None:
    job = slurm.submit(script, "-N2")
    assert slurm.wait(job) == state, slurm.output(job)
    assert slurm.exit_code(job) == code


def test_scancel_delivers_sigterm_to_every_rank(slurm: Slurm) -> None:
    # The signal reaches the shell's child too, perhaps first: a shell that waits for one child alone then ends at once.
    rank = "trap 'echo $(hostname) stops; exit 0' TERM; echo $(hostname) waits; while :; do sleep 1; done"
    job = slurm.submit(f'srun bash -c "{rank}"'.replace("$(", "\\$("), "-N2")
    for node in ("n1", "n2"):
        slurm.wait_for_output(job, f"{node} waits")
    slurm.run("scancel", str(job))
    assert slurm.wait(job) == "CANCELLED"
    for node in ("n1", "n2"):  # What the last node says may arrive after the job has ended.
        slurm.wait_for_output(job, f"{node} stops")


@pytest.mark.slow
def test_preempted_and_requeued_jobs_run_again_with_a_restart_count(slurm: Slurm) -> None:
    # One test, for Slurm lets a requeued job wait for seconds: both wait at the same time.
    script = "echo attempt ${SLURM_RESTART_COUNT-first}; [ ${SLURM_RESTART_COUNT-0} = 1 ] || sleep 60"
    preempted = slurm.submit(script, "-plow", "-N2", "-wn[1-2]", "--exclusive", "--open-mode=append")
    requeued = slurm.submit(script, "-pmain", "-N1", "-wn3", "--open-mode=append")
    for job in (preempted, requeued):
        slurm.wait_for_output(job, "attempt first")
    urgent = slurm.submit("hostname", "-phigh", "-N1", "-wn2")
    slurm.run("scontrol", "requeue", str(requeued))
    assert slurm.wait(urgent, limit_s=15) == "COMPLETED"
    assert slurm.output(urgent) == "n2\n"
    for job in (preempted, requeued):
        assert slurm.wait(job) == "COMPLETED"
        assert [line for line in slurm.output(job).splitlines() if "attempt" in line] == ["attempt first", "attempt 1"]
    assert "DUE TO PREEMPTION" in slurm.output(preempted)
    assert "DUE TO PREEMPTION" not in slurm.output(requeued)


# Power and cables


@pytest.mark.nightly
def test_job_of_a_killed_node_runs_again_elsewhere_and_the_node_comes_back(slurm: Slurm) -> None:
    script = 'echo attempt ${SLURM_RESTART_COUNT-0} on $(hostname); [ -n "$SLURM_RESTART_COUNT" ] || sleep 120'
    job = slurm.submit(script, "-N1", "--exclude=n1,n2", "--open-mode=append")
    slurm.wait_for_output(job, "attempt 0 on n3")
    slurm.kill_node("n3")
    assert slurm.on("n3", "true").returncode != 0
    wait_for("n3 is down", lambda: slurm.node_state("n3") == "down*", 60, lambda: slurm.log)
    assert slurm.wait(job) == "COMPLETED"
    assert "attempt 1 on n4" in slurm.output(job)
    slurm.boot_node("n3")
    assert slurm.srun("-w", "n3", "hostname").stdout == "n3\n"


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


def test_settings_reach_slurm() -> None:
    with running_cluster(nodes=1, cpus=3, gpus=2, kill_wait=7, slurmd_timeout=20, grace_time=9, life=60) as other:
        shown = other.run("scontrol", "show", "config") + other.run("scontrol", "show", "partition", "low")
        shown += other.run("scontrol", "show", "node")
    for words in (r"KillWait +=  ?7 sec", r"SlurmdTimeout +=  ?20 sec", "GraceTime=9", "CPUTot=3", "Gres=gpu:2"):
        assert re.search(words, shown), words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["on", "n9", "--", "true"], "no host 'n9'", id="unknown-host"),
        pytest.param(["up"], "a cluster is running", id="up-twice"),
        pytest.param(["boot", "n1"], "n1 is on", id="boot-twice"),
        pytest.param(["run", "--"], "no command given", id="no-command"),
        pytest.param(["kill", "login"], "no node 'login'", id="no-node"),
    ],
)
def test_mistakes_are_told(slurm: Slurm, arguments: Sequence[str], words: str) -> None:
    done = slurm.cluster(*arguments)
    assert done.returncode == 1
    assert words in done.stderr
