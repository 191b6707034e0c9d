"""Placement without a scheduler: on a single machine, and on several machines that are given rank 0's address."""

import dataclasses

import pytest
from placing import check_one_world, place

from noether.common.cpus import UsableCpus, share_cpus
from noether.launch.detect.local import local_endpoint, local_placement
from noether.launch.detect.placement import Device, DeviceInventory, LaunchContext, LaunchRequest, Placement
from noether.launch.detect.resolve import resolve_placement
from noether.launch.processes.context import RunInfo, WorkerContext
from noether.launch.processes.listener import RunPorts
from noether.launch.processes.spawner import worker_contexts
from noether.launch.processes.worker import worker_environment

CUDA_4 = DeviceInventory(
    "cuda",
    tuple(Device("cuda", i, name) for i, name in enumerate(["2", "3", "5", "7"])),
    "CUDA_VISIBLE_DEVICES=2,3,5,7",
    UsableCpus(tuple(range(16)), 16),
)
CPU_2 = DeviceInventory("cpu", (Device("cpu"),), "2 usable cores", UsableCpus((0, 1), 2))


def placed(inventory: DeviceInventory, devices: str | None = None, **environ: str) -> Placement:
    return local_placement(LaunchRequest(devices=devices), LaunchContext(environ, inventory, "box"))


def test_a_quota_is_said_of_workers_and_threads_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: with a quota of 2 CPUs, the line on workers gave 2 usable cores, and the line on threads gave 8."""
    monkeypatch.setattr("noether.launch.detect.devices.read_cpus", lambda: UsableCpus(tuple(range(8)), 8, 2.0))
    reasons = resolve_placement(LaunchRequest("cpu"), {}, "box").reasons
    for said in (reasons["workers"], reasons["threads"]):
        assert "8 usable cores, a quota of 2" in said


@pytest.mark.parametrize(
    ("inventory", "devices", "on", "reason"),
    [
        pytest.param(CUDA_4, "0,1", ["cuda:0", "cuda:1"],
            "2 of 4 visible devices chosen by devices=0,1 (CUDA_VISIBLE_DEVICES=2,3,5,7)", id="a choice within a mask"),
        pytest.param(CUDA_4, None, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"],
            "all 4 visible devices (CUDA_VISIBLE_DEVICES=2,3,5,7)", id="every visible device"),
        pytest.param(CPU_2, None, ["cpu"], "1 CPU worker (2 usable cores)", id="the CPU"),
        pytest.param(CPU_2, "2", ["cpu", "cpu"], "devices=2: 2 CPU workers (2 usable cores)", id="two on a CPU"),
    ],
)  # fmt: skip
def test_workers_and_their_reason(inventory: DeviceInventory, devices: str | None, on: list[str], reason: str) -> None:
    placement = placed(inventory, devices)
    assert [str(worker.device) for worker in placement.workers] == on
    assert [worker.rank for worker in placement.workers] == list(range(len(on)))
    assert all(worker.local_rank == worker.rank and worker.node_rank == 0 for worker in placement.workers)
    assert placement.world_size == placement.local_world_size == len(on)
    assert placement.nodes == ("box",)
    assert placement.host == "box"
    assert reason in placement.reasons["workers"]


def test_every_field_has_its_reason() -> None:
    fields = {field.name for field in dataclasses.fields(Placement)} - {"reasons", "warnings", "cpus"}
    reasons = placed(CUDA_4).reasons
    assert set(reasons) == fields
    assert all(reasons.values())


@pytest.mark.parametrize(("devices", "warned"), [(None, False), ("2", False), ("3", True), ("4", True)], ids=str)
def test_more_cpu_workers_than_cores_are_warned_of(devices: str | None, warned: bool) -> None:
    warnings = placed(CPU_2, devices).warnings
    assert bool(warnings) == warned
    assert all("2 cores" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("master_port", "environ", "port", "asked_by"),
    [
        pytest.param(None, {}, 0, "", id="a port that is bound and held"),
        pytest.param(29500, {}, 29500, "master_port", id="the setting"),
        pytest.param(None, {"MASTER_PORT": "29501"}, 29501, "MASTER_PORT", id="the environment"),
        pytest.param(29500, {"MASTER_PORT": "29500"}, 29500, "master_port", id="both, the same"),
        pytest.param(None, {"MASTER_PORT": ""}, 0, "", id="set to nothing"),
        pytest.param(None, {"MASTER_ADDR": "node7"}, 0, "", id="another machine's address is not needed"),
    ],
)
def test_endpoint(master_port: int | None, environ: dict[str, str], port: int, asked_by: str) -> None:
    endpoint, reason = local_endpoint(master_port, environ)
    assert (endpoint.host, endpoint.port, endpoint.asked_by) == ("127.0.0.1", port, asked_by)
    assert (f"{asked_by}={port}" if asked_by else "this process reserves a free port") in reason


def contexts(environ: dict[str, str]) -> list[WorkerContext]:
    share = share_cpus(UsableCpus(tuple(range(16)), 16), environ, 2, 2)
    return worker_contexts(dataclasses.replace(placed(CUDA_4, "2,3"), cpus=share), RunPorts(), RunInfo())


@pytest.mark.parametrize(
    ("environ", "threads", "omp"),
    [
        pytest.param({}, 8, "8", id="a fair share"),
        pytest.param({"OMP_NUM_THREADS": "3"}, 3, "3", id="the user's number"),
        pytest.param({"OMP_NUM_THREADS": "3,2"}, 3, "3,2", id="the user's list"),
    ],
)
def test_threads_and_omp_num_threads(environ: dict[str, str], threads: int, omp: str) -> None:
    for context in contexts(environ):
        assert context.threads == threads
        assert worker_environment(context, environ)["OMP_NUM_THREADS"] == omp


def place_on_nodes(host: str, gpus: bool = False, environ: dict | None = None, **settings: object) -> Placement:
    return place(environ or {}, LaunchRequest(**settings), gpus, host)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "devices", "gpus", "each"),
    [
        pytest.param(2, None, False, 1, id="one CPU worker each"),
        pytest.param(2, "2", False, 2, id="devices=2 on CPUs"),
        pytest.param(3, None, True, 4, id="every GPU of three machines"),
    ],
)
def test_every_machine_has_as_many(nodes: int, devices: str | None, gpus: bool, each: int) -> None:
    common = {"nodes": nodes, "master_addr": "host0", "devices": devices}
    placements = [place_on_nodes(f"host{rank}", gpus, node_rank=rank, **common) for rank in range(nodes)]
    for rank, placement in enumerate(placements):
        assert placement.launcher == "multinode"
        assert placement.world_size == nodes * each
        assert [worker.rank for worker in placement.workers] == list(range(rank * each, (rank + 1) * each))
        assert (placement.host, placement.nodes[0]) == (f"host{rank}", "host0")
        assert (placement.endpoint.host, placement.endpoint.port) == ("host0", 29500)
        assert "presumably" in placement.reasons["workers"]
    assert sorted(w.rank for p in placements for w in p.workers) == list(range(nodes * each))


def test_machines_that_nobody_names_have_a_number() -> None:
    assert place_on_nodes("b", nodes=3, node_rank=1, master_addr="a").nodes == ("a", "b", "(node 2)")


def test_two_nodes_on_one_machine_are_warned_of() -> None:
    placements = [place_on_nodes("box", nodes=2, node_rank=rank, master_addr="127.0.0.1") for rank in range(2)]
    assert all("this works only with all 2 nodes here" in placement.warnings[0] for placement in placements)
    assert [placement.workers[0].rank for placement in placements] == [0, 1]


@pytest.mark.parametrize(("environ", "settings"), [({"MASTER_PORT": "29501"}, {}), ({}, {"master_port": 29501})])
def test_ports(environ: dict[str, str], settings: dict) -> None:
    endpoint = place_on_nodes("b", environ=environ, nodes=2, node_rank=1, master_addr="a", **settings).endpoint
    assert (endpoint.port, bool(endpoint.asked_by)) == (29501, True)


def test_the_master_is_told_by_its_variable() -> None:
    placement = place_on_nodes("b", environ={"MASTER_ADDR": "a"}, nodes=2, node_rank=1)
    assert (placement.endpoint.host, placement.reasons["endpoint"]) == ("a", "MASTER_ADDR=a; port 29500, the default")


def test_one_node_is_the_local_case() -> None:
    placements = [place_on_nodes("box", nodes=1), place_on_nodes("box", nodes=1, node_rank=0, master_addr="box")]
    check_one_world(placements[:1])
    assert [placement.launcher for placement in placements] == ["local", "local"]
