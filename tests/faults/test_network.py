"""The network between two hosts goes away in mid-run: both say so and end, and the same commands go on bit for bit."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import REPOSITORY, final_hashes
from processes import lacking, wait_for
from sharing import in_every_push

from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder
from noether.runs.records import read_metrics

OWN = REPOSITORY / "tests" / "faults" / "own"
ADDRESSES = ("10.91.7.1", "10.91.7.2")
UPDATES = 60
SILENCE_S = 6
# The silence, and the ten seconds in which a launcher ends its ranks; machines that run tests are busy.
GONE_S = 60


@dataclass
class Hosts:
    """Two hosts, n1 and n2, with a cable between them that is theirs alone; the file system is everybody's."""

    holders: list[subprocess.Popen[bytes]]
    environ: dict[str, str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def on(self, host: int, *command: str) -> list[str]:
        return ["nsenter", f"--target={self.holders[host].pid}", "--net", "--uts", "--", *command]

    def run(self, host: int, *command: str) -> None:
        subprocess.run(self.on(host, *command), check=True, timeout=30)

    def cable(self, state: str, host: int) -> None:
        """Pulls the cable out of a host ("down"), or puts it back ("up")."""
        self.run(host, "ip", "link", "set", "eth0", state)

    def train(self, folder: Path, *overrides: str) -> list[subprocess.Popen[bytes]]:
        """Starts one rank on each host, as a person does who has no scheduler; n1.log and n2.log are appended."""
        words = ["-m", "noether", "train", "--hp", str(OWN / "lines.yaml"), "resume=auto", "run_id=run", *overrides]
        words += [f"output_path={folder}", "nodes=2", f"master_addr={ADDRESSES[0]}", "master_port=29571"]
        started = []
        for host in (0, 1):
            with (folder / f"n{host + 1}.log").open("ab") as log:
                command = self.on(host, sys.executable, *words, f"node_rank={host}")
                started.append(subprocess.Popen(command, env=self.environ, stdout=log, stderr=log, cwd=OWN))
        self.started += started
        return started


@pytest.fixture
def hosts(environ) -> Iterator[Hosts]:
    """Two network namespaces with a pair of virtual cards. Needs root."""
    probe = ["unshare", "--net", "--uts", "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"]
    can = shutil.which("unshare") and shutil.which("ip") and not subprocess.run(probe, capture_output=True).returncode
    if os.geteuid() or not can:
        lacking("only root can lay a cable between two hosts here, and needs iproute2 for it")
    holders = [subprocess.Popen(["unshare", "--net", "--uts", "sleep", "280"]) for _ in ADDRESSES]
    own = {**environ, "PYTHONPATH": f"{REPOSITORY}:{OWN}", "PAUSE_S": "0.1"}
    two = Hosts(holders, own)
    try:
        here = os.readlink("/proc/self/ns/uts")
        wait_for("hosts", lambda: all(os.readlink(f"/proc/{one.pid}/ns/uts") != here for one in holders), 30)
        peer = ["peer", "name", "eth0", "netns", str(holders[1].pid)]
        two.run(0, "ip", "link", "add", "eth0", "type", "veth", *peer)
        for host, address in enumerate(ADDRESSES):
            two.run(host, "hostname", f"n{host + 1}")
            two.run(host, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
            two.run(host, "ip", "link", "set", "lo", "up")
            two.cable("up", host)
        yield two
    finally:
        for process in (*two.started, *holders):
            process.kill()
            process.wait(timeout=10)


@pytest.fixture(scope="module")
def undisturbed(noether, tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    words = ["--hp", str(OWN / "lines.yaml"), f"output_path={folder}", "run_id=calm", "devices=2"]
    done = noether("train", *words, cwd=OWN, PYTHONPATH=f"{REPOSITORY}:{OWN}")
    assert done.code == 0, done.err
    return final_hashes(RunFolder(folder / "calm"))


def updates_made(folder: RunFolder) -> list[int]:
    rows = read_metrics(folder.metrics) if folder.metrics.exists() else []
    return [row["update"] for row in rows if row["kind"] == "training"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", in_every_push({"0": 0, "1": 1}, "0"))
def test_the_network_is_dropped_in_mid_run(hosts, undisturbed, seed, tmp_path) -> None:
    """The seed draws after which update the cable is pulled, and from which host."""
    rng, folder = random.Random(seed), RunFolder(tmp_path / "run")
    update, host = rng.randint(11, UPDATES // 2), rng.randrange(2)
    logs = [tmp_path / "n1.log", tmp_path / "n2.log"]

    def said() -> str:
        return "\n".join(log.read_text() for log in logs)

    running = hosts.train(tmp_path, f"distributed.heartbeat_timeout_s={SILENCE_S}")
    wait_for(f"update {update}", lambda: update in updates_made(folder), 90, said)
    hosts.cable("down", host)
    codes = [one.wait(GONE_S) for one in running]
    assert codes == [1, 1], said()
    silent = f"has not been heard of for {SILENCE_S} s: its host is down, or"
    assert f"noether: rank 1 on n2 {silent} cut off from this one" in logs[0].read_text()
    assert f"rank 1 ends with the run: rank 0 on {ADDRESSES[0]} {silent} this one is cut off from it" in (
        logs[1].read_text()
    )
    saved = list_checkpoints(folder.checkpoints)[-1].updates
    assert saved >= 10, "at most the updates since the last checkpoint are lost"
    hosts.cable("up", host)
    codes = [one.wait(120) for one in hosts.train(tmp_path)]
    assert codes == [0, 0], said()
    assert f"after update {saved}" in logs[0].read_text()
    assert "Traceback" not in said()
    assert final_hashes(folder) == undisturbed
    assert updates_made(folder) == list(range(1, UPDATES + 1))
