"""Where a run keeps what it makes, and how an earlier run is found again. No torch here."""

import errno
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from noether.errors import RequestError


@dataclass(frozen=True)
class RunFolder:
    """The files of one run, by name."""

    path: Path

    config = property(lambda self: self.path / "config.yaml")
    plan = property(lambda self: self.path / "plan.json")
    environment = property(lambda self: self.path / "environment.json")
    metrics = property(lambda self: self.path / "metrics.jsonl")
    result = property(lambda self: self.path / "result.json")
    report = property(lambda self: self.path / "report.html")
    attempt = property(lambda self: self.path / "attempt.json")
    attempts = property(lambda self: self.path / "attempts.jsonl")
    logs = property(lambda self: self.path / "logs")
    checkpoints = property(lambda self: self.path / "checkpoints")
    tensorboard = property(lambda self: self.path / "tensorboard")
    evaluation = property(lambda self: self.path / "evaluation")
    process = property(lambda self: self.path / "process.json")
    stopped = property(lambda self: self.path / "stopped.json")
    job = property(lambda self: self.path / "job.json")
    cancelled = property(lambda self: self.path / "cancelled")

    def is_made(self) -> bool:
        """Whether a run has begun here.

        Raises:
            RequestError: where this user may not look.
        """
        try:
            return self.config.exists()
        except PermissionError as error:
            raise _not_writable(self.path, error) from None

    def create(self) -> None:
        """Makes the folder and proves that it can be written.

        Raises:
            RequestError: where it cannot, before anything is started.
        """
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_writable(self.path, error) from None
        self.check_writable()

    def check_writable(self) -> None:
        """Proves that the folder, or the nearest one above it that exists, can be written.

        Raises:
            RequestError: where it cannot.
        """
        folder = self.path
        try:
            folder = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
            # Permissions do not tell: read-only mounts and full disks show only in a write.
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(b"0" * 4096)
        except OSError as error:
            raise _not_writable(folder, error) from None


class DiskRefusal(RequestError):
    """The disk does not take what a run cannot go without."""


@contextmanager
def refusals_told(folder: Path) -> Iterator[None]:
    """Around what writes to a run folder and cannot be done without.

    Raises:
        DiskRefusal: where the disk refuses.
    """
    try:
        yield
    except OSError as error:
        raise _not_writable(folder, error) from None


def _not_writable(folder: Path, error: OSError) -> DiskRefusal:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return DiskRefusal(
        f"cannot write to {folder}",
        seen=f"{error.strerror} ({error.filename or folder})",
        expected="a folder that can be written" + (", on a disk with room" if is_full else ""),
        fix="make room, or output_path=FOLDER" if is_full else "output_path=FOLDER",
    )


def new_run_id() -> str:
    """Returns a name that sorts by time and that two runs started in one second do not share."""
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(2)}"


def existing_run(path: str | Path) -> RunFolder:
    """Returns the folder of a run that was made before.

    Raises:
        RequestError: where the path is no run folder, naming the newest run beside it.
    """
    folder = Path(path).expanduser()
    if (folder / "config.yaml").is_file():
        return RunFolder(folder)
    parent = folder if folder.is_dir() else folder.parent
    runs = sorted(run.parent for run in parent.glob("*/config.yaml")) if parent.is_dir() else []
    raise RequestError(
        f"{folder} is not a run folder",
        seen="no such folder" if not folder.exists() else "no config.yaml in it",
        expected="a folder made by noether train, such as runs/2026-01-31_12-00-00_ab12",
        fix=str(runs[-1]) if runs else "",
    )


def newest_run(output_path: Path) -> RunFolder | None:
    """Returns the run under `output_path` whose checkpoints changed last, or None."""
    folders = [folder for folder in output_path.glob("*/checkpoints") if any(folder.iterdir())]
    return RunFolder(max(folders, key=lambda folder: folder.stat().st_mtime).parent) if folders else None
