"""The runs that a page shows: those that were named, and those in the folders that were named. No torch here."""

import threading
from collections.abc import Sequence
from pathlib import Path

from noether.common.errors import RequestError
from noether.runs.folder import RunFolder, existing_run
from noether.runs.overview import runs_under
from noether.watch.inside import changed
from noether.watch.watched_run import WatchedRun

DEFAULT = "runs"
MOST_RUNS = 2000


class WatchedRuns:
    """Runs by key. A folder's new runs join as they appear, and those that are removed leave."""

    def __init__(self, named: Sequence[Path], folders: Sequence[Path]) -> None:
        self.named, self.folders = tuple(named), tuple(folders)
        self._runs: dict[Path, WatchedRun] = {}
        self._lock = threading.Lock()

    def all(self) -> list[WatchedRun]:
        """Returns the runs that there are now, each once: the named ones, then those of the folders, newest first."""
        paths = list(self.named)
        for folder in self.folders:
            try:
                paths += sorted((run.path for run in runs_under(folder, {})), key=_began, reverse=True)
            except (OSError, RequestError):  # The folder has been removed since.
                continue
        with self._lock:
            found = {path: self._runs.get(path) or WatchedRun(RunFolder(path)) for path in paths[:MOST_RUNS]}
            self._runs = found
            return list(found.values())

    def of(self, keys: Sequence[str]) -> list[WatchedRun]:
        """Returns the runs with these keys, in this order; keys of no run are left out."""
        with self._lock:
            by_key = {run.key: run for run in self._runs.values()}
        if any(key not in by_key for key in keys):
            by_key = {run.key: run for run in self.all()}
        return [by_key[key] for key in dict.fromkeys(keys) if key in by_key]


def find_runs(paths: Sequence[str]) -> WatchedRuns:
    """Returns what `noether watch PATH…` is to show; without a path, the folder `runs`.

    RequestError: a path is neither a run's folder nor a folder of runs.
    """
    named: list[Path] = []
    folders: list[Path] = []
    for text in paths or (DEFAULT,):
        path = Path(text).expanduser()
        run = next((one for one in (path, Path(DEFAULT) / text) if _is_run(one)), None)
        if run is not None:
            named.append(run.absolute())
        elif path.is_dir() and not (path / "checkpoints").is_dir() and (paths or any(path.iterdir())):
            folders.append(path.absolute())
        elif not paths:
            raise RequestError(
                "no-runs-here",
                "there are no runs here",
                seen=f"no folder {DEFAULT} with runs in {Path.cwd()}",
                expected="a run, or a folder of runs, such as the output_path of the runs",
                fix="noether watch FOLDER      (or first: noether train)",
            )
        else:
            named.append(existing_run(path).path.absolute())
    return WatchedRuns(named, folders)


def _is_run(path: Path) -> bool:
    return (path / "config.yaml").is_file() or (path / "job.json").is_file()


def _began(path: Path) -> float:
    return changed(path / "config.yaml") or changed(path / "job.json") or 0.0
