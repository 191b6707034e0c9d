"""Attacks on the ports of a run: some cases of `python -m tests.faults.strangers`, and tests of each defence."""

import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sharing import in_every_push

from noether.common.errors import ExitCode
from noether.launch.process_group.stores import listening_descriptors, shut
from tests.faults import strangers
from tests.faults.room import REPOSITORY
from tests.processes import free_port

CONNECT_S = 0.5
ATTACKS = {
    "3000 idle ones before the launchers meet": ("idle", strangers.MOST_OPEN, 8.0, "127.0.0.1"),
    "garbage": ("garbage", 50, 3.0, "127.0.0.1"),
    "garbage on every interface": ("garbage", 50, 3.0, strangers.own_address()),
    "forged hellos": ("forged", 400, 1.0, "127.0.0.1"),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, str]:
    return strangers.undisturbed(tmp_path_factory.mktemp("calm"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "most", "apart_s", "host"), in_every_push(ATTACKS, "garbage on every interface", "forged hellos")
)
def test_a_run_of_two_launchers_goes_on_as_if_nothing_had_happened(
    undisturbed, how, most, apart_s, host, tmp_path
) -> None:
    row = strangers.play(tmp_path / "run", how, random.randrange(1000), most, apart_s, host)
    assert row["codes"] == [0, 0], row
    assert row["connections"] > 50
    assert row["hashes"] == undisturbed


@pytest.mark.slow
def test_a_start_that_is_disturbed_ends_in_time_with_what_was_seen(tmp_path: Path) -> None:
    """Unrelated programs connect, and the second launcher never does."""
    port, began = free_port(), time.monotonic()
    with strangers.attacked(tmp_path, "zeros", 0, 400, port):
        process = strangers.start(tmp_path, 0, port, "distributed.init_timeout_s=5")
        (said,) = strangers.finish([process], 60)
    assert process.returncode == ExitCode.LATE, said
    assert "rank 1 of 2 did not join within 5 s" in said
    assert time.monotonic() - began < 45
    assert "Traceback" not in said


def test_a_listener_that_was_shut_takes_nobody_and_keeps_who_is_there() -> None:
    before = listening_descriptors()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client:
            accepted, _ = server.accept()
            assert listening_descriptors() - before == {server.fileno()}
            shut({server.fileno()})
            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=CONNECT_S)
            client.sendall(b"still here")
            assert accepted.recv(20) == b"still here"
            accepted.close()


FLOOD = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
from noether.launch.detect.endpoint import hold_port
from noether.launch.detect.identity import RunIdentity
from noether.launch.detect.placement import Endpoint
from noether.launch.processes.context import RunInfo
from noether.launch.processes.listener import RunListener
held = hold_port(Endpoint("127.0.0.1", 0))
listener = RunListener(held, RunInfo(RunIdentity("multinode", 2), "key"))
print(listener.port, flush=True)
for line in sys.stdin:
    listener.poll([0])
    open("/dev/null").close()
    print("polled", flush=True)
"""


def test_a_flood_leaves_the_launcher_descriptors_for_its_run() -> None:
    """The launcher may open 200 files; the test opens 900 connections to it."""
    listener = subprocess.Popen(
        [sys.executable, "-c", FLOOD], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        port = int(listener.stdout.readline())
        flood: list[socket.socket] = []
        for _ in range(6):
            flood += [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(150)]
            listener.stdin.write("poll\n")
            listener.stdin.flush()
            assert listener.stdout.readline() == "polled\n"
        for connection in flood:
            connection.close()
    finally:
        listener.stdin.close()
        assert listener.wait(timeout=20) == 0
