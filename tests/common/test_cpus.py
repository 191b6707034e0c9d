"""The number of CPUs that a process may use, and the number of threads for each rank."""

import os
import threading
from pathlib import Path

import pytest
from processes import lay

from noether.common.cpus import UsableCpus, cpu_quota, cpus_near, read_cpus, share_cpus, stay_on

V2, V1 = "0::/kubepods/pod7/c1\n", "2:cpuacct:/docker/c1\n1:cpu:/docker/c1\n0::/\n"
JOINED = "4:cpu,cpuacct:/job\n"
FOLDER = "kubepods/pod7/c1"


@pytest.mark.parametrize(
    ("cgroups", "files", "quota"),
    [
        pytest.param(V2, {f"{FOLDER}/cpu.max": "50000 100000\n"}, 0.5, id="v2: docker run --cpus 0.5"),
        pytest.param(V2, {f"{FOLDER}/cpu.max": "max 100000\n"}, None, id="v2: no limit"),
        pytest.param(V2, {"cpu.max": "400000 100000\n"}, 4.0, id="v2: a container sees its own group at the root"),
        pytest.param(V2, {f"{FOLDER}/cpu.max": "400000 100000\n", "kubepods/pod7/cpu.max": "150000 100000\n"}, 1.5,
            id="v2: the pod's limit below its container's"),
        pytest.param(V1, {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0,
            id="v1: a container sees its own group at the root"),
        pytest.param(V1, {"cpu/docker/c1/cpu.cfs_quota_us": "-1\n", "cpu/docker/c1/cpu.cfs_period_us": "100000\n"},
            None, id="v1: no limit"),
        pytest.param(JOINED,
            {"cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n", "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n"}, 0.5,
            id="v1: controllers mounted together"),
        pytest.param(V2, {f"{FOLDER}/cpu.max": "much\n"}, None, id="v2: not what the kernel writes"),
        pytest.param("", {"cpu.max": "100000 100000\n"}, None, id="no cgroups"),
    ],
)  # fmt: skip
def test_cgroups(cgroups: str, files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    lay(tmp_path, {"proc/self/cgroup": cgroups, **{f"sys/fs/cgroup/{name}": files[name] for name in files}})
    assert cpu_quota(tmp_path) == quota


def cpus(allowed: int, machine: int = 0, quota: float | None = None) -> UsableCpus:
    return UsableCpus(tuple(range(allowed)), machine or allowed, quota)


@pytest.mark.parametrize(
    ("here", "environ", "ranks", "threads"),
    [
        pytest.param(cpus(2), {}, (1, 1), 2, id="all cores"),
        pytest.param(cpus(7), {}, (2, 2), 3, id="ranks of one launcher share"),
        pytest.param(cpus(8), {}, (1, 4), 2, id="tasks of a scheduler that all see the machine"),
        pytest.param(cpus(8, 64), {}, (1, 4), 8, id="tasks with cores of their own are not divided twice"),
        pytest.param(cpus(128, quota=4.0), {}, (1, 1), 4, id="limits.cpu: 4 on a node of 128 cores"),
        pytest.param(cpus(8, quota=2.9), {}, (1, 1), 2, id="a third thread would wait"),
        pytest.param(cpus(8, 64, quota=8.0), {}, (1, 4), 2, id="tasks share the quota of their container"),
        pytest.param(cpus(4, quota=16.0), {}, (1, 1), 4, id="a quota above the cores"),
        pytest.param(cpus(16), {"OMP_NUM_THREADS": "3"}, (2, 2), 3, id="OMP_NUM_THREADS"),
        pytest.param(cpus(16), {"OMP_NUM_THREADS": " "}, (2, 2), 8, id="not set"),
    ],
)
def test_threads(here: UsableCpus, environ: dict[str, str], ranks: tuple[int, int], threads: int) -> None:
    share = share_cpus(here, environ, *ranks)
    assert (share.threads, share.cpus, share.quota) == (threads, here.allowed, here.quota)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity here")
def test_affinity_counts_not_the_machine() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert read_cpus().allowed == (min(before),)
        assert read_cpus().count == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("node", "cpus"),
    [
        pytest.param("1\n", {32, 33, 34, 96, 97}, id="two ranges"),
        pytest.param("-1\n", set(), id="the firmware does not tell"),
        pytest.param("7\n", set(), id="a node that is not there"),
    ],
)
def test_the_cpus_near_a_gpu(node: str, cpus: set[int], tmp_path: Path) -> None:
    cpulist = {"sys/devices/system/node/node1/cpulist": "32-34,96-97\n"}
    lay(tmp_path, {"sys/bus/pci/devices/0000:dc:00.0/numa_node": node, **cpulist})
    assert cpus_near("0000:dc:00.0", tmp_path) == cpus
    assert cpus_near("0000:01:00.0", tmp_path) == set()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_every_thread_of_a_process_stays_on_the_cpus_of_its_gpu() -> None:
    allowed = os.sched_getaffinity(0)
    near = min(allowed)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert stay_on(allowed, 1) is stay_on({near}, 2) is stay_on({1 << 20}, 1) is None
    try:
        assert stay_on({near, 1 << 20}, 1) == (near,)
        assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id or 0) == {near}
    finally:
        for own in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(own), allowed)
        done.set()
        thread.join()
