"""Hosts of a test's own, as far as mounts, networks and names go, and runs of slow lines on them. Needs root."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from conftest import REPOSITORY, Finished, final_hashes
from processes import lacking, wait_for

from noether.runs.folder import RunFolder
from noether.runs.records import read_metrics

OWN = REPOSITORY / "tests" / "faults" / "own"
LINES = OWN / "lines.yaml"
PATHS = {"PYTHONPATH": f"{REPOSITORY}:{OWN}"}


class Host:
    """What is started here sees a name and `namespaces` of its own, such as --mount, and ends with the host."""

    def __init__(self, name: str, namespace: str, environ: dict[str, str]) -> None:
        self.namespaces, self.environ = ("--uts", namespace), environ
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
        """Starts a command, which is ended after the test."""
        with log.open("ab") as file:
            self.started.append(subprocess.Popen(command, env=self.environ, stdout=file, stderr=file, cwd=OWN))
        return self.started[-1]

    def end(self) -> None:
        """With the last process of its namespaces go mounts, cards and name."""
        for process in (*self.started, self.holder):
            process.kill()
            process.wait(timeout=10)


def needs_namespaces(what: str, *probe: str) -> None:
    """Skips a test where root cannot run a command in namespaces of its own."""
    can = shutil.which("unshare") and subprocess.run(["unshare", "--uts", *probe], capture_output=True).returncode == 0
    if os.geteuid() or not can:
        lacking(f"only root can {what} here")


def learned_in_peace(noether: Callable[..., Finished], folder: Path, *words: str) -> dict[str, str]:
    noether("train", "--hp", str(LINES), f"output_path={folder}", "run_id=calm", *words, cwd=OWN, **PATHS, code=0)
    return final_hashes(RunFolder(folder / "calm"))


def updates_made(folder: RunFolder) -> list[int]:
    rows = read_metrics(folder.metrics) if folder.metrics.exists() else []
    return [row["update"] for row in rows if row["kind"] == "training"]
