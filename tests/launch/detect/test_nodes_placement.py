"""Several machines and no scheduler: nodes, node_rank and master_addr, together or not at all."""

import placing
import pytest
from slurm_steps import check_one_world

from noether.launch.detect.placement import LaunchRequest, Placement


def place(host: str, gpus: bool = False, environ: dict[str, str] | None = None, **settings: object) -> Placement:
    return placing.place(environ or {}, LaunchRequest(**settings), gpus, host)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "devices", "gpus", "each"),
    [
        pytest.param(2, None, False, 1, id="one CPU worker each"),
        pytest.param(2, "2", False, 2, id="devices=2 on CPUs"),
        pytest.param(3, None, True, 4, id="every GPU of three machines"),
    ],
)
def test_every_machine_has_as_many(nodes: int, devices: str | None, gpus: bool, each: int) -> None:
    placements = [
        place(f"host{rank}", gpus, nodes=nodes, node_rank=rank, master_addr="host0", devices=devices)
        for rank in range(nodes)
    ]
    for rank, placement in enumerate(placements):
        assert placement.launcher == "multinode"
        assert placement.world_size == nodes * each
        assert [worker.rank for worker in placement.workers] == list(range(rank * each, (rank + 1) * each))
        assert (placement.host, placement.nodes[0]) == (f"host{rank}", "host0")
        assert (placement.endpoint.host, placement.endpoint.port) == ("host0", 29500)
        assert "presumably" in placement.reasons["workers"]
    assert sorted(w.rank for p in placements for w in p.workers) == list(range(nodes * each))


def test_machines_that_nobody_names_have_a_number() -> None:
    assert place("b", nodes=3, node_rank=1, master_addr="a").nodes == ("a", "b", "(node 2)")


def test_two_nodes_on_one_machine_are_warned_of() -> None:
    placements = [place("box", nodes=2, node_rank=rank, master_addr="127.0.0.1") for rank in range(2)]
    assert all("this works only with all 2 nodes here" in placement.warnings[0] for placement in placements)
    assert [placement.workers[0].rank for placement in placements] == [0, 1]


@pytest.mark.parametrize(
    ("environ", "master_port", "port"), [({"MASTER_PORT": "29501"}, None, 29501), ({}, 29502, 29502)]
)
def test_ports(environ: dict[str, str], master_port: int | None, port: int) -> None:
    placement = place("b", environ=environ, nodes=2, node_rank=1, master_addr="a", master_port=master_port)
    assert placement.endpoint.port == port
    assert placement.endpoint.asked_by


def test_the_master_is_told_by_its_variable() -> None:
    placement = place("b", environ={"MASTER_ADDR": "a"}, nodes=2, node_rank=1)
    assert (placement.endpoint.host, placement.reasons["endpoint"]) == ("a", "MASTER_ADDR=a; port 29500, the default")


def test_one_node_is_the_local_case() -> None:
    placements = [place("box", nodes=1), place("box", nodes=1, node_rank=0, master_addr="box")]
    check_one_world(placements[:1])
    assert [placement.launcher for placement in placements] == ["local", "local"]
