"""The files of a run folder, and how to find the folder of an existing run. No torch here."""

import re
import secrets
import shlex
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from noether.common.atomic_write import DISK_ERRNOS, ELSEWHERE, refusals_told
from noether.common.errors import RequestError
from noether.common.safe_open import make_folder, refuse_strangers_link
from noether.common.suggest import nearest

UPDATE = "update-"
CHECKPOINT = re.compile(rf"{UPDATE}\d{{9,18}}")
"""Pattern of checkpoint names: `update-` and the number of updates. Partial checkpoints and copies do not match."""
REPLACED = ".replaced-"
"""Middle part of the name RUN.replaced-1 of a run folder that was moved away so that its run could start over."""


class _Inside:
    """Descriptor that returns the path of a file or folder in a run folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunFolder", owner: type["RunFolder"]) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run's files."""

    path: Path

    config = _Inside("config.yaml")
    plan = _Inside("plan.json")
    environment = _Inside("environment.json")
    metrics = _Inside("metrics.jsonl")
    result = _Inside("result.json")
    report = _Inside("report.html")
    attempt = _Inside("attempt.json")
    attempts = _Inside("attempts.jsonl")
    logs = _Inside("logs")
    checkpoints = _Inside("checkpoints")
    tensorboard = _Inside("tensorboard")
    evaluation = _Inside("evaluation")
    latest_case = _Inside("evaluation/latest.npz")
    stopped = _Inside("stopped.json")
    job = _Inside("job.json")
    cancelled = _Inside("cancelled")

    @property
    def run_id(self) -> str:
        """The run's name: the name of its folder, with links resolved."""
        return self.path.resolve().name

    def holds_work(self) -> bool:
        """Return whether the folder contains anything that a new run would overwrite: rows, checkpoints or a result.

        A run that failed in its first batch leaves none of these. RequestError: the folder or its disk is unreadable.
        """
        with refusals_told(self.path, DISK_ERRNOS):
            rows = self.metrics.is_file() and self.metrics.stat().st_size > 0
            found = rows or self.result.exists() or bool(checkpoint_paths(self.checkpoints))
        return found

    def create(self) -> None:
        """Make the folder and check that it is writable; raise DiskRefusal if not."""
        with refusals_told(self.path):
            refuse_strangers_link(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            make_folder(self.logs)
        self.check_writable()

    def look_afresh(self) -> None:
        """Make a network file system list the run folder and its checkpoints afresh.

        Otherwise files that other hosts wrote may appear minutes late. Creating a file makes NFS reread the folder.
        """
        for folder in (self.path, self.checkpoints):
            with suppress(OSError):
                refuse_strangers_link(folder)
                tempfile.NamedTemporaryFile(dir=folder, prefix=".removed-").close()

    def check_writable(self, elsewhere: str = ELSEWHERE) -> None:
        """Check that the folder, or its nearest existing parent, is writable; raise DiskRefusal if not."""
        with refusals_told(self.path, elsewhere=elsewhere):
            folder = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        # Permissions are not enough: read-only mounts and full disks show only in a write.
        with refusals_told(folder, elsewhere=elsewhere), tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"0" * 4096)

    def as_copy(self, command: str, copy: str = "COPY") -> str:
        """Return a command line that copies a read-only run and runs a noether command on the copy."""
        return f"cp -r --no-preserve=mode {shlex.quote(str(self.path))} COPY && noether {command} {copy}"


TOLD = "NOETHER_TELL_RUN"
"""Environment variable: the file to which a training run writes its run folder, for the Python code that started it."""


def new_run_id() -> str:
    """Return a name that sorts by time and has a random suffix, so that runs started in the same second differ."""
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(2)}"


def existing_run(path: str | Path, form: str = "{}") -> RunFolder:
    """Return the folder of an existing run, given as a path or as a name in runs/.

    form: the line that the error proposes, with {} for the most similar run folder; "" to propose no run.
    RequestError: the path is not a run folder.
    """
    run, name = named_run(path)
    if name is None and is_run(run):
        return RunFolder(run)
    folder = Path(path).expanduser()
    around = next((parent for parent in (folder, *folder.parents) if is_run(parent)), None)
    places = dict.fromkeys(place for place in (folder, folder.parent, Path("runs")) if place.is_dir())
    runs = {run.parent.name: run.parent for place in places for run in sorted(place.glob("*/config.yaml"))}
    near = around or runs.get(nearest(folder.name, runs) or "")
    place = runs[min(runs)].parent if runs else None
    listed = "noether status" + (f" --output-path {place}" if place not in (None, Path("runs")) else "")
    fix = f"{listed}      (lists the runs)" if runs else "noether train      (makes a run)"
    raise RequestError("not-a-run-folder", f"{folder} is not a run folder",
                       seen="no such folder" if not folder.exists() else "no config.yaml in it",
                       expected="a folder made by noether train, such as runs/2026-01-31_12-00-00_ab12",
                       fix=form.format(near) if near and form else fix)  # fmt: skip


def named_run(named: str | Path) -> tuple[Path, str | None]:
    """Split RUN or RUN/checkpoints/NAME into the run's path and the checkpoint's name (None if only a run is named).

    RUN is a path or a name in runs/. If there is no run at the path as typed, resolve its links and relative parts; if
    there is no run at the resolved path either, split the path as typed.
    """
    typed = Path(named).expanduser()
    for place in (typed, Path("runs") / typed):
        for path in (place, place.resolve()) if place.exists() else (place,):
            run, name = _split(path)
            if is_run(run):
                return run, name
    return _split(typed)


def _split(path: Path) -> tuple[Path, str | None]:
    return (path.parent.parent, path.name) if path.parent.name == "checkpoints" else (path, None)


def checkpoint_paths(folder: Path) -> list[Path]:
    """Return the paths of the checkpoints in a run's checkpoint folder, oldest first."""
    named = [path for path in folder.glob(f"{UPDATE}*") if CHECKPOINT.fullmatch(path.name)]
    return sorted(named, key=lambda path: int(path.name.removeprefix(UPDATE)))


def is_run(folder: Path) -> bool:
    """Return whether a folder belongs to a run that has started: it has a config.yaml or a checkpoint."""
    return (folder / "config.yaml").is_file() or bool(checkpoint_paths(folder / "checkpoints"))


def newest_run(output_path: Path) -> RunFolder | None:
    """Return the run under `output_path` that saved the newest checkpoint, or None. Ignore folders set aside."""
    saved: dict[Path, float] = {}
    # Use the checkpoints' own times: their parent folder's time also changes when a checkpoint is removed.
    for path in (path for folder in output_path.glob("*/checkpoints") for path in checkpoint_paths(folder)):
        run = path.parent.parent
        with suppress(FileNotFoundError):
            if REPLACED not in run.name:
                saved[run] = max(saved.get(run, 0.0), path.stat().st_mtime)
    return RunFolder(max(saved, key=saved.__getitem__)) if saved else None
