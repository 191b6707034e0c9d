"""Makes the images of the test session in the background while the other tests run.

    python making.py NOTES OWNER IMAGES ARGUMENT ...     (what `Making.start` runs, detached)

The steps are not children of the test session: tests start runs in that process, and at its end a run's launcher sweeps
what has come below it since, whoever started it. One worker of the session starts them, each worker finds their notes
by the session's number, and the session itself ends them.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

STEPS = ("check", "build", "apptainer", "sif")
CANNOT_FETCH = 3  # Exit code of `ci/images apptainer` where Debian sid's packages are not to be had.
IMAGES = Path(__file__).resolve().parents[2] / "ci" / "images"
Finished = subprocess.CompletedProcess[str]


def are_required() -> bool:
    """Return whether the images are made, and what they lack here is a failure: so says ci/smoke."""
    return os.environ.get("NOETHER_SMOKE") == "1"


class Making:
    """The steps of `ci/images`, one after the other in a process of their own, which notes how each went."""

    def __init__(self, flavour: str, session: int) -> None:
        """`session` is the process id of the test session, whose workers share the images."""
        kept = os.environ.get("NOETHER_IMAGES_STATE")
        # A short path: sockets lie in it. On a disk: a memory file system has no room for it.
        self.state = Path(kept or f"/var/tmp/noether-images-{session}")
        self._is_kept = kept is not None
        self._session = session
        self._notes = Path(tempfile.gettempdir()) / f"noether-making-{session}"
        self._command = [sys.executable, str(IMAGES), f"--state={self.state}", f"--flavour={flavour}"]

    @property
    def has_begun(self) -> bool:
        """Whether a worker of the session has started the steps."""
        return self._notes.exists()

    def start(self) -> None:
        """Start the steps; returns at once."""
        # Ordinary users start Apptainer and the SIF from it.
        self.state.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._notes.mkdir()
        subprocess.run([sys.executable, __file__, str(self._notes), str(self._session), *self._command], check=True)

    def wait(self, step: str, limit_s: float = 900) -> Finished | None:
        """Return how a step went, once it has ended; None past the limit."""
        note, deadline = self._notes / f"{step}.json", time.monotonic() + limit_s
        while not note.exists():
            if time.monotonic() > deadline:
                return None
            time.sleep(0.2)
        return Finished(**json.loads(note.read_text()))

    def variables(self) -> dict[str, str]:
        """Return what `ci/images env` exports."""
        said = _call([*self._command, "env"]).stdout
        return dict(re.findall(r"^export (\w+)=(.*)$", said.replace("$PATH", os.environ["PATH"]), re.MULTILINE))

    def end(self) -> None:
        """Stop what is being made, end the engine and remove everything, unless the folder was given."""
        if not (self._notes / f"{STEPS[-1]}.json").exists():
            self._stop()
        if not self._is_kept:
            _call([*self._command, "clean"])
        shutil.rmtree(self._notes)

    def _stop(self) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # Never started; over.
            maker = int((self._notes / "pid").read_text())
            os.killpg(maker, signal.SIGTERM)  # With the client or debootstrap that it waits for.
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                os.killpg(maker, 0)
                time.sleep(0.1)


def make(notes: Path, owner: int, command: Sequence[str]) -> None:
    """Take the steps and note how each went; where the test session is gone, no further one."""
    for step in STEPS:
        if not Path(f"/proc/{owner}").exists():
            _call([*command, "clean"])
            return
        done = _call([*command, step])
        note = {"args": done.args, "returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        (notes / "partial").write_text(json.dumps(note))
        (notes / "partial").rename(notes / f"{step}.json")


def _call(command: Sequence[str]) -> Finished:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def _detach(notes: Path) -> None:
    """Go on as a process group of its own whose parent is no longer the caller."""
    if os.fork():
        os._exit(0)
    os.setsid()
    (notes / "pid").write_text(str(os.getpid()))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)


if __name__ == "__main__":
    _detach(Path(sys.argv[1]))
    make(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
