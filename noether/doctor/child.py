"""Runs steps that may hang in a child process, which answers line by line and can be killed.

NCCL or a dead NFS server can block a thread for ever, and a thread cannot be killed.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noether.launch.processes.json_lines import Garbled, JsonLines, Late, Unanswered

END_SECONDS = 1.0


def child_command(module: str, *arguments: str) -> list[str]:
    """Returns the command line that runs a module of this copy of noether with this interpreter, from any folder.

    The working folder is not put on sys.path, just as for the installed command.
    """
    root = str(Path(__file__).parents[2])
    # The folder is on sys.path for this one import only, so that nothing else in it can hide another module.
    found = f"sys.path.insert(0, {root!r}); import noether; sys.path.pop(0)"
    code = f"import runpy, sys; {found}; runpy.run_module({module!r}, run_name='__main__')"
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-P", "-c", code, *arguments]


class Child:
    """A running child process that answers each line of JSON with a line of JSON.

    `module` is what runs, as for `python -m`; it inherits the file descriptors `pass_fds`.
    """

    def __init__(self, module: str, *arguments: str, environ: Mapping[str, str], pass_fds: Sequence[int] = ()) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child
        own, its = socket.socketpair()
        # In its own process group, so that everything the child starts can be killed with it.
        self._process = subprocess.Popen(
            child_command(module, *arguments),
            env=dict(environ),
            stdin=its.fileno(),
            stdout=its.fileno(),
            stderr=self._errors,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        its.close()
        self._lines = JsonLines(own)

    def tell(self, request: Mapping[str, Any]) -> None:
        """Sends a request. If the child has ended, `answer` reports it."""
        self._lines.send(request)

    def answer(self, seconds: float) -> dict[str, Any]:
        """Returns the next answer.

        Raises:
            Unanswered: it was too slow, or has ended; the text says how, with its last line of output.
        """
        try:
            return self._lines.receive(max(0.05, seconds))
        except Garbled:
            raise Unanswered("something other than answers is written to its standard output") from None
        except Unanswered:
            if self._lines.read()[1]:
                raise
            raise Unanswered(self._how_it_ended()) from None

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        code = self._process.returncode
        how = f"ended by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"
        self._errors.seek(0)
        words = self._errors.read()[-4000:].decode(errors="replace").strip().splitlines()
        return f"the child process {how}" + (f": {words[-1][:300]}" if words else "")

    def end(self) -> None:
        """Kills the child and everything it started. A process stuck in the kernel is left behind."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._lines.close()
        self._errors.close()


def collect(children: Sequence[Child], seconds: float) -> list[dict[str, Any]]:
    """Returns the next answer of each child; a child that fails answers {"error": why, "follows": …}.

    `follows` is as in `WorkerReport`: "timed-out" where it has not answered in time.
    """
    deadline, answers = time.monotonic() + seconds, []
    for child in children:
        try:
            answers.append(child.answer(deadline - time.monotonic()))
        except Unanswered as error:
            answers.append({"error": str(error), "follows": "timed-out" if isinstance(error, Late) else ""})
    return answers
