"""The files of a run folder, and how an earlier run is found. No torch here."""

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
"""The name of a checkpoint: the updates it was written after. One that is half-written, or a copy, has another."""
REPLACED = ".replaced-"
"""Between the name of a run that was started over and the number of its earlier folder."""


class _Inside:
    """A file or folder of a run, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunFolder", owner: type["RunFolder"]) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """The files of one run, by name."""

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
        """The run's name: its folder's own, whatever link leads there."""
        return self.path.resolve().name

    def holds_work(self) -> bool:
        """Return whether a run has made anything here that a new one would overwrite: rows, checkpoints, a result.

        A start that failed in its first batch has not. RequestError: this user may not look, or the disk is silent.
        """
        with refusals_told(self.path, DISK_ERRNOS):
            rows = self.metrics.is_file() and self.metrics.stat().st_size > 0
            found = rows or self.result.exists() or bool(checkpoint_paths(self.checkpoints))
        return found

    def create(self) -> None:
        """Make the folder and prove that it can be written, or raise DiskRefusal."""
        with refusals_told(self.path):
            refuse_strangers_link(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            make_folder(self.logs)
        self.check_writable()

    def look_afresh(self) -> None:
        """Has a network file system ask its server which names are in the folder, and among its checkpoints.

        What another host wrote is else seen minutes later: NFS asks again once this host has made a name in a folder.
        """
        for folder in (self.path, self.checkpoints):
            with suppress(OSError):
                refuse_strangers_link(folder)
                tempfile.NamedTemporaryFile(dir=folder, prefix=".removed-").close()

    def check_writable(self, elsewhere: str = ELSEWHERE) -> None:
        """Prove that the folder, or the nearest above it that exists, can be written, or raise DiskRefusal."""
        with refusals_told(self.path, elsewhere=elsewhere):
            folder = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        # Permissions do not tell: read-only mounts and full disks show only in a write.
        with refusals_told(folder, elsewhere=elsewhere), tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"0" * 4096)

    def as_copy(self, command: str, copy: str = "COPY") -> str:
        """Return the line that has a command of noether write to a copy, where the run can only be read."""
        return f"cp -r --no-preserve=mode {shlex.quote(str(self.path))} COPY && noether {command} {copy}"


TOLD = "NOETHER_TELL_RUN"
"""The variable with the file in which whoever has started a training from Python learns its run's folder."""


def new_run_id() -> str:
    """Return a name that sorts by time and that two runs started in one second do not share."""
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(2)}"


def existing_run(path: str | Path, form: str = "{}") -> RunFolder:
    """Return the folder of a run that was made before: a path, or a name in runs/.

    `form` is how a run is typed there, {} for its folder; "" where nothing but what was named may be proposed.
    RequestError: the path is not a run folder; it names the run that has a name like it.
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
    """Return the run that a user names, RUN or RUN/checkpoints/NAME, and the name of the checkpoint, if it is one.

    RUN is a path or a name in runs/. Where there is no run as typed, links and the working folder are followed; where
    there is none then, it is as typed.
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
    """Return the checkpoints in a run's folder of them, oldest first."""
    named = [path for path in folder.glob(f"{UPDATE}*") if CHECKPOINT.fullmatch(path.name)]
    return sorted(named, key=lambda path: int(path.name.removeprefix(UPDATE)))


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run which has begun."""
    return (folder / "config.yaml").is_file() or bool(checkpoint_paths(folder / "checkpoints"))


def newest_run(output_path: Path) -> RunFolder | None:
    """Return the run under `output_path` that saved a checkpoint last, or None; none that was started over."""
    saved: dict[Path, float] = {}
    # By the checkpoints' own times: that of their folder changes when one is removed, too.
    for path in (path for folder in output_path.glob("*/checkpoints") for path in checkpoint_paths(folder)):
        run = path.parent.parent
        with suppress(FileNotFoundError):
            if REPLACED not in run.name:
                saved[run] = max(saved.get(run, 0.0), path.stat().st_mtime)
    return RunFolder(max(saved, key=saved.__getitem__)) if saved else None
