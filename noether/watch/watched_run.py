"""A run as the page shows it, read from its folder; each byte of its history is read once. Does not import torch."""

import itertools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from noether.checkpoints.table import describe_checkpoints
from noether.common.errors import RequestError
from noether.common.numbers import size_text
from noether.common.sanitize import shown_name
from noether.launch.processes.failure import is_consequence
from noether.launch.processes.link import report_from
from noether.launch.processes.worker import error_file
from noether.runs import overview, records
from noether.runs.folder import RunFolder, existing_run
from noether.runs.lease import read_attempts
from noether.runs.logs import rank_logs
from noether.runs.metrics import Metric, Metrics, described_in, weights_name
from noether.runs.records import LONGEST_ROW, Row, is_count, last_evaluation, mapping, parse_row
from noether.runs.report.history import Evaluation, History
from noether.watch.inside import KeptReadings, changed, flat_settings, is_inside, log_part, opened_inside
from noether.watch.pictures import Pictures

MOST_PER_READ = 4 * 2**20
"""The maximum number of bytes to read at a time. Parsing them takes about 0.1 s, which delays other requests."""
FURTHEST_BACK = 2**26
"""How far from the end of a history its last evaluation is searched for, in bytes."""
_FINGERPRINT = 64


class FollowedRows:
    """The rows of a metrics.jsonl. Each call of `read` continues where the previous call ended.

    A file that was replaced (a resumed run writes a new one), truncated, or rewritten in place is read again from its
    beginning; `generation` counts how often this happens.
    """

    def __init__(self, root: Path, path: Path) -> None:
        self.root, self.path = root, path
        self.generation = 0
        self.damaged = 0
        self.offset, self.size = 0, 0
        self._file_id: tuple[int, int] | None = None
        self._seen = b""
        self._rest = b""
        self._skipping = False

    def read(self) -> tuple[list[Row], bool]:
        """Return the next rows, and whether they are from the beginning of a replaced or rewritten file.

        An incomplete last line is kept until its end arrives; damaged lines are counted. One call reads at most
        MOST_PER_READ bytes: if `offset` < `size` afterwards, the file has more.
        """
        try:
            with opened_inside(self.root, self.path) as file:
                anew = self._begin(file)
                file.seek(self.offset)
                content = file.read(MOST_PER_READ)
        except OSError:
            anew = self._file_id is not None
            self._forget(None)
            return [], anew
        self.offset += len(content)
        self._seen = (self._seen + content)[-_FINGERPRINT:]
        return self._rows(content), anew

    def _begin(self, file: BinaryIO) -> bool:
        status = os.fstat(file.fileno())
        self.size = status.st_size
        file_id = (status.st_dev, status.st_ino)
        file.seek(self.offset - len(self._seen))
        as_before = file_id == self._file_id and self.size >= self.offset and file.read(len(self._seen)) == self._seen
        if as_before:
            return False
        is_first = self._file_id is None
        self._forget(file_id)
        return not is_first

    def _forget(self, file_id: tuple[int, int] | None) -> None:
        if self._file_id is not None:
            self.generation += 1
        self._file_id = file_id
        self.offset, self.damaged = 0, 0
        self._seen = self._rest = b""
        self._skipping = False

    def _rows(self, content: bytes) -> list[Row]:
        *lines, rest = (self._rest + content).split(b"\n")
        if self._skipping and lines:
            lines, self._skipping = lines[1:], False
        if len(rest) > LONGEST_ROW:
            self.damaged += not self._skipping
            rest, self._skipping = b"", True
        self._rest = b"" if self._skipping else rest
        rows = [_metrics_row(line) for line in lines if line.strip()]
        self.damaged += rows.count(None)
        return [row for row in rows if row is not None]


def _metrics_row(line: bytes) -> Row | None:
    """Return the row in a line; None if the line is damaged."""
    try:
        row = parse_row(line)
    except ValueError:
        return None
    return row if records.is_metrics_row(row) else None


def last_rows(root: Path, path: Path, size: int = 2**16) -> list[Row]:
    """Return the rows in the last `size` bytes of a file; an empty list if the file is unreadable.

    If these rows contain no evaluation of the selected weights, also return evaluations from before them.
    """
    rows: list[Row] = []
    cut = b""  # This is the end of a line whose beginning is not read yet.
    try:
        with opened_inside(root, path) as file:
            end = length = os.fstat(file.fileno()).st_size
            while end > 0 and not last_evaluation(rows) and length - end < FURTHEST_BACK:
                start = max(0, end - (size if end == length else MOST_PER_READ))
                file.seek(start)
                cut, *lines = (file.read(end - start) + cut).split(b"\n")
                lines = lines if start else [cut, *lines]
                # The text after the last line end is an incomplete line.
                lines = lines[:-1] if end == length else [line for line in lines if b'"evaluation"' in line]
                rows = [row for line in lines if (row := _metrics_row(line)) is not None] + rows
                end = start
    except OSError:
        return []
    return rows


SILENT = "silent"
"""The state of an unfinished run on another host that has not written anything for an unusually long time."""
LEAST_PATIENCE_S = 60.0
_PATIENCE = 5


@dataclass(frozen=True)
class Liveness:
    """The state of a run, and the reason for this state.

    last_sign: the time of the run's last write, in seconds since the epoch; None if the run has written nothing.
    """

    state: str
    why: str
    last_sign: float | None


def read_liveness(folder: RunFolder, recent: Sequence[Row], now: float | None = None) -> Liveness:
    """Determine a run's state from its folder and, for a run on this host, from its process.

    `recent`: the run's last training rows, which show how often it writes. `now`: seconds since the epoch.
    """
    now = time.time() if now is None else now
    attempt = overview.last_attempt(folder)
    state, why = overview.state_and_reason(folder, attempt, None)
    logs = folder.logs.glob("rank-*.log") if folder.logs.is_dir() else ()
    times = map(changed, (folder.metrics, folder.attempt, folder.plan, *logs))
    sign = max((moment for moment in times if moment is not None), default=None)
    if attempt is None and state == overview.LOST and (job := overview.submitted_job(folder)):
        return Liveness(overview.WAITING, f"submitted as job {job}, not started yet", sign)
    if state == overview.LOST and attempt is not None and attempt.exit_code is None and attempt.alive() is None:
        patience, silent_for = patience_s(recent), now - (sign or attempt.began)
        where = f"on {attempt.host}, judged by its folder"
        if silent_for <= patience:
            return Liveness(overview.RUNNING, where, sign)
        return Liveness(SILENT, f"{where}; nothing was written for longer than {patience:.0f} s", sign)
    return Liveness(state, why, sign)


def patience_s(recent: Sequence[Row]) -> float:
    """Return the time (s) after which a run counts as silent: at least 60 s, or 5 times its longest recent pause."""
    times = [moment for row in recent if (moment := records.number(row, "time")) is not None]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return max(LEAST_PATIENCE_S, _PATIENCE * max(gaps, default=0.0))


READ_S = 0.4
"""The time (s) that an answer spends on reading a history. The next answer continues where it ended."""
PLAN = ("launcher", "world_size", "nodes", "endpoint", "batch", "length", "data", "model", "reasons", "warnings")
RANKS_SHOWN = 512
CHECKPOINTS_SHOWN = 100


class WatchedRun:
    """A run, with the data that have been read from its folder so far. Thread-safe."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.name = folder, shown_name(folder.path.absolute().name)
        self.key = sha256(str(folder.path.absolute()).encode(errors="surrogateescape")).hexdigest()[:16]
        self.pictures = Pictures(folder)
        self._followed = FollowedRows(folder.path, folder.metrics)
        self._history = History()
        self._lock = threading.Lock()
        self._kept = KeptReadings(folder.path)
        self._seen_checkpoints: tuple[int, list[dict[str, Any]]] = (0, [])

    def line(self) -> dict[str, Any]:
        """Return the run's entry in the list of runs. Only the end of its history is read for it."""
        rows = self._last_rows()
        training = [row for row in rows if row["kind"] == "training"]
        return {
            **self._summary(read_liveness(self.folder, training[-records.RECENT_ROWS :]), training),
            "update": records.last_update(rows),
        }

    def _last_rows(self) -> list[Row]:
        return self._kept.of(self.folder.metrics, lambda path: last_rows(self.folder.path, path), [])

    def _summary(self, seen: Liveness, recent: Sequence[Row]) -> dict[str, Any]:
        """Return the values that are both in the list of runs and on the page of one run."""
        total = overview.planned_updates(self._record(self.folder.plan))
        left = overview.seconds_left(recent, total) if seen.state == overview.RUNNING else None
        return {"key": self.key, "name": self.name, **vars(seen), "total": total, "seconds_left": left}

    def detail(self, *, brief: bool = False) -> dict[str, Any]:
        """Return everything that the page shows about a run, except its curves, its logs and the pictures themselves.

        With `brief=True`, leave out the list of pictures, the settings and the environment.
        """
        with self._lock:
            self._read_on()
            history, recent = self._history, list(self._history.recent)
            seen, pace = read_liveness(self.folder, recent), history.recent_pace()
            plan = self._record(self.folder.plan)
            return {
                **self._summary(seen, recent),
                "brief": brief,
                "now": time.time(),
                "update": history.update,
                "epoch": history.epoch,
                "epochs": records.number(mapping(plan, "length"), "epochs"),
                "reading": self._reading(),
                "damaged": self._followed.damaged,
                "pace": pace,
                "last": self._evaluation(history.last),
                "best": self._evaluation(history.best),
                "result": self._final(),
                "time": _whole_time(history),
                "plan": {name: plan.get(name) for name in PLAN},
                "ranks": self._ranks(seen.state, pace["slowest"]),
                "attempts": [asdict(attempt) for attempt in read_attempts(self.folder)[-50:]],
                "checkpoints": self._checkpoints(),
                "selected_by": shown_metric(history.selected_by),
                "pictures": [] if brief else [picture.described() for picture in self.pictures.listing()],
                "settings": {} if brief else self.settings(),
                "environment": {} if brief else self._environment(),
            }

    def curves(self, have: str, buckets: int, low: float, high: float) -> dict[str, Any]:
        """Return the curves from update `low` to `high`; only their version if the page has it (`have`)."""
        with self._lock:
            self._read_on()
            version, described = f"{self._followed.generation}.{self._history.rows}", self.described
            if version == have:
                return {"key": self.key, "version": version}
            x, bands = self._history.time_shares(buckets, low, high)
            shares = {name: np.round(share, 5).tolist() for name, share in bands.items()}
            return {
                "key": self.key,
                "name": self.name,
                "version": version,
                "reading": self._reading(),
                "curves": [
                    {
                        "split": split,
                        "weights": weights and weights_name(weights),
                        "selected": weights == self._history.selected_weights.get(split, ""),
                        "metric": name,
                        "x": x,
                        "y": y,
                    }
                    for (split, weights, name), (x, y) in self._history.thinned(buckets, low, high).items()
                ],
                "described": {name: shown_metric(described[name]) for _, _, name in self._history.curves},
                "clock": self._history.clock(),
                "times": {"x": x.tolist(), "bands": shares},
            }

    def settings(self) -> dict[str, str]:
        """Return the run's settings by dotted name."""
        return self._kept.of(self.folder.config, lambda path: flat_settings(self.folder.path, path), {})

    @property
    def described(self) -> Metrics:
        """The descriptions of the run's metrics."""
        return described_in(self._record(self.folder.plan), self._result())

    def final_metrics(self) -> dict[str, float]:
        """Return the metrics in result.json; an empty dict if the run is not done."""
        return records.finite_values(mapping(self._result(), "metrics"))

    def table_row(self) -> dict[str, Any]:
        """Return the run's row for the table, except what `line` returns: settings, and final or newest metrics."""
        split, metrics = records.newest_metrics(self._result(), self._last_rows())
        return {"key": self.key, "split": split, "metrics": records.finite_values(metrics), "settings": self.settings()}

    def table(self) -> list[tuple[str, str, str, float, float]]:
        """Return (split, weights, metric, update, value) for every logged value."""
        with self._lock:
            while self._reading() < 1 or not self._followed.size:
                before = self._followed.offset
                self._read_on()
                if self._followed.offset == before:
                    break
            return list(self._history.table())

    def last_evaluation(self) -> Evaluation | None:
        """Return the last evaluation in the part of the history that has been read."""
        with self._lock:
            return self._history.last

    def log(self, rank: int | None, start: int | None) -> dict[str, Any]:
        """Return a rank's log from byte `start` on, as `log_part` returns it.

        OSError: there is no such log (there is none for rank None), or the log cannot be read.
        """
        path = self._logs().get(-1 if rank is None else rank)
        if path is None:
            raise FileNotFoundError(f"no log of rank {rank}")
        return log_part(self.folder, path, start)

    def _logs(self) -> dict[int, Path]:
        logs = rank_logs(self.folder)
        return {rank: path for rank, path in logs.items() if is_inside(self.folder.path, path)}

    def _read_on(self) -> None:
        until = time.monotonic() + READ_S
        selected_by = self.described.selected_by(self.settings().get("trainer.select_by", "loss"))
        while True:
            rows, anew = self._followed.read()
            if anew:
                self._history = History()
            self._history.selected_by = selected_by
            self._history.add(rows)
            if self._followed.offset >= self._followed.size or time.monotonic() > until:
                return

    def _reading(self) -> float:
        """Return which share of the history has been read, from 0 to 1."""
        return self._followed.offset / self._followed.size if self._followed.size else 1.0

    def _record(self, path: Path) -> Mapping[str, Any]:
        return self._kept.of(path, records.read_record, {})

    def _ranks(self, state: str, slowest: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        plan, logs = self._record(self.folder.plan), self._logs()
        nodes = [str(node) for node in plan.get("nodes") or ()] if isinstance(plan.get("nodes"), list) else []
        workers = [one for one in plan.get("workers") or () if isinstance(one, Mapping) and is_count(one.get("rank"))]
        about = {worker["rank"]: worker for worker in workers}
        size = plan.get("world_size")
        known = set(range(min(size, RANKS_SHOWN))) if is_count(size) else set()
        rows = []
        for rank in sorted(known | set(about) | set(logs))[:RANKS_SHOWN]:
            worker = about.get(rank, {})
            node = worker.get("node_rank")
            planned = nodes[node] if is_count(node) and node < len(nodes) else None
            rows.append(
                {
                    "rank": rank,
                    "host": self._history.hosts.get(rank) or planned,
                    "device": str(worker.get("device", "")),
                    "state": self._rank_state(state, rank, has_log=rank in logs),
                    "last_sign": changed(logs[rank]) if rank in logs else None,
                    "has_log": rank in logs,
                    "slowest": slowest is not None and slowest.get("rank") == rank,
                }
            )
        return rows

    def _rank_state(self, state: str, rank: int, *, has_log: bool) -> str:
        """Return a rank's state: the run's or, in a failed or lost run, "failed" or "ended", by the rank's report."""
        if state not in (overview.FAILED, overview.LOST) or not has_log:
            return state if has_log or state != overview.RUNNING else "no log yet"
        try:
            report = report_from(self._record(error_file(self.folder.logs, rank)))
        except (KeyError, TypeError, ValueError):  # The rank has written no report.
            return "ended"
        return "ended" if is_consequence(report) else overview.FAILED

    def _checkpoints(self) -> list[dict[str, Any]]:
        """Return the newest checkpoints, which are read again only after the folder's entries have changed."""
        try:
            at = self.folder.checkpoints.stat().st_mtime_ns
            if self._seen_checkpoints[0] != at:
                rows = describe_checkpoints(self.folder, verify=False)[-CHECKPOINTS_SHOWN:]
                shown = [{**asdict(row), "saved": time.time() - row.age_s, "size": size_text(row.size)} for row in rows]
                self._seen_checkpoints = at, shown
        except OSError:
            return []
        return self._seen_checkpoints[1]

    def _result(self) -> Mapping[str, Any]:
        return self._record(self.folder.result)

    def _shown(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        return self.described.headlines(metrics, overview.HEADLINES_SHOWN)

    def _evaluation(self, evaluation: Evaluation | None) -> dict[str, Any] | None:
        if evaluation is None:
            return None
        return {"update": evaluation.update, "split": evaluation.split, "shown": self._shown(evaluation.metrics)}

    def _final(self) -> dict[str, Any] | None:
        result = self._result()
        shown, weights = self._shown(mapping(result, "metrics")), result.get("weights")
        about = {"split": result.get("split"), "weights": weights and weights_name(weights)}
        return {**about, "shown": shown} if shown else None

    def _environment(self) -> dict[str, str]:
        record = self._record(self.folder.environment)
        names = ("noether", "python", "git_revision", "driver", "nccl", "host", "platform", "cpus", "started")
        found = {name: str(record[name]) for name in names if record.get(name) is not None}
        packages = mapping(record, "packages")
        return found | {str(name): str(version) for name, version in list(packages.items())[:50]}


def shown_metric(metric: Metric) -> dict[str, Any]:
    """Return the description of a metric that the page needs to show its values."""
    return {**asdict(metric), "title": metric.title}


def _whole_time(history: History) -> dict[str, Any] | None:
    """Return the time (s) that the last attempt took, by part and by rank; None if the attempt has not ended."""
    row = history.whole_time
    if not row:
        return None
    ranks = row.get("ranks")
    return {
        "seconds": records.number(row, "seconds"),
        "parts": dict(mapping(row, "parts")),
        "slowest": dict(mapping(row, "slowest")),
        "ranks": ranks[:RANKS_SHOWN] if isinstance(ranks, list) else [],
    }


MOST_RUNS = 2000


class WatchedRuns:
    """The runs to show. Those in a folder are looked up again for each list, so new and removed runs are noticed."""

    def __init__(self, named: Sequence[Path], folders: Sequence[Path]) -> None:
        self.named, self.folders = tuple(named), tuple(folders)
        self._runs: dict[Path, WatchedRun] = {}
        self._lock = threading.Lock()

    def all(self) -> list[WatchedRun]:
        """Return the current runs without duplicates: the named runs, then those in the folders, newest first."""
        paths = list(self.named)
        for folder in self.folders:
            try:
                paths += sorted((run.path for run in overview.runs_under(folder, {})), key=_began, reverse=True)
            except (OSError, RequestError):  # The folder has been removed.
                continue
        with self._lock:
            found = {path: self._runs.get(path) or WatchedRun(RunFolder(path)) for path in paths[:MOST_RUNS]}
            self._runs = found
            return list(found.values())

    def of(self, keys: Sequence[str]) -> list[WatchedRun]:
        """Return the runs with these keys, in this order; unknown keys are skipped."""
        with self._lock:
            by_key = {run.key: run for run in self._runs.values()}
        if any(key not in by_key for key in keys):
            by_key = {run.key: run for run in self.all()}
        return [by_key[key] for key in dict.fromkeys(keys) if key in by_key]


def find_runs(paths: Sequence[str]) -> WatchedRuns:
    """Return the runs that `noether watch PATH…` shows; without a path, the runs in the folder `runs`.

    RequestError: a path is neither a run's folder nor a folder of runs.
    """
    named: list[Path] = []
    folders: list[Path] = []
    for text in paths or (overview.DEFAULT_FOLDER,):
        path = Path(text).expanduser()
        places = (RunFolder(path), RunFolder(Path(overview.DEFAULT_FOLDER) / text))
        run = next((one.path for one in places if one.config.is_file() or one.job.is_file()), None)
        if run is not None:
            named.append(run.absolute())
        elif path.is_dir() and not (path / "checkpoints").is_dir() and (paths or any(path.iterdir())):
            folders.append(path.absolute())
        elif not paths:
            raise RequestError("no-runs-here", "there are no runs here",
                               seen=f"no folder {overview.DEFAULT_FOLDER} with runs in {Path.cwd()}",
                               expected="a run, or a folder of runs, such as the output_path of the runs",
                               fix="noether watch FOLDER      (or first: noether train)")  # fmt: skip
        else:
            named.append(existing_run(path).path.absolute())
    return WatchedRuns(named, folders)


def _began(path: Path) -> float:
    return changed(path / "config.yaml") or changed(path / "job.json") or 0.0
