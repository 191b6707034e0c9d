"""What tests of processes share: running one to its end, waiting for what another does, and a port to meet at."""

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
"""Variables that are 1 on a machine which brings what their tests need: CONTRIBUTING.md says what each stands for."""


def is_required(brought: str) -> bool:
    """Return whether this machine brings what a variable stands for, so that no test of it may be skipped."""
    return os.environ.get(brought) == "1"


def lacking(what: str, brought: str = PACKAGES) -> NoReturn:
    """Skip a test for what this machine lacks; where the machine is said to bring it, the test fails."""
    (pytest.fail if is_required(brought) else pytest.skip)(f"{what} ({brought}=1 requires it)")


def needs_namespaces(what: str, *probe: str) -> None:
    """Skip a test where root cannot run a command in namespaces of its own."""
    can = shutil.which("unshare") and subprocess.run(["unshare", "--uts", *probe], capture_output=True).returncode == 0
    if os.geteuid() or not can:
        lacking(f"only root can {what} here", CLUSTER)


def find_program(name: str, package: str) -> str:
    """Return the path of a program, which is in this package of Debian."""
    return shutil.which(name) or lacking(f"no {name}: apt-get install {package}")


def run_to_end(
    command: Sequence[str], env: Mapping[str, str], *, cwd: Path = REPOSITORY, limit_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a program that reads nothing; return its exit code and its words."""
    return subprocess.run(
        command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s
    )


def torchrun(module: str = "run") -> list[str]:
    """Return the words that start two ranks of what follows them on this machine."""
    return [sys.executable, "-m", f"torch.distributed.{module}", "--standalone", "--nproc-per-node", "2"]


AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""By which root says that it may start mpirun."""


def mpirun(words: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run two processes of `noether WORDS` to their end, on as few cores as there are."""
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
    """Ask until the answer is true and return it. Past the limit, or where the process has ended, it fails."""
    deadline, pause = time.monotonic() + limit_s, 0.02
    while not (answer := ask()):
        assert process is None or process.poll() is None, (f"ended before {what}", process and process.communicate())
        assert time.monotonic() < deadline, f"{what}: not within {limit_s:g} s\n{explain()}"
        time.sleep(pause)
        pause = min(longest_pause_s, pause * 1.5)
    return answer


def converse(command: list[str], typed: str, environ: dict[str, str], limit_s: float = 120) -> tuple[int, str]:
    """Type into a program on a terminal of its own; return its exit code, and what it showed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, environ)
    said, deadline, rest = b"", time.monotonic() + limit_s, typed.encode()
    try:
        while time.monotonic() < deadline:
            # A line at a time: a terminal holds few characters that nobody has read yet.
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
    """Read what a process says on stderr, wherever it leads; return the line that has these words."""
    stream = process.stderr or process.stdout
    assert stream is not None
    said = []
    for line in stream:
        said.append(line)
        if words in line:
            return line
    raise AssertionError(f"{words!r} was never said:\n{''.join(said)}")


def lay(folder: Path, files: Mapping[str, str]) -> None:
    """Write files by their paths in a folder, which need not be there."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def flip(path: Path, byte: int = -10) -> None:
    """Flips one bit of a file and leaves its size as it is."""
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)


def halve(path: Path) -> None:
    """Leave the first half of a file."""
    os.truncate(path, path.stat().st_size // 2)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def is_running(pid: int) -> bool:
    """A zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
