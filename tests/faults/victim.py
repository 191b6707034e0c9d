"""A training run in a forked process, which can be made to die before its n-th operation on the run folder."""

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
    """A started process, and its exit code once it has ended."""

    pid: int
    log: Path
    code: int | None = None

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.code is None:  # After its end, another process may have its pid.
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code (-N after signal N), or None if the process is still alive after `seconds`."""
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
        self.kill()
        code = self.wait(20)
        assert code is not None, f"process {self.pid} survived SIGKILL"
        return code


def fork(act: Callable[[], object], log: Path, environ: Mapping[str, str]) -> Victim:
    """Fork this process, which must not have started threads; call `act` in the child, in a new session.

    The child appends its output to `log`. Its exit code is 0, that of a SystemExit, or 70 after any other exception.
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
    """Start `noether train` in a fork of this process, so that it need not import torch again.

    Args:
        config: the run's settings.
        log: the file to which the run appends its output.
        environ: the run's environment variables.
        die_at: the number (from 1) of the operation on the run folder right before which the run kills itself.
        count: the file to which the run writes the number of its operations at its end.
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
    time.sleep(60)  # Wait until the signal arrives, so that nothing more is done.


class Operations:
    """Count this process's operations on a folder: opens, renames, removals, flushes, and pieces of checkpoint files.

    Before each operation, `before` is called with the operation's number, from 1.
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
                if number % 16 == 1:  # Count few pieces, or nearly all random operations would be pieces.
                    self._count()
                yield part

        return counted

    def _on_event(self, event: str, arguments: tuple) -> None:
        if event in FILE_EVENTS and str(arguments[0]).startswith(self._folder):
            self._count()

    def _count(self) -> None:
        self.done += 1
        self._before(self.done)
