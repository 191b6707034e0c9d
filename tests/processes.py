"""Helpers for tests of processes: run a command to its end, wait for a condition, find a free port."""

import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

T = TypeVar("T")
REPOSITORY = Path(__file__).resolve().parent.parent


PACKAGES, CLUSTER, IMAGES, GPU = "NOETHER_PACKAGES", "NOETHER_CLUSTER", "NOETHER_SMOKE", "NOETHER_REQUIRE_GPU"
"""Variables that are set to 1 on a machine that provides what certain tests need; see CONTRIBUTING.md."""


def is_required(brought: str) -> bool:
    """Return whether the variable `brought` declares that this machine provides what these tests need."""
    return os.environ.get(brought) == "1"


def lacking(what: str, brought: str = PACKAGES) -> NoReturn:
    """Skip a test because this machine lacks something; fail if the variable `brought` says that it provides this."""
    (pytest.fail if is_required(brought) else pytest.skip)(f"{what} ({brought}=1 requires it)")


def needs_namespaces(what: str, *probe: str) -> None:
    """Skip a test unless this process is root and can run a command in new namespaces."""
    can = shutil.which("unshare") and subprocess.run(["unshare", "--uts", *probe], capture_output=True).returncode == 0
    if os.geteuid() or not can:
        lacking(f"only root can {what} here", CLUSTER)


def find_program(name: str, package: str) -> str:
    """Return the path of a program. If it is missing, skip the test and name the Debian package."""
    return shutil.which(name) or lacking(f"no {name}: apt-get install {package}")


def run_to_end(
    command: Sequence[str], env: Mapping[str, str], *, cwd: Path = REPOSITORY, limit_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a program without input to its end; return its exit code and output."""
    return subprocess.run(
        command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s
    )


def torchrun(module: str = "run") -> list[str]:
    """Return a torchrun command that starts two ranks; the program and its arguments are to be appended."""
    return [sys.executable, "-m", f"torch.distributed.{module}", "--standalone", "--nproc-per-node", "2"]


AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Variables with which root may start mpirun."""


def mpirun(words: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `noether WORDS` as two processes under mpirun, on any number of cores."""
    command = [find_program("mpirun", "openmpi-bin"), "--oversubscribe", "-n", "2", sys.executable, "-m", "noether"]
    return run_to_end([*command, *words], {**environ, **AS_ROOT})


def wait_for(
    what: str,
    ask: Callable[[], T],
    limit_s: float = 90,
    explain: Callable[[], str] = str,
    *,
    process: "subprocess.Popen[Any] | None" = None,
    longest_pause_s: float = 0.02,
) -> T:
    """Call `ask` until its result is true, and return the result. Fail after the limit, or if the process ends."""
    deadline, pause = time.monotonic() + limit_s, 0.02
    while not (answer := ask()):
        assert process is None or process.poll() is None, (f"ended before {what}", process and process.communicate())
        assert time.monotonic() < deadline, f"{what}: not within {limit_s:g} s\n{explain()}"
        time.sleep(pause)
        pause = min(longest_pause_s, pause * 1.5)
    return answer


def converse(command: list[str], typed: str, environ: dict[str, str], limit_s: float = 120) -> tuple[int, str]:
    """Run a program on a new pseudo-terminal and type into it; return its exit code and its output."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, environ)
    said, deadline, rest = b"", time.monotonic() + limit_s, typed.encode()
    try:
        while time.monotonic() < deadline:
            # Send one line at a time, because a terminal buffers only a few unread characters.
            if rest and said.count(b"\n") >= typed.encode()[: len(typed.encode()) - len(rest)].count(b"\n"):
                line, end, rest = rest.partition(b"\n")
                os.write(terminal, line + end)
            if select.select([terminal], [], [], 1)[0]:
                try:
                    said += os.read(terminal, 65536)
                except OSError:
                    break
    finally:
        os.close(terminal)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, said.decode(errors="replace")


def read_until(process: "subprocess.Popen[str]", words: str) -> str:
    """Read a process's stderr (or stdout, if both are merged) until a line contains `words`; return this line."""
    stream = process.stderr or process.stdout
    assert stream is not None
    said = []
    for line in stream:
        said.append(line)
        if words in line:
            return line
    raise AssertionError(f"{words!r} was never said:\n{''.join(said)}")


def lay(folder: Path, files: Mapping[str, str]) -> None:
    """Write files to a folder; `files` has the text by relative path. Create subfolders as needed."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def flip(path: Path, byte: int = -10) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def is_running(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
