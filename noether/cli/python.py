"""Call the commands from Python: `noether.train`, `noether.plan` and `noether.submit` take the command line's words.

A keyword argument is a flag of the command or a setting; its value reaches the command unchanged. A dictionary sets
several settings of a section: `trainer={"max_updates": 4}`.
"""

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from noether import load_run
from noether.checkpoints.run_settings import load_run_config
from noether.cli.binding import Call, bind
from noether.cli.commands import COMMANDS, flags_of
from noether.cli.mistakes import flag_of
from noether.common.console import Console
from noether.common.errors import ExitCode, RequestError, signal_code
from noether.config.explain import as_override
from noether.config.section import flat
from noether.jobs.submit import described_here, send
from noether.launch.detect.slurm.queue import SlurmError, job_state, queued_jobs
from noether.launch.plan import render_placement
from noether.launch.script import here
from noether.runs.cancel import cancel_run
from noether.runs.folder import TOLD, RunFolder
from noether.runs.logs import log_text
from noether.runs.overview import DONE, STOPPED, RunState, run_state
from noether.runs.records import read_record
from noether.training.sweep import checked_plan, train_apart

if TYPE_CHECKING:  # This module imports torch, which a plan or a submission does not need.
    from noether.physics.predict.python_api import LoadedRun

Words = str | Sequence[str | os.PathLike[str]]
"""The words typed after the command: one string, which is split as by a shell, or a list of words."""
FLAGS = {"train": ("hp", "reset", "tb"), "plan": ("hp", "visible_devices"), "submit": ("hp",)}
"""The flags that each command accepts from Python. All other flags print something or start several runs."""
LINES_SHOWN = 12


class RunEnded(RequestError):
    """A run that did not complete. `exit_code` is 75 if the run is saved; `path` is its folder, None if it has none."""

    path: Path | None = None


class Plan(dict[str, Any]):
    """The dictionary that `noether plan --json` prints. Its repr is the table that `noether plan` prints."""

    text = ""

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, repr=False)
class SubmittedJob:
    """The Slurm job of a run. `id`: the job's id, which stays the same after a requeue; `path`: the run's folder."""

    id: str
    path: Path

    def __repr__(self) -> str:
        return f"<job {self.id}: {self.state}, {self.path}>"

    @property
    def state(self) -> str:
        """The job's state in Slurm's words (PENDING, RUNNING, …), or UNKNOWN if Slurm no longer knows the job."""
        return job_state(self.id) or ("COMPLETED" if self._run().state == DONE else "UNKNOWN")

    @property
    def logs(self) -> str:
        """The job's output so far, as `noether logs` prints it."""
        return log_text(RunFolder(self.path))

    def done(self) -> bool:
        """Return whether the job has ended. SlurmError: Slurm does not answer."""
        return self.id not in queued_jobs()

    def wait(self, timeout: float = float("inf")) -> None:
        """Wait until the job has ended and is not requeued. TimeoutError: `timeout` seconds have passed."""
        ends, pause_s = time.monotonic() + timeout, 0.5
        while True:
            with suppress(SlurmError):  # The controller may be restarting, so ask again later.
                if self.done():
                    return
            if time.monotonic() > ends:
                raise TimeoutError(f"job {self.id} has not ended within {timeout:g} s")
            time.sleep(min(pause_s, max(0.0, ends - time.monotonic())))
            pause_s = min(10.0, 1.5 * pause_s)

    def result(self, timeout: float = float("inf")) -> "LoadedRun":
        """Wait until the job ends; return its run. RunEnded: the run did not complete. TimeoutError: see `wait`."""
        self.wait(timeout)
        if (state := self._run().state) == DONE:
            return load_run(self.path)
        code = int(ExitCode.CHECKPOINTED if state == STOPPED else ExitCode.FAILED)
        raise _ended(code, self.path, self.logs, "submit", f"job {self.id}, {self.state}")

    def cancel(self) -> None:
        """Stop the job as `noether cancel` does: the run is saved, and the job is not requeued."""
        if not self.done():
            cancel_run(str(self.path))

    def _run(self) -> RunState:
        folder = RunFolder(self.path)
        folder.look_afresh()
        return run_state(folder, {})


def train(words: Words = (), **settings: Any) -> "LoadedRun":
    """Train, and return the run: `noether.train("+experiment/ellipsoid=quick", trainer={"max_updates": 4}, seed=1)`.

    Args:
        words: the words to type after `noether train`, as one text or as a list.
        settings: settings, which override the words; also the command's flags hp, reset and tb.

    Training runs in a separate process; an interrupt saves the run and stops it. In a task of srun, torchrun or
    mpirun, that process is one rank of the run, as with `noether train`. RequestError: as for the command. RunEnded:
    the run failed or was stopped.
    """
    with _refusals_of("train"), tempfile.TemporaryDirectory(prefix="noether-") as scratch:
        _refuse_inside_a_rank()
        line, call = _bound("train", words, settings)
        load_run_config(call.words, call.flags.get("hp"))
        # No other process can write to a notebook's stdout.
        own, told, said = sys.stdout is not sys.__stdout__, Path(scratch, "run.json"), deque[str](maxlen=200)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if own else {"stderr": subprocess.PIPE}

        def read(pipe: IO[bytes]) -> None:
            for text in pipe:
                said.append(text.decode(errors="replace"))
                print(said[-1], end="", file=sys.stdout if own else sys.stderr, flush=True)

        code = train_apart(line, read, env={**os.environ, TOLD: str(told)}, **pipes)
        found = read_record(told).get("run")
        path = Path(found) if found else None
    if code == signal_code(signal.SIGINT):
        raise KeyboardInterrupt
    if code != ExitCode.DONE or path is None:
        raise _ended(code, path, "".join(said), "train")
    return load_run(path, trust=True)  # The caller has named the run's code in this call, and so trusts it.


def plan(words: Words = (), **settings: Any) -> Plan:
    """Return what `noether.train` would do here, as a dictionary whose repr is the table of `noether plan`.

    Its flags are hp, and visible_devices ("0,1,2,3") to plan for another machine. RequestError: as for the command.
    """
    with _refusals_of("plan"):
        _, call = _bound("plan", words, settings)
        found, text = checked_plan(call.words, **{"hp": None, **call.flags}), io.StringIO()
    Console(None, speaks=True, stream=text).say(*render_placement(found.placement, found.batch), sep="\n")
    plan = Plan(found.as_dict())
    plan.text = text.getvalue().rstrip()
    return plan


def submit(words: Words = (), **settings: Any) -> SubmittedJob:
    """Submit a run to Slurm with the settings in the slurm section. RequestError: as for the command."""
    with _refusals_of("submit"):
        line, call = _bound("submit", words, settings)
        job = described_here(call.words, call.flags.get("hp"))
        return SubmittedJob(send(job, ["--print", *line])[0], job.runs[0].folder.absolute())


def _bound(verb: str, words: Words, settings: dict[str, Any]) -> tuple[list[str], Call]:
    """Return the words to type after `noether VERB`, and the call to which they are bound."""
    line = shlex.split(words) if isinstance(words, str) else [os.fspath(word) for word in words]
    own = flags_of(COMMANDS[verb])
    for name, value in flat(settings):
        line.append(f"{flag_of(name)}={value}" if name in own else f"{name}={as_override(_plain(name, value))}")
    call = bind([verb, *line])
    if others := [one for one in (call.verb, *call.flags) if one not in (verb, *FLAGS[verb])]:
        raise RequestError("not-from-python", f"noether.{verb} has no {others[0]}", seen=shlex.join(line),
                           expected=f"settings, {', '.join(FLAGS[verb])}",
                           fix=shlex.join(["noether", verb, *line]) + "      (in a shell)")  # fmt: skip
    return line, call


def _plain(name: str, value: Any) -> Any:
    """Convert a Python value to a setting's value: a class to its dotted path. RequestError: ranks cannot import it."""
    if isinstance(value, (list, tuple)):
        return [_plain(name, one) for one in value]
    if not hasattr(value, "__qualname__"):
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        return value.tolist() if hasattr(value, "tolist") else value  # For NumPy arrays and torch tensors.
    path = f"{value.__module__}.{value.__qualname__}"
    if path.startswith("__main__") or "<" in path:
        raise RequestError("class-not-importable", f"ranks cannot import {path}", seen=f"{name}={path}",
                           expected="a class in a module that each rank can import by name",
                           fix=f"write it into my_module.py, and set {name}=my_module.{value.__name__}"
                           "      (in a notebook: %%writefile my_module.py)")  # fmt: skip
    return path


def _refuse_inside_a_rank() -> None:
    distributed = sys.modules.get("torch.distributed")
    joined = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if joined or here() is not None or TOLD in os.environ:
        raise RequestError("train-inside-a-rank", "this process is already a rank of a run",
                           seen="an initialised process group" if joined else "a rank that noether has started",
                           expected="a process that is not a rank, or tasks of srun or torchrun that all call it",
                           fix="if __name__ == '__main__': …      (in a file that ranks import)")  # fmt: skip


def _ended(code: int, path: Path | None, text: str, verb: str, about: str = "") -> RunEnded:
    """Return the error for a run that ended with this code; if its output contains a refusal, return that refusal."""
    refusals = re.findall(r"(?m)^noether: (.*) \[([\w-]+)\]\n((?:  .*\n)*)", text)
    end = "\n".join([about, *text.rstrip().splitlines()[-LINES_SHOWN:]]).strip()
    if code == ExitCode.CHECKPOINTED:
        why = run_state(RunFolder(path), {}).why if path else "it had not begun to train"
        error = RunEnded("run-stopped", "the run was stopped, and everything is saved", seen=f"{about}\n{why}".strip(),
                         fix=f'noether.{verb}(resume="{path}")' if path else "the same call")  # fmt: skip
    elif refusals:
        summary, its_code, rest = refusals[-1]
        error = RunEnded(its_code, f"{about}{': ' * bool(about)}{summary}\n{rest}".rstrip())
    else:
        error = RunEnded("run-failed", f"the run has ended with exit code {code}", seen=end,
                         fix=f"noether logs {path}" if path else "")  # fmt: skip
    error.exit_code, error.path = code, path
    return error


@contextmanager
def _refusals_of(verb: str) -> Iterator[None]:
    """Rewrite a refusal's fix as a Python call if the fix is an override."""
    try:
        yield
    except RequestError as error:
        word, gap, comment = error.fix.partition("      (")
        if not re.fullmatch(r"'?[+~]*[\w./]+=.*", word):
            raise
        raise RequestError(**error.parts | {"fix": f"noether.{verb}({word!r}){gap}{comment}"}) from None
