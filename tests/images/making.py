"""The images of the test session, made in the background while the other tests run."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

from conftest import REPOSITORY

IMAGES = REPOSITORY / "ci" / "images"
STEPS = ("check", "build", "apptainer", "sif")
CANNOT_FETCH = 3  # Exit code of `ci/images apptainer` where Debian sid's packages are not to be had.
Finished = subprocess.CompletedProcess[str]


def are_required() -> bool:
    """Whether what is missing here is a failure: in CI, and for whoever calls ci/smoke."""
    return os.environ.get("CI") == "true" or os.environ.get("NOETHER_SMOKE") == "1"


@dataclass
class Making:
    """The steps of `ci/images`, one after the other in a thread; `done` holds how those that ended went."""

    flavour: str
    kept: str | None = os.environ.get("NOETHER_IMAGES_STATE")
    done: dict[str, Finished] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A short path: sockets lie in it. On a disk: a memory file system has no room for it.
        self.state = Path(self.kept or tempfile.mkdtemp(prefix="noether-images-", dir="/var/tmp"))
        if self.kept is None:
            self.state.chmod(0o755)  # Ordinary users start Apptainer and the SIF from it.
        self._ended = {step: threading.Event() for step in STEPS}
        self._current: subprocess.Popen[str] | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._make, daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def wait(self, step: str, limit_s: float = 900) -> Finished | None:
        """Return how a step went, once it has ended; None past the limit."""
        return self.done.get(step) if self._ended[step].wait(limit_s) else None

    def variables(self) -> dict[str, str]:
        """Return what `ci/images env` exports."""
        said = self._call("env").stdout
        return dict(re.findall(r"^export (\w+)=(.*)$", said.replace("$PATH", os.environ["PATH"]), re.MULTILINE))

    def end(self) -> None:
        """Stop what is being made, end the engine and remove everything, unless the folder was given."""
        self._stopped = True
        if self._current is not None and self._current.poll() is None:
            os.killpg(self._current.pid, signal.SIGTERM)  # With the client or debootstrap that it waits for.
        if self._thread.ident is not None:
            self._thread.join(60)
        if self.kept is None:
            self._call("clean")

    def _make(self) -> None:
        for step in STEPS:
            if not self._stopped:
                self.done[step] = self._call(step)
            self._ended[step].set()

    def _call(self, *words: str) -> Finished:
        command = [sys.executable, str(IMAGES), f"--state={self.state}", f"--flavour={self.flavour}", *words]
        self._current = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        out, err = self._current.communicate()
        return Finished(command, self._current.returncode, out, err)
