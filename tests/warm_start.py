"""Start `noether` by forking a process that has imported torch, so that hundreds of tests need not import it again.

Each command is a fork of that process, with the same interpreter and imports. Its arguments, folder, environment and
exit code are those of `python -m noether`. The fork server that noether starts for its ranks is forked here too. Some
commands start in the ordinary way: those in COLD, those with variables that configure how Python or torch is loaded,
and all tests with a scheduler, a launcher, an image, or the fixture `start`.
"""

import contextlib
import faulthandler
import gc
import importlib
import itertools
import json
import multiprocessing.util
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from noether.common.processes import living_descendants

COLD = ("doctor", "init", "lint", "tensorboard")
READ_AT_IMPORT = ("PYTHON", "OMP_", "GOMP_", "MKL_", "TORCH", "LD_", "MALLOC_", "LC_", "LANG", "TMPDIR", "CUDA_")
ABORT_S = 3.0
SPAWN = multiprocessing.util.spawnv_passfds
MODULES = (
    *("torch", "torch.distributed", "torch.optim", "matplotlib.figure", "pyvista", "scipy.spatial", "hydra.utils"),
    *("noether.cli.binding", "noether.config.compose", "noether.config.explain", "noether.physics.models.upt"),
    *("noether.physics.fields.fields", "noether.training.start", "noether.training.train"),
)


class WarmStart:
    """The client of the process that is forked, which runs as a server for one session of tests."""

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        self._address = str(folder / "warm")
        # `noether train` sets these variables before it loads torch.
        own = {"GOMP_SPINCOUNT": "10000", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        command = [sys.executable, str(Path(__file__).resolve()), self._address]
        # The server exits when its stdin closes, which happens however this process ends.
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**environ, **own})
        if self._server.stdout.readline() != b"ready\n":
            raise RuntimeError("the process that tests start from could not import torch")

    @staticmethod
    def takes(arguments: Sequence[str], more: Mapping[str, str]) -> bool:
        """Return whether a command may be started by a fork."""
        read = (name for name in more if name != "PYTHONPATH" and name.startswith(READ_AT_IMPORT))
        return arguments[0] not in COLD and not any(read)

    def run(
        self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run `noether ARGUMENTS` to its end, as subprocess.run does.

        Raises:
            TimeoutExpired: the command took longer and was killed. The error's note has the command's output with rank
                0's stack; the stacks of other ranks are in their logs.
        """
        with socket.socket(socket.AF_UNIX) as line, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            line.connect(self._address)
            line.settimeout(timeout)
            request = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}
            socket.send_fds(line, [b"\n"], [out.fileno(), err.fileno()])
            with line.makefile("rw") as lines:
                lines.write(json.dumps(request) + "\n")
                lines.flush()
                pid = int(lines.readline())
                try:
                    code = int(lines.readline())
                except TimeoutError:
                    _abort(pid)
                    late = subprocess.TimeoutExpired(list(arguments), timeout)
                    late.add_note(_text(out) + _text(err))
                    raise late from None
            return subprocess.CompletedProcess(list(arguments), code, _text(out), _text(err))

    def end(self) -> None:
        self._server.communicate(timeout=60)


def _abort(pid: int) -> None:
    """Abort a command and all its descendants, which write their stacks if Python's fault handler is enabled."""
    started = [entry.pid for entry in living_descendants(pid)]
    for process in (*reversed(started), pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGABRT)
    time.sleep(ABORT_S)
    for process in (*started, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="backslashreplace")


def serve(address: str) -> None:
    """Fork a keeper for each request, which forks the command's process. Return only in the command's process."""
    gc.disable()
    for name in MODULES:
        importlib.import_module(name)
    gc.enable()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, b"ready\n")
        while True:
            ready, _, _ = select.select([0, listener], [], [])
            if 0 in ready:
                os._exit(0)
            line = listener.accept()[0]
            if os.fork() == 0:
                listener.close()
                _keep(line)
                return
            line.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass


def _fork_server(executable: str, arguments: Sequence[str], passed: Sequence[int]) -> int:
    """Fork multiprocessing's fork server; pass all other programs to the original `spawnv_passfds`.

    As in a new program, no signal has a handler, and only the standard files and those passed are open.
    """
    if not arguments[-1].startswith("from multiprocessing.forkserver import main;"):
        return SPAWN(executable, arguments, passed)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    with contextlib.suppress(BaseException):
        faulthandler.disable()
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        gc.collect()  # Later, this would close descriptors that are in use again.
        edges = sorted({2, *passed, os.sysconf("SC_OPEN_MAX")})
        for low, high in itertools.pairwise(edges):
            os.closerange(low + 1, high)
        exec(arguments[-1], {})
    os._exit(1)


def _keep(line: socket.socket) -> None:
    """Start the command, and send its pid and its exit code to the client. Return only in the command's process."""
    _, (out, err), _, _ = socket.recv_fds(line, 1, 2)
    lines = line.makefile("rw")
    request = json.loads(lines.readline())
    pid = os.fork()
    if pid:
        lines.write(f"{pid}\n")
        lines.flush()
        lines.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        with contextlib.suppress(OSError):
            lines.flush()
        os._exit(0)
    lines.close()
    line.close()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    multiprocessing.util.spawnv_passfds = _fork_server
    # `python -m` would set the same path in that folder.
    own = os.environ.get("PYTHONPATH", "")
    sys.path[:1] = [request["cwd"], *filter(None, own.split(os.pathsep))]
    sys.argv = ["noether", *request["arguments"]]


if __name__ == "__main__":
    serve(sys.argv[1])
    runpy.run_module("noether", run_name="__main__", alter_sys=True)
