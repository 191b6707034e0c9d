"""Placement in a pod of Kubernetes' Indexed Job: the pod's index, the number of pods, and rank 0's address."""

import placing
import pytest
from refusal import refusal_with

from noether.launch.detect.placement import LaunchRequest, Placement
from noether.launch.detect.process_facts import ProcessFacts, full_name

LOCALHOST = {"environ": {"MASTER_ADDR": "localhost"}}  # Other launchers set this value.
DOMAIN = "cars.team.svc.cluster.local"


def place(index: object, *, host="", name=None, gpus=False, environ=None, **settings: object) -> Placement:
    host = host or f"cars-{index}"
    facts = ProcessFacts(full_name=f"{host}.{DOMAIN}" if name is None else name)
    environ = {"JOB_COMPLETION_INDEX": str(index), **(environ or {})}
    return placing.place(environ, LaunchRequest(**settings), gpus, host, facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(("gpus", "each"), [(False, 1), (True, 4)], ids=["cpu", "four-gpus-a-pod"])
def test_the_pods_of_a_job_are_one_world(gpus: bool, each: int) -> None:
    placements = [place(index, nodes=3, gpus=gpus) for index in range(3)]
    for index, placement in enumerate(placements):
        assert (placement.launcher, placement.world_size, placement.node_rank) == ("kubernetes", 3 * each, index)
        assert (placement.endpoint.host, placement.endpoint.port) == (f"cars-0.{DOMAIN}", 29500)
        assert placement.nodes == ("cars-0", "cars-1", "cars-2")
    assert [worker.rank for p in placements for worker in p.workers] == list(range(3 * each))


@pytest.mark.parametrize(
    ("made", "host", "launcher"),
    [
        pytest.param({"nodes": 2, "name": "", "environ": {"MASTER_ADDR": "cars-0.cars"}}, "cars-0.cars", "kubernetes",
            id="MASTER_ADDR"),
        pytest.param({"nodes": 2, "node_rank": 1}, f"cars-0.{DOMAIN}", "kubernetes", id="a node_rank that agrees"),
        pytest.param({"nodes": 2, "host": f"cars-1.{DOMAIN}", "name": f"cars-1.{DOMAIN}"}, f"cars-0.{DOMAIN}",
            "kubernetes", id="setHostnameAsFQDN"),
        pytest.param({"nodes": 1}, "127.0.0.1", "local", id="each pod a run of its own"),
        pytest.param({"environ": {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "m"}}, "m",
            "torchrun", id="torchrun in pods"),
    ],
)  # fmt: skip
def test_where_rank_0_is(made: dict, host: str, launcher: str) -> None:
    placement = place(1, **made)
    assert (placement.endpoint.host, placement.launcher) == (host, launcher)


def test_who_asked_for_the_port_is_said() -> None:
    assert place(1, nodes=2, environ={"MASTER_PORT": "1234"}).reasons["endpoint"].endswith("; MASTER_PORT=1234")


@pytest.mark.parametrize(
    ("index", "made", "seen", "fix"),
    [
        pytest.param(0, {}, "nodes is not set", "completions: N and parallelism: N", id="how many pods"),
        pytest.param(1, {"nodes": 2, "name": ""}, "without a domain", "subdomain: SERVICE", id="no Service"),
        pytest.param(1, {"nodes": 2, **LOCALHOST}, "MASTER_ADDR=localhost, 2 nodes", "MASTER_ADDR=HOST", id="itself"),
        pytest.param(1, {"nodes": 2, "host": "box"}, "without a domain", "master_addr=ADDRESS", id="another form"),
        pytest.param(2, {"nodes": 2}, "JOB_COMPLETION_INDEX=2", "nodes=3", id="more pods than nodes"),
        pytest.param(1, {"nodes": 2, "node_rank": 0}, "node_rank=0", "leave node_rank out", id="another node_rank"),
    ],
)
def test_a_pod_that_would_train_alone_is_refused(index: object, made: dict, seen: str, fix: str) -> None:
    with refusal_with(seen, fix):
        place(index, **made)


HOSTS = """\
# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
10.244.1.7\tcars-1.cars.team.svc.cluster.local\tcars-1
"""


@pytest.mark.parametrize(
    ("hosts", "host", "name"),
    [
        pytest.param(HOSTS, "cars-1", f"cars-1.{DOMAIN}", id="as kubelet writes it"),
        pytest.param(HOSTS, f"cars-1.{DOMAIN}", f"cars-1.{DOMAIN}", id="setHostnameAsFQDN"),
        pytest.param("10.0.0.1 cars-1\n", "cars-1", "", id="without a subdomain"),
        pytest.param("127.0.1.1 n1.example.org n1 other.example.org\n", "n1", "n1.example.org", id="Debian's own line"),
    ],
)
def test_the_full_name_of_a_host(hosts: str, host: str, name: str) -> None:
    assert full_name(hosts, host) == name
