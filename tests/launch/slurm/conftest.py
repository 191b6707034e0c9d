"""A real cluster of four nodes for the session, and methods to run commands on it."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import processes
import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
CLUSTER = REPOSITORY / "ci" / "slurm" / "cluster"
# All limits are generous, because they only catch hangs, and other tests and the image builds use the same cores.
# The cluster ends after this time if no process takes it down.
LIFE_S = 5400
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The states of an ended job, from "JOB STATE CODES" in squeue(1).
ENDED = {*"COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL PREEMPTED OUT_OF_MEMORY BOOT_FAIL DEADLINE".split()}  # noqa: SIM905

T = TypeVar("T")
Finished = subprocess.CompletedProcess[str]


def wait_for(what: str, ask: Callable[[], T], limit_s: float = 90, explain: Callable[[], str] = str) -> T:
    """Wait as in tests/processes.py, but call `ask` less often, because each call starts processes."""
    return processes.wait_for(what, ask, limit_s, explain, longest_pause_s=0.5)


@dataclass(frozen=True)
class Slurm:
    """A running cluster with the hosts `login`, `n1`, `n2`, …; jobs run as root in the environment of a new shell."""

    folder: Path

    @property
    def log(self) -> str:
        """The end of the controller's log."""
        return (self.folder / "log" / "slurmctld.log").read_text()[-4000:]

    def cluster(self, *arguments: str, limit_s: float = 150, text: str = "", **variables: str) -> Finished:
        """Run `ci/slurm/cluster ARGUMENTS` to its end, whatever its exit code."""
        command = [sys.executable, str(CLUSTER), f"--state={self.folder}", *arguments]
        environ = {"PATH": PATH, "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8", **variables}
        return subprocess.run(command, input=text, env=environ, capture_output=True, text=True, timeout=limit_s)

    def power(self, *arguments: str) -> None:
        """Run a cluster command that must succeed: up, down, kill, boot, unplug or plug.

        `boot` returns once Slurm would use the node; processes on an unplugged node keep running.
        """
        done = self.cluster(*arguments, limit_s=300)
        assert done.returncode == 0, done.stderr

    def on(self, host: str, *command: str, limit_s: float = 90, text: str = "", **variables: str) -> Finished:
        """Run a command on a host to its end; past the limit it gets SIGTERM, and the test fails."""
        # timeout(1) runs on the host: from here, only nsenter could be killed, not a command in another pid namespace.
        limited = ("timeout", "--kill-after=5", f"{limit_s}", *command)
        started = time.monotonic()
        done = self.cluster("on", host, "--", *limited, limit_s=limit_s + 15, text=text, **variables)
        # After its limit, timeout(1) returns one of these codes; a command may return them, too, but not so late.
        overdue = done.returncode in (124, 128 + signal.SIGKILL) and time.monotonic() - started >= limit_s
        assert not overdue, f"{command} on {host} took more than {limit_s:g} s\n{done.stdout}{done.stderr}{self.log}"
        return done

    def run(self, *command: str, limit_s: float = 90, text: str = "", **variables: str) -> str:
        """Run a command on the login host, require its success, and return its output."""
        done = self.on("login", *command, limit_s=limit_s, text=text, **variables)
        assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def srun(self, *arguments: str, limit_s: float = 150, **variables: str) -> Finished:
        """Run `srun ARGUMENTS` on the login host to its end, whatever its exit code."""
        return self.on("login", "srun", *arguments, limit_s=limit_s, **variables)

    def submit(self, script: str, *options: str, **variables: str) -> int:
        """Submit the text of a batch script; return the job's id. The job's output goes to the cluster's folder."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}"
        output = f"--output={self.folder}/jobs/%j.out"
        return int(self.run("sbatch", "--parsable", output, *options, limit_s=30, text=text, **variables))

    def show(self, job: int) -> dict[str, str]:
        """Return the fields of `scontrol show job`."""
        said = self.run("scontrol", "-o", "show", "job", str(job)).strip()
        return dict(re.findall(r"(\S+?)=(.*?)(?= \S+?=|$)", said))

    def state(self, job: int) -> str:
        return self.show(job)["JobState"]

    def exit_code(self, job: int) -> int:
        """Return the exit code of a job that has ended; for a signal, return 128 plus its number."""
        code, number = map(int, self.show(job)["ExitCode"].split(":"))
        return 128 + number if number else code

    def output(self, job: int) -> str:
        """Return a job's output so far, including its errors."""
        path = Path(self.show(job)["StdOut"])
        return path.read_text() if path.exists() else ""

    def explain(self, job: int) -> str:
        """Return all available information about a job, to explain why a test timed out."""
        return f"{self.show(job)}\n{self.output(job)}\n{self.log}"

    def wait(self, job: int, limit_s: float = 150, until: str | None = None) -> str:
        """Wait until a job has ended or is in the state `until`; return its state."""
        states = {*ENDED, until}

        def reached() -> str | None:
            state = self.state(job)
            return state if state in states else None

        return wait_for(f"job {job}: {until or 'its end'}", reached, limit_s, partial(self.explain, job)) or ""

    def wait_for_output(self, job: int, text: str, limit_s: float = 90) -> str:
        """Wait until a job's output contains `text`; return the output."""

        def written() -> str | None:
            output = self.output(job)
            return output if text in output else None

        return wait_for(f"job {job}: {text!r} in its output", written, limit_s, partial(self.explain, job)) or ""

    def jobs(self) -> set[str]:
        """Return the ids of the jobs that have not ended."""
        return set(self.run("squeue", "-h", "-o", "%A").split())


@contextmanager
def running_cluster(**settings: int | str) -> Iterator[Slurm]:
    """Start a separate cluster with these flags of `ci/slurm/cluster up`; yield it, then take it down."""
    require_cluster()
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    # The folder is not pytest's, because the paths of the Unix sockets in it must be short.
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as parent:
        slurm = Slurm(Path(parent) / "state")
        slurm.power("up", *flags)  # If `up` fails, no host is left running.
        try:
            yield slurm
        finally:
            slurm.power("down")


def require_cluster() -> None:
    """Skip the test if this machine cannot run a cluster. If a cluster is required, first install what is missing."""
    for command in ("install", "check") if processes.is_required(processes.CLUSTER) else ("check",):
        done = subprocess.run([sys.executable, str(CLUSTER), command], capture_output=True, text=True, timeout=900)
        if done.returncode:
            processes.lacking(f"no Slurm cluster here: {done.stderr.strip()}", processes.CLUSTER)


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """Yield a cluster of four nodes with 8 CPUs and 4 GPUs, and partitions main, low and high; high preempts low."""
    with running_cluster(life=LIFE_S) as cluster:
        yield cluster


def check_learned_alike(said: str, ranks: int = 4) -> None:
    """Check that the ranks of any_script.py, on two hosts, have learned the same weights."""
    found = re.findall(rf"rank \d of {ranks} on (\S+) learned (\S+)", said)
    assert (len(found), len({host for host, _ in found}), len({learned for _, learned in found})) == (ranks, 2, 1), said


@pytest.fixture
def variables(cache: Path) -> dict[str, str]:
    """Return the environment of a user on a host of the cluster."""
    return {"PATH": PATH, "XDG_CACHE_HOME": str(cache), "HOME": "/root", "OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def end_jobs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Cancel the jobs that a test leaves behind."""
    if "slurm" not in request.fixturenames:
        yield
        return
    cluster: Slurm = request.getfixturevalue("slurm")
    before = cluster.jobs()
    yield
    if left := cluster.jobs() - before:
        cluster.on("login", "scancel", *left)
        wait_for("jobs cancelled after the test", lambda: not left & cluster.jobs(), explain=lambda: cluster.log)
