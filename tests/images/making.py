"""Make the images of the test session in the background while the other tests run.

    python making.py NOTES OWNER IMAGES ARGUMENT ...     (run detached by `Making.start`)

The steps are not children of the test session: tests start runs in that process, and when a run ends, its launcher
kills all processes that were started below it. One worker of the session starts the steps. Every worker finds their
results by the session's process id, and the session itself ends them.
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
CANNOT_FETCH = 3  # Exit code of `ci/images apptainer` if Debian sid lacks the packages.
IMAGES = Path(__file__).resolve().parents[2] / "ci" / "images"
Finished = subprocess.CompletedProcess[str]


def are_required() -> bool:
    """Return whether ci/smoke requires the images to be made, so that a missing tool is a failure."""
    return os.environ.get("NOETHER_SMOKE") == "1"


class Making:
    """The steps of `ci/images`, run in turn by a separate process that records each result."""

    def __init__(self, flavour: str, session: int) -> None:
        """Name the steps of a test session by its process id `session`: all its workers share the images."""
        kept = os.environ.get("NOETHER_IMAGES_STATE")
        # The path is short because it contains sockets, and on a disk because a memory file system is too small.
        self.state = Path(kept or f"/var/tmp/noether-images-{session}")
        self._is_kept = kept is not None
        self._session = session
        self._notes = Path(tempfile.gettempdir()) / f"noether-making-{session}"
        self._command = [sys.executable, str(IMAGES), f"--state={self.state}", f"--flavour={flavour}"]

    @property
    def has_begun(self) -> bool:
        return self._notes.exists()

    def start(self) -> None:
        # Every user may read the folder, because ordinary users start Apptainer and the SIF from it.
        self.state.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._notes.mkdir()
        subprocess.run([sys.executable, __file__, str(self._notes), str(self._session), *self._command], check=True)

    def wait(self, step: str, limit_s: float = 900) -> Finished | None:
        """Wait for a step's end; return its result, or None after the limit."""
        note, deadline = self._notes / f"{step}.json", time.monotonic() + limit_s
        while not note.exists():
            if time.monotonic() > deadline:
                return None
            time.sleep(0.2)
        return Finished(**json.loads(note.read_text()))

    def variables(self) -> dict[str, str]:
        """Return the variables that `ci/images env` exports."""
        said = _call([*self._command, "env"]).stdout
        return dict(re.findall(r"^export (\w+)=(.*)$", said.replace("$PATH", os.environ["PATH"]), re.MULTILINE))

    def end(self) -> None:
        """Stop unfinished steps and the engine. Remove all files unless NOETHER_IMAGES_STATE names their folder."""
        if not (self._notes / f"{STEPS[-1]}.json").exists():
            self._stop()
        if not self._is_kept:
            _call([*self._command, "clean"])
        shutil.rmtree(self._notes)

    def _stop(self) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # The maker was never started, or has ended.
            maker = int((self._notes / "pid").read_text())
            os.killpg(maker, signal.SIGTERM)  # This also ends the program that the maker waits for.
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                os.killpg(maker, 0)
                time.sleep(0.1)


def make(notes: Path, owner: int, command: Sequence[str]) -> None:
    """Run the steps in turn and record each result; stop if the test session has ended."""
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
    """Continue in a process that is no longer a child of the caller and has its own session."""
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
