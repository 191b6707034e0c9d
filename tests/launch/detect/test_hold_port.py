"""Once a port is taken, it is held without a gap; if a port is in use, the run that uses it is named."""

import dataclasses
import socket
from pathlib import Path

import pytest

from noether.common.errors import RequestError
from noether.launch.detect.endpoint import PublishedPort, find_address, hold_port, interface_towards
from noether.launch.detect.identity import RunIdentity, configuration_digest, job_name
from noether.launch.detect.placement import Endpoint
from tests.refusal import refusal


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "node7.cluster"])
def test_trap_9_a_free_port_is_held_from_the_moment_it_is_known(host: str) -> None:
    held = hold_port(Endpoint(host, 0))
    try:
        assert held.endpoint.host == host
        assert held.endpoint.port > 0
        # A rank that connects early waits in the queue, although no connection has been accepted yet.
        with socket.create_connection(("127.0.0.1", held.endpoint.port), timeout=5) as early:
            assert early.getpeername()[1] == held.endpoint.port
        with pytest.raises(RequestError):
            hold_port(held.endpoint)
    finally:
        held.close()


def test_trap_9_a_port_just_used_can_be_held_again() -> None:
    held = hold_port(Endpoint("127.0.0.1", 0))
    client = socket.create_connection(("127.0.0.1", held.endpoint.port), timeout=5)
    server, _ = held.socket.accept()
    server.close()  # The port of the side that closes first stays in TIME_WAIT.
    client.close()
    held.close()
    again = hold_port(held.endpoint)
    assert again.endpoint.port == held.endpoint.port
    again.close()


@pytest.mark.parametrize(
    ("asked_by", "fix"),
    [
        pytest.param("master_port", "master_port=0", id="the setting"),
        pytest.param("MASTER_PORT", "unset MASTER_PORT", id="the environment"),
        pytest.param("", "master_port={next}", id="nobody: every rank worked it out alike"),
    ],
)
def test_trap_9_a_busy_port_is_refused_by_who_asked_for_it(asked_by: str, fix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        endpoint = dataclasses.replace(Endpoint("127.0.0.1", port), asked_by=asked_by)
        with refusal("port-unusable", seen=f"{asked_by}={port}", fix=fix.format(next=port + 1)):
            hold_port(endpoint)


def test_a_port_that_needs_rights_is_refused_with_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate the kernel's refusal, because the tests may run as root, which may use any port."""

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "create_server", denied)
    with refusal("port-unusable", fix="master_port=29500"):
        hold_port(dataclasses.replace(Endpoint("node7", 80), asked_by="master_port"))


BOUND = {"127.0.0.1": "127.0.0.1", "127.0.1.1": "127.0.1.1", "LOCALHOST": "127.0.0.1", "node7": "::, 0.0.0.0"}


@pytest.mark.parametrize("host", BOUND)
def test_a_port_of_the_machine_itself_is_open_to_it_alone(host: str) -> None:
    held = hold_port(Endpoint(host, 0))
    try:
        bound = held.socket.getsockname()[0]
    finally:
        held.close()
    assert bound in BOUND[host].split(", ")


def test_the_loopback_is_reached_by_the_loopback_and_where_no_route_leads_nothing_is_chosen() -> None:
    assert find_address("127.0.0.1") == find_address("localhost") == "127.0.0.1"
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("255.255.255.255") is None


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_an_ipv6_address_is_reached_by_its_interface() -> None:
    assert find_address("::1") == "::1"
    assert interface_towards("::1") == "lo"


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 64 + ".invalid"], ids=["unknown", "no-name-at-all"])
def test_a_name_without_an_address(name: str) -> None:
    with pytest.raises(socket.gaierror):
        find_address(name)


SLURM = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("launcher", "one", "other", "same"),
    [
        pytest.param("slurm", SLURM, SLURM | {"SLURM_PROCID": "3", "SLURM_NODEID": "1"}, True, id="two ranks"),
        pytest.param("slurm", SLURM, SLURM | {"SLURM_STEP_ID": "1"}, False, id="two steps of a job"),
        pytest.param("slurm", SLURM, SLURM | {"SLURM_JOB_ID": "13"}, False, id="two jobs"),
        pytest.param("torchrun", {"TORCHELASTIC_RUN_ID": "a"}, {"TORCHELASTIC_RUN_ID": "b"}, False, id="torchruns"),
        pytest.param("mpi", {"PMIX_NAMESPACE": "a1"}, {"PMIX_NAMESPACE": "a2"}, False, id="two mpiruns"),
        pytest.param("multinode", SLURM, SLURM | {"SLURM_JOB_ID": "13"}, True, id="by hand, from two allocations"),
        pytest.param("multinode", {}, {"HOSTNAME": "b"}, True, id="by hand"),
    ],
)
def test_identities(launcher: str, one: dict[str, str], other: dict[str, str], same: bool) -> None:
    first, second = (RunIdentity(launcher, 4, job=job_name(launcher, environ)) for environ in (one, other))
    assert (first == second) is same
    assert (first.digest == second.digest) is same
    assert RunIdentity.from_text(first.as_text()) == first


def test_ranks_on_different_kinds_of_device_are_of_no_common_run() -> None:
    job = job_name("slurm", SLURM)
    first, second = (RunIdentity("slurm", 4, 0, "c0ffee", kind, job) for kind in ("cuda", "cpu"))
    assert first != second
    assert str(second) == "slurm 12.0, 4 ranks, restart 0, configuration c0ffee, on cpu"
    assert RunIdentity.from_text(first.as_text()) == first


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"seed": 1}, False),
        ({"model": {"dim": 64}}, False),
        ({"dataset_root": "/elsewhere"}, True),
        ({"node_rank": 1, "devices": "0", "run_id": "b", "output_path": "x"}, True),
    ],
    ids=str,
)
def test_settings_that_may_differ_between_hosts_are_left_out(change: dict[str, object], same: bool) -> None:
    settings = {"seed": 0, "model": {"dim": 32}, "trainer": {}, "dataset_root": None, "run_id": "a"}
    assert (configuration_digest(settings) == configuration_digest({**settings, **change})) is same


@pytest.mark.parametrize("text", ["[1]", '{"port": 3}'], ids=str)
def test_what_is_no_identity_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="identity of a run"):
        RunIdentity.from_text(text)


def test_a_port_is_published_for_one_run_and_taken_away(tmp_path: Path) -> None:
    own, other = (PublishedPort(tmp_path, RunIdentity("multinode", world)) for world in (2, 4))
    assert own.read() is None
    own.write("n1", 23456)
    assert (own.read(), other.read()) == (("n1", 23456), None)
    other.write("n2", 1)
    own.path.write_text("{")
    assert own.read() is None, "an incomplete record must not be read"
    own.remove()
    other.remove()
    other.remove()
    assert list(tmp_path.iterdir()) == []
