"""A training run in a process of its own that can be made to die at its n-th operation on the run folder."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from noether.checkpoints import writer as checkpoint_writer
from noether.common.errors import shown
from noether.config.schema import RunConfig

FILE_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")


@dataclass
class Victim:
    """One started process of a run, and how it ended."""

    pid: int
    log: Path
    code: int | None = None

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.code is None:  # Else the number may be another process's by now.
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code (minus the signal's number), or None where it is still alive after so long."""
        deadline = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= deadline:
                break
            else:
                time.sleep(0.005)
        return self.code

    def end(self) -> int:
        """End it, and return its exit code."""
        self.kill()
        code = self.wait(20)
        assert code is not None, f"process {self.pid} survived SIGKILL"
        return code


def fork(act: Callable[[], object], log: Path, environ: Mapping[str, str]) -> Victim:
    """Start a process of its own session that acts, by forking this one, which has started no thread.

    What it prints is appended to `log`. It leaves with 0, with the code of a SystemExit, or
    with 70 after a traceback.
    """
    pid = os.fork()
    if pid:
        return Victim(pid, log)
    code = 70
    try:
        os.setsid()
        os.environ.clear()
        os.environ.update(environ)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        try:
            act()
            code = 0
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 1
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def start(
    config: RunConfig, log: Path, environ: Mapping[str, str], *, die_at: int | None = None, count: Path | None = None
) -> Victim:
    """Start `noether train` by forking this process, which has imported torch.

    Args:
        config: of the run.
        log: its output is appended here.
        environ: its environment.
        die_at: dies by SIGKILL right before its operation of this number, from 1, on the run folder.
        count: where the number of operations is written at the end.
    """

    def act() -> None:
        operations = Operations(config.output_path / str(config.run_id), lambda n: die() if n == die_at else None)
        from noether.launch.start import Start
        from noether.training.begin import train_here

        try:
            code = train_here(config, Start(config))
        except Exception as error:
            told = shown(str(error), getattr(error, "code", ""))
            print(told if not isinstance(error, OSError) else traceback.format_exc(), file=sys.stderr)
            code = int(getattr(error, "exit_code", 1))
        if count is not None:
            count.write_text(str(operations.done))
        sys.exit(code)

    return fork(act, log, environ)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # The signal is on its way; nothing may be done any more.


class Operations:
    """Counts what this process does to a folder: opens, renames, removals, flushes, and pieces of checkpoint files.

    `before` is called with the number of each, from 1, before it is done.
    """

    def __init__(self, folder: Path, before: Callable[[int], object]) -> None:
        self.done, self._before, self._folder = 0, before, os.fspath(folder)
        sys.addaudithook(self._on_event)
        flush = os.fsync

        def fsync(descriptor: int) -> None:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(self._folder):
                self._count()
            flush(descriptor)

        os.fsync = fsync
        checkpoint_writer.safetensors_parts = self._in_mid_write(checkpoint_writer.safetensors_parts)

    def _in_mid_write(self, parts: Callable[..., Iterator[bytes]]) -> Callable[..., Iterator[bytes]]:
        def counted(tensors) -> Iterator[bytes]:
            for number, part in enumerate(parts(tensors)):
                if number % 16 == 1:  # Not every tensor: the other operations would hardly ever be met.
                    self._count()
                yield part

        return counted

    def _on_event(self, event: str, arguments: tuple) -> None:
        if event in FILE_EVENTS and str(arguments[0]).startswith(self._folder):
            self._count()

    def _count(self) -> None:
        self.done += 1
        self._before(self.done)
