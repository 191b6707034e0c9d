"""Read the files of a run folder for the report, and record which are missing or damaged."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from noether.common.numbers import finite
from noether.common.safe_open import open_plain, read_plain
from noether.config.yaml_reader import RunYaml
from noether.runs.folder import RunFolder
from noether.runs.lease import read_attempts
from noether.runs.metrics import Metrics, described_in
from noether.runs.records import Row, mapping, parse_calibration, parse_record, read_metrics
from noether.runs.report.history import History
from noether.runs.report.numbers import Array


class _Span(BaseModel):
    """The lowest and highest value of each component."""

    model_config = ConfigDict(strict=True)
    low: list[float]
    high: list[float]
    unit: str = ""


class _TrainedOn(BaseModel):
    """The ranges in the training split: of the points of each set, and of each parameter."""

    points: dict[str, _Span] = {}
    parameters: dict[str, _Span] = {}


class _Result(BaseModel):
    """The parts of result.json that the page uses."""

    model_config = ConfigDict(strict=True)
    metrics: dict[str, float | None] = {}
    baselines: dict[str, dict[str, float | None]] = {}
    fields: list[str] = []
    scalars: dict[str, dict[str, Any]] = {}
    trained_on: _TrainedOn = _TrainedOn()
    updates: int | None = None
    samples: int | None = None
    world_size: int | None = None
    samples_per_second: float | None = None
    device_use: float | None = None


class _Covered(BaseModel):
    """The share of the test split that one output's intervals cover, for each level."""

    covered: list[float]


class _Calibration(BaseModel):
    """The parts of an evaluation/intervals-….json that the page uses."""

    members: list[str]
    levels: list[int]
    cases: dict[str, int]
    outputs: dict[str, _Covered]

    @model_validator(mode="after")
    def _complete(self) -> "_Calibration":
        if any(len(own.covered) != len(self.levels) for own in self.outputs.values()):
            raise ValueError("expected a share for each level")
        if not {"validation", "test"} <= self.cases.keys():
            raise ValueError("expected cases of both splits")
        return self


class _Metric(BaseModel):
    mean: float
    std: float | None
    n: int


class _SweptRun(BaseModel):
    run: str
    group: str


class _Sweep(BaseModel):
    """The parts of a NAME.sweep.json that the page uses."""

    groups: dict[str, dict[str, _Metric]]
    runs: list[_SweptRun]


def checked_result(path: Path) -> dict[str, Any]:
    """Return the content of result.json. OSError, ValueError: it cannot be read, or entries have the wrong type."""
    content = parse_record(path)
    try:
        _Result.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))} is {first['input']!r:.40}, of the wrong type") from None
    return content


@dataclass(frozen=True)
class ReportedRun:
    """The content of the page. A file that could not be read is empty; `troubles` gives the reason, by file name.

    meta, arrays: the "meta" entry and the arrays of the evaluation's npz. spread: mean, std and n of each metric over
    those runs of its sweep that differ by seed; empty if there are none. calibration: the record of the most recently
    calibrated intervals; empty if there are none. resumed: whether any attempt resumed from a checkpoint; if so, the
    result contains only the last attempt's time.
    """

    run_id: str
    path: Path
    config: str
    plan: Mapping[str, Any]
    environment: Mapping[str, Any]
    result: Mapping[str, Any]
    rows: Sequence[Row]
    meta: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    resumed: bool = False
    troubles: Mapping[str, str] = field(default_factory=dict)
    spread: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    calibration: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The metrics of the test split."""
        return mapping(self.result, "metrics")

    @property
    def seconds(self) -> float | None:
        """The whole training time in seconds; None if it is unknown, or known only for the last attempt."""
        parts = mapping(mapping(self.result, "time_use"), "parts").values()
        return sum(finite(part, 0.0) for part in parts) if parts and not self.resumed else None

    @cached_property
    def described(self) -> Metrics:
        """The descriptions of the metrics, from the plan and the result."""
        return described_in(self.plan, self.result)

    @cached_property
    def history(self) -> History:
        """The curves of the run."""
        history = History()
        history.add(self.rows)
        return history

    @property
    def fields(self) -> list[str]:
        """The names of the fields, in the order of the results."""
        return list(self.result.get("fields") or self.meta.get("fields") or ())

    def unit(self, name: str) -> str:
        """Return a field's unit; "" if unknown."""
        about = (self.meta.get("fields") or {}).get(name) or {}
        return str(about.get("unit") or self.described.find(name, "mae").unit)

    def baseline(self, key: str) -> Mapping[str, Any]:
        """Return the metrics of a baseline; {} if there are none."""
        return mapping(mapping(self.result, "baselines"), key)

    def relative_l2(self, name: str) -> tuple[float | None, float | None]:
        """Return a field's relative L2 for the model and the best baseline; None for a value that is not finite."""
        every = self.metrics, *map(self.baseline, mapping(self.result, "baselines"))
        own, *others = (finite(self.described.of_whole(values, name).get("relative_l2")) for values in every)
        return own, min((other for other in others if other is not None), default=None)

    def sample_metric(self, of: str, measure: str) -> Array | None:
        """Return a measure of a field or scalar, such as relative_l2, for every sample (S,); None if there is none."""
        values = self.arrays.get(f"metrics/{of}/{measure}")
        return None if values is None else np.asarray(values, np.float64).ravel()

    def finite_errors(self, name: str) -> Array:
        """Return the finite relative L2 errors of a field's cases (n,); n = 0 if there are none."""
        values = self.sample_metric(name, "relative_l2")
        return np.empty(0) if values is None else values[np.isfinite(values)]


def read_run(folder: RunFolder) -> ReportedRun:
    """Read a run folder; leave out missing or damaged files and name them in `troubles`."""
    troubles: dict[str, str] = {}

    def read(path: Path, reader: Callable[[Path], Any], empty: Any) -> Any:
        try:
            return reader(path)
        except FileNotFoundError:
            troubles[path.name] = f"There is no {path.name}"
        except Exception as error:  # A damaged archive may raise a dozen kinds of exceptions.
            troubles[path.name] = f"{path.name} cannot be read ({type(error).__name__}: {error})"
        return empty

    def read_history(path: Path) -> list[dict[str, Any]]:
        path.stat()  # Raises if the file is missing.
        damaged: list[str] = []
        rows = read_metrics(path, damaged.append)
        if damaged:
            more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
            troubles[path.name] = damaged[0].replace(str(path), path.name) + more
        return rows

    result = read(folder.result, checked_result, {})
    meta, arrays = read(folder.evaluation / "test.npz", read_evaluation, ({}, {}))
    return ReportedRun(
        run_id=folder.run_id,
        path=folder.path,
        config=read(folder.config, lambda path: read_plain(path, RunYaml.most_bytes).decode(), ""),
        plan=read(folder.plan, parse_record, {}),
        environment=read(folder.environment, parse_record, {}),
        result=result,
        resumed=any(attempt.start_update for attempt in read_attempts(folder)),
        rows=read(folder.metrics, read_history, []),
        meta=meta,
        arrays=arrays,
        troubles=troubles,
        spread=_spread_of_seeds(folder.path.resolve()),
        calibration=_last_calibration(folder.evaluation),
    )


def _spread_of_seeds(run: Path) -> dict[str, dict[str, float]]:
    """Return mean, std and n of each metric with n > 1 over the run's group in its sweep; {} if there is no sweep."""
    for path in sorted(run.parent.glob("*.sweep.json")):
        with suppress(OSError, ValueError):
            sweep = _Sweep.model_validate(parse_record(path))
            for one in sweep.runs:
                if Path(one.run).name == run.name:
                    group = sweep.groups.get(one.group, {})
                    return {name: metric.model_dump() for name, metric in group.items() if metric.n > 1}
    return {}


def _last_calibration(evaluation: Path) -> dict[str, Any]:
    """Return the newest readable record of calibrated intervals; {} if there is none."""
    for path in sorted(evaluation.glob("intervals-*.json"), key=lambda path: path.lstat().st_mtime, reverse=True):
        with suppress(OSError, ValueError):
            return _Calibration.model_validate(parse_calibration(path)).model_dump()
    return {}


def read_evaluation(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the "meta" and the arrays of an evaluation's npz; a damaged file may raise any exception."""
    with open_plain(path) as opened, np.load(opened, allow_pickle=False) as file:
        return json.loads(str(file["meta"])), {key: file[key] for key in file.files if key != "meta"}
