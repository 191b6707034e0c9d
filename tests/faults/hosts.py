"""Simulated hosts with their own mounts, networks and names, on which slow_lines.py is trained. Needs root."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conftest import REPOSITORY, Finished, final_hashes
from processes import needs_namespaces, wait_for

from noether.runs.folder import RunFolder
from noether.runs.records import read_metrics

OWN = REPOSITORY / "tests" / "faults" / "own"
LINES = OWN / "lines.yaml"
PATHS = {"PYTHONPATH": f"{REPOSITORY}:{OWN}"}
CARD = ("ip", "link", "add", "eth0", "type", "veth", "peer", "name")


class Host:
    """A host with its own name and `namespaces`, such as --mount. Its processes end with it."""

    def __init__(self, name: str, environ: dict[str, str], *namespaces: str) -> None:
        self.namespaces, self.environ = ("--uts", *namespaces), environ
        self.holder = subprocess.Popen(["unshare", *self.namespaces, "sleep", "280"])
        self.started: list[subprocess.Popen[bytes]] = []
        here, there = Path("/proc/self/ns/uts"), Path(f"/proc/{self.holder.pid}/ns/uts")
        wait_for("namespaces", lambda: os.readlink(there) != os.readlink(here))
        self.run("hostname", name)

    def inside(self, *command: str) -> list[str]:
        return ["nsenter", f"--target={self.holder.pid}", *self.namespaces, "--", *command]

    def run(self, *command: str) -> None:
        subprocess.run(self.inside(*command), check=True, timeout=30)

    def start(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a command on this host; `end` kills it."""
        with log.open("ab") as file:
            self.started.append(subprocess.Popen(command, env=self.environ, stdout=file, stderr=file, cwd=OWN))
        return self.started[-1]

    def end(self) -> None:
        """Kill all processes of the host; the kernel then removes its mounts, network cards and name."""
        for process in (*self.started, self.holder):
            process.kill()
            process.wait(timeout=10)


@contextmanager
def two_hosts(make: Callable[[int], Host], addresses: tuple[str, str]) -> Iterator[list[Any]]:
    """Yield two hosts, each with its own network, joined by a simulated cable."""
    needs_namespaces("lay a cable between two hosts (iproute2)", "--net", *CARD, "eth1")
    two: list[Host] = []
    try:
        for index in range(2):
            two.append(make(index))
        two[0].run(*CARD, "eth0", "netns", str(two[1].holder.pid))
        for host, address in zip(two, addresses, strict=True):
            host.run("ip", "addr", "add", f"{address}/24", "dev", "eth0")
            for card in ("lo", "eth0"):
                host.run("ip", "link", "set", card, "up")
        yield two
    finally:
        for host in two:
            host.end()


def learned_in_peace(noether: Callable[..., Finished], folder: Path, *words: str) -> dict[str, str]:
    noether("train", "--hp", str(LINES), f"output_path={folder}", "run_id=calm", *words, cwd=OWN, **PATHS, code=0)
    return final_hashes(RunFolder(folder / "calm"))


def updates_made(folder: RunFolder) -> list[int]:
    rows = read_metrics(folder.metrics) if folder.metrics.exists() else []
    return [row["update"] for row in rows if row["kind"] == "training"]
