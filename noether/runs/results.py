"""result.json: what an evaluation of a split found. No torch here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noether.runs.metrics import Metric, Metrics
from noether.runs.records import mapping, parse_record, read_record

VERSION = 2
"""Of result.json. Version 1 had no number; it held errors twice, as `figures` and as `fields`."""
_RATIOS = ("relative_l2", "pooled_relative_l2", "weighted_relative_l2", "accuracy")
_SCORES = ("r2", "spearman", "mae", "max", "floor_r2", "floor_mae")


def read_result(path: Path, warn: Any = lambda text: None) -> dict[str, Any]:
    """Returns what a result.json says, as this version has it; {} where there is none, or where it is damaged."""
    return as_now(read_record(path, warn))


def parse_result(path: Path) -> dict[str, Any]:
    """Returns what a result.json says, as this version has it. OSError, ValueError: it cannot be read."""
    return as_now(parse_record(path))


def as_now(result: dict[str, Any]) -> dict[str, Any]:
    """Returns a result of version 1 in the form of today: with its values, and the direction and form of the usual."""
    if "figures" not in result or "metrics" in result:
        return result
    old = {key: result.pop(key, {}) for key in ("figures", "fields", "scalars", "baselines", "baseline_scalars")}
    found = {key: value if isinstance(value, Mapping) else {} for key, value in old.items()}
    values: dict[str, Any] = dict(found["figures"])
    for name in found["fields"]:
        values |= _flat(name, mapping(found["fields"], name))
    for name in found["scalars"]:
        values |= {f"{name}/{key}": own for key, own in mapping(found["scalars"], name).items() if key in _SCORES}
    baselines = {
        one: {name: own for field in rows for name, own in _flat(field, mapping(rows, field)).items()}
        for one in found["baselines"]
        if (rows := mapping(found["baselines"], one))
    }
    known = Metrics.of(*(_guessed(name, found["fields"], found["scalars"]) for name in values))
    facts = {
        name: {key: own for key, own in mapping(found["scalars"], name).items() if key not in _SCORES}
        for name in found["scalars"]
    }
    now = {"metrics": values, "described": known.described(), "baselines": baselines}
    return {**result, **now, **({"fields": list(found["fields"]), "scalars": facts} if found["fields"] else {})}


def _flat(stem: str, row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in row.items():
        if key == "components" and isinstance(value, Mapping):
            for part in value:
                found |= _flat(f"{stem}/{part}", mapping(value, part))
        elif key == "parts" and isinstance(value, Mapping):
            for part in value:
                found |= _flat(f"{stem}/on {part}", mapping(value, part))
        else:
            found[f"{stem}/{key}"] = value
    return found


def _guessed(name: str, fields: Mapping[str, Any], scalars: Mapping[str, Any]) -> Metric:
    """What the name of a metric says of it: version 1 said nothing else, and left out units."""
    of, _, rest = name.partition("/")
    part, _, measure = rest.rpartition("/")
    if of in scalars:
        scored = {"r2": "higher", "spearman": "higher", "mae": "lower", "max": "lower"}
        label = {"r2": "R²", "spearman": "Spearman"}.get(measure, measure)
        better, is_score = scored.get(measure, ""), label != measure
        return Metric(name, "", better, label, of, headline=measure == "r2", score=is_score)  # type: ignore[arg-type]
    labels = {"relative_l2": "relative L2", "pooled_relative_l2": "pooled", "mse": "MSE", "mae": "MAE"}
    part = "weighted by area or volume" if measure.startswith("weighted_") else part
    label = labels.get(measure.removeprefix("weighted_"), measure)
    unit = "%" if (measure or name) in _RATIOS else ""
    better = "higher" if name == "accuracy" else "lower" if of in fields or name == "loss" else ""
    headline = name == "accuracy" or (measure == "relative_l2" and not part)
    of = of if of in fields else ""
    return Metric(name, unit, better, label or "", of, part, headline=headline)  # type: ignore[arg-type]
