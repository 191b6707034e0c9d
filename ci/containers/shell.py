"""Helpers of all steps: run commands, time steps, install packages, and name the paths in the state folder."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class ImagesError(Exception):
    """A step cannot be done here; the error is reported without a traceback."""


@dataclass(frozen=True)
class Places:
    """The state folder, to which all steps write, and the paths in it."""

    state: Path

    socket = property(lambda self: self.state / "docker.sock")
    data = property(lambda self: self.state / "data")
    run = property(lambda self: self.state / "run")
    daemon_pid = property(lambda self: self.state / "docker.pid")
    logs = property(lambda self: self.state / "logs")
    wheels = property(lambda self: self.state / "wheels")
    base = property(lambda self: self.state / "base")
    apptainer = property(lambda self: self.state / "apptainer")
    flat = property(lambda self: self.state / "flat")
    sif = property(lambda self: self.state / "noether.sif")
    times = property(lambda self: self.state / "times.tsv")


def call(
    *command: str | Path,
    log: Path | None = None,
    environ: dict[str, str] | None = None,
    limit_s: float = 600,
    cwd: Path | None = None,
) -> str:
    """Run a command and return its output; with `log`, also append the command and its output to this file.

    Raises:
        ImagesError: the command cannot be started, fails (the message has the end of its output), or times out.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **(environ or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if log else subprocess.PIPE,
            text=True,
            timeout=limit_s,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImagesError(f"{' '.join(words[:3])}: {error}") from None
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(f"$ {' '.join(words)}\n{done.stdout}")
    if done.returncode:
        said = (done.stdout + (done.stderr or "")).strip()
        raise ImagesError(f"{' '.join(words[:4])} ended with {done.returncode}\n{said[-3000:]}")
    return done.stdout


def answers(*command: str | Path, environ: dict[str, str] | None = None, limit_s: float = 20) -> bool:
    """Return whether a command succeeds."""
    try:
        call(*command, environ=environ, limit_s=limit_s)
    except ImagesError:
        return False
    return True


@contextmanager
def step(places: Places, name: str) -> Iterator[None]:
    """Time a step; append its seconds to the table of times and print them on standard error."""
    print(f"images: {name} …", file=sys.stderr, flush=True)
    started = time.monotonic()
    yield
    seconds = time.monotonic() - started
    print(f"images: {name} {seconds:.1f} s", file=sys.stderr, flush=True)
    places.state.mkdir(parents=True, exist_ok=True)
    with places.times.open("a") as file:
        file.write(f"{name}\t{seconds:.1f}\n")


def install_packages(packages: dict[str, str]) -> None:
    """Install the Debian packages whose commands or files are missing.

    Args:
        packages: the name of each package, keyed by a command or an absolute path that exists if it is installed.
    """
    missing = sorted({package for what, package in packages.items() if not is_here(what)})
    if not missing:
        return
    # SYSTEMD_OFFLINE prevents systemd from starting the services of the packages.
    environ = {"DEBIAN_FRONTEND": "noninteractive", "SYSTEMD_OFFLINE": "1"}
    apt = ("apt-get", "-qq", "-oDPkg::Lock::Timeout=300")
    get = (*apt, "install", "-y", "--no-install-recommends", *missing)
    if not answers(*get, environ=environ, limit_s=600):
        call(*apt, "update", environ=environ)
        call(*get, environ=environ)


def is_here(what: str) -> bool:
    """Return whether a command is on the PATH or, if `what` is an absolute path, whether it exists."""
    return Path(what).exists() if what.startswith("/") else shutil.which(what) is not None


def mounts_under(folder: Path) -> Sequence[str]:
    """Return the mount points under a folder, ordered from the deepest up."""
    points = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
    return sorted((point for point in points if Path(point).is_relative_to(folder)), reverse=True)
