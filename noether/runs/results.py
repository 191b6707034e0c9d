"""result.json: what an evaluation of a split found. No torch here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noether.runs.records import Row, last_evaluation, mapping, parse_record, read_record

VERSION = 2
"""Of result.json. Version 1 had no number; it held errors twice, as `figures` and as `fields`."""

CALIBRATION_VERSION = 2
"""Of evaluation/intervals-….json."""


def read_result(path: Path, warn: Any = lambda text: None) -> dict[str, Any]:
    """Returns what a result.json says, as this version has it; {} where there is none, or where it is damaged."""
    return as_now(read_record(path, warn))


def parse_result(path: Path) -> dict[str, Any]:
    """Returns what a result.json says, as this version has it. OSError, ValueError: it cannot be read."""
    return as_now(parse_record(path))


def newest_metrics(result: Mapping[str, Any], rows: Sequence[Row]) -> tuple[str, Mapping[str, Any]]:
    """Returns a result's split and metrics; before there is one, those of the last evaluation among a run's rows."""
    newest = result if mapping(result, "metrics") else last_evaluation(rows)
    return str(newest.get("split", "")), mapping(newest, "metrics")


def as_now(result: dict[str, Any]) -> dict[str, Any]:
    """Returns a result of version 1 in the form of today: its metrics, of which nothing but their names is known."""
    if "figures" not in result:
        return result
    other = ("figures", "fields", "scalars", "baselines", "baseline_scalars")
    return {**{key: value for key, value in result.items() if key not in other}, "metrics": result["figures"]}


def parse_calibration(path: Path) -> dict[str, Any]:
    """Returns a record of calibrated intervals. OSError, ValueError: it cannot be read, or not by this version."""
    record = parse_record(path)
    if record.get("version") != CALIBRATION_VERSION:
        raise ValueError(f"version {record.get('version')}, where this noether reads {CALIBRATION_VERSION}")
    return record
