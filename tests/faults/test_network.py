"""The network between two hosts fails mid-run: both launchers end with a message, and the same commands resume."""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import final_hashes
from processes import wait_for
from sharing import in_every_push

from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder

from .hosts import LINES, PATHS, Host, learned_in_peace, two_hosts, updates_made

ADDRESSES = ("10.91.7.1", "10.91.7.2")
UPDATES = 60
SILENCE_S = 6
# More than SILENCE_S plus the ten seconds that a launcher takes to end its ranks, with a margin for busy machines.
GONE_S = 60


def cable(host: Host, state: str) -> None:
    """Set a host's network card "down", as if its cable were pulled out, or "up" again."""
    host.run("ip", "link", "set", "eth0", state)


def train(hosts: list[Host], folder: Path, *overrides: str) -> list[subprocess.Popen[bytes]]:
    """Start one rank on each host, without a scheduler; their output is appended to n1.log and n2.log."""
    words = ["-m", "noether", "train", "--hp", str(LINES), "resume=auto", "run_id=run", *overrides]
    words += [f"output_path={folder}", "nodes=2", f"master_addr={ADDRESSES[0]}", "master_port=29571"]
    commands = [one.inside(sys.executable, *words, f"node_rank={rank}") for rank, one in enumerate(hosts)]
    return [one.start(commands[rank], folder / f"n{rank + 1}.log") for rank, one in enumerate(hosts)]


@pytest.fixture
def hosts(environ) -> Iterator[list[Host]]:
    """Yield two hosts, n1 and n2, that share the file system and are joined by a simulated cable."""
    own = {**environ, **PATHS, "PAUSE_S": "0.1"}
    with two_hosts(lambda index: Host(f"n{index + 1}", own, "--net"), ADDRESSES) as two:
        yield two


@pytest.fixture(scope="module")
def undisturbed(noether, tmp_path_factory) -> dict[str, str]:
    return learned_in_peace(noether, tmp_path_factory.mktemp("undisturbed"), "devices=2")


@pytest.mark.slow
@pytest.mark.parametrize("seed", in_every_push({"0": 0, "1": 1}, "0"))
def test_the_network_is_dropped_in_mid_run(hosts, undisturbed, seed, tmp_path) -> None:
    """The seed draws the update after which a cable is pulled, and the host whose cable it is."""
    rng, folder = random.Random(seed), RunFolder(tmp_path / "run")
    update, host = rng.randint(11, UPDATES // 2), rng.randrange(2)
    logs = [tmp_path / "n1.log", tmp_path / "n2.log"]

    def said() -> str:
        return "\n".join(log.read_text() for log in logs)

    running = train(hosts, tmp_path, f"distributed.heartbeat_timeout_s={SILENCE_S}")
    wait_for(f"update {update}", lambda: update in updates_made(folder), 90, said)
    cable(hosts[host], "down")
    codes = [one.wait(GONE_S) for one in running]
    assert codes == [1, 1], said()
    silent = f"has not been heard from for {SILENCE_S} s: its host is down, or"
    assert f"noether: rank 1 on n2 {silent} cut off from this one" in logs[0].read_text()
    assert f"rank 1 ends with the run: rank 0 on {ADDRESSES[0]} {silent} this one is cut off from it" in (
        logs[1].read_text()
    )
    saved = list_checkpoints(folder.checkpoints)[-1].updates
    assert saved >= 10, "at most the updates since the last checkpoint are lost"
    cable(hosts[host], "up")
    codes = [one.wait(120) for one in train(hosts, tmp_path)]
    assert codes == [0, 0], said()
    assert f"after update {saved}" in logs[0].read_text()
    assert "Traceback" not in said()
    assert final_hashes(folder) == undisturbed
    assert updates_made(folder) == list(range(1, UPDATES + 1))
