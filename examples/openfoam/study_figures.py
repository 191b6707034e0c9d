"""Compute the figures of a study: the results of each run, and a Markdown table of their means over the seeds."""

import json
import os
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

GROUPS = {
    "upt": "UPT",
    "ab_upt": "AB-UPT",
    "transformer": "Transformer",
    "transolver": "Transolver",
    "plain_network": "plain MLP of positions and parameters",
    "nearest_case": "nearest case by parameters",
    "nearest_shape": "nearest shape",
    "mean_field": "mean of the training cases",
    "few-nothing": "UPT, {few} cases, from scratch",
    "few-cars": "UPT, {few} cases, from the built-in cars",
}
FIELDS = {
    "surface_pressure": "surface pressure",
    "surface_wall_shear": "wall shear stress",
    "volume_velocity": "velocity",
    "volume_pressure": "pressure in the air",
}
SCALARS = {
    "drag_of_the_fields": "drag R², integrated",
    "drag_coefficient": "drag R², direct",
    "lift_of_the_fields": "lift R², integrated",
    "lift_coefficient": "lift R², direct",
}
Found = Mapping[str, Mapping[str, Any]]


def gather_run(folder: Path, cost: Mapping[str, float]) -> dict[str, Any]:
    """Return a run's figures: relative L2 per field and R² per scalar (also of its baselines), cost, and a summary."""
    result = json.loads((folder / "result.json").read_text())
    fields, scalars = _errors_of(result["metrics"]), _scores_of(result["metrics"])
    baselines = {
        baseline: {"fields": _errors_of(own), "scalars": _scores_of(own)}
        for baseline, own in result["baselines"].items()
    }
    first = next(iter(fields), None)
    words = ", ".join(
        [f"{FIELDS[name]} {100 * fields[name]['relative_l2']:.1f} %" for name in fields if name == first]
        + [f"{SCALARS[name]} {value:.3f}" for name, value in scalars.items() if value is not None and "drag" in name]
        + [f"{cost['cpu'] / 60:.1f} minutes of a core"]
    )
    return {
        "fields": fields, "scalars": scalars, "baselines": baselines, "parameters": result["parameters"],
        "updates": result["updates"], "samples": result["samples"], "cpu_minutes": cost["cpu"] / 60,
        "wall_minutes": cost["wall"] / 60, "words": words,
    }  # fmt: skip


def _errors_of(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    measures = ("relative_l2", "weighted_relative_l2")
    found = {name: {key: metrics[f"{name}/{key}"] for key in measures if f"{name}/{key}" in metrics} for name in FIELDS}
    return {name: errors for name, errors in found.items() if errors}


def _scores_of(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: metrics[f"{name}/r2"] for name in SCALARS if f"{name}/r2" in metrics}


def write_figures(out: Path, about: Mapping[str, Any], runs: Found) -> dict[str, Any]:
    """Write OUT/figures.json and OUT/table.md; return the content of figures.json."""
    figures = {**about, "cores": os.cpu_count(), "processor": _processor(), "runs": dict(runs)}
    for name, text in (("figures.json", json.dumps(figures, indent=1)), ("table.md", table(figures))):
        partial = out / f".{name}.partial"
        partial.write_text(text + "\n")
        partial.replace(out / name)
    return figures


def best_group(figures: Mapping[str, Any]) -> str:
    """Return the model, among those trained on all cases, with the lowest mean error of the first field."""
    errors: dict[str, list[float]] = {}
    for run in figures["runs"].values():
        if not run["group"].startswith("few-"):
            errors.setdefault(run["group"], []).append(next(iter(run["fields"].values()))["relative_l2"])
    return min(errors or {"": [0.0]}, key=lambda group: statistics.mean(errors[group]) if errors else 0.0)


def table(figures: Mapping[str, Any]) -> str:
    """Return a Markdown table with a row per model and baseline; a cell is mean ± standard deviation over the seeds."""
    runs = figures["runs"]
    groups = {group: [run for run in runs.values() if run["group"] == group] for group in GROUPS}
    fields = [name for name in FIELDS if any(name in run["fields"] for run in runs.values())]
    scalars = [name for name in SCALARS if any(name in run["scalars"] for run in runs.values())]
    lines = [["", *(FIELDS[name] for name in fields), *(SCALARS[name] for name in scalars), "parameters",
              "minutes of a core"]]  # fmt: skip
    lines.append(["---"] * len(lines[0]))
    baselines = next((run["baselines"] for run in runs.values() if not run["group"].startswith("few-")), {})
    for group, label in GROUPS.items():
        own = [baselines[group]] if group in baselines else groups[group]
        if not own:
            continue
        errors = [_spread((one["fields"][name]["relative_l2"] for one in own), 100, " %") for name in fields]
        scores = [_spread((one["scalars"].get(name) for one in own), 1, "") for name in scalars]
        costs = ["", ""] if group in baselines else [
            f"{own[0]['parameters']:,}", f"{statistics.mean(one['cpu_minutes'] for one in own):.1f}"
        ]  # fmt: skip
        lines.append([label.format(few=figures["few"]), *errors, *scores, *costs])
    counts = figures["cases"]
    total = sum(run["cpu_minutes"] for run in runs.values())
    words = (
        f"{counts['train']} cases for training, {counts['validation']} for validation, {counts['test']} for testing. "
        f"Relative L2 error of the test cases, all points weighted equally; R² against the solver's coefficients; "
        f"mean ± standard deviation over the seeds ({', '.join(_seeds(groups))}). {total:.0f} minutes of CPU time, "
        f"{figures['jobs']} at a time on {figures['cores']} cores ({figures['processor']})."
    )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{words}"


def _seeds(groups: Mapping[str, list[Any]]) -> list[str]:
    counts = {len(runs) for runs in groups.values() if runs}
    return [str(count) for count in sorted(counts)]


def _spread(values: Iterable[float | None], scale: float, unit: str) -> str:
    known = [scale * value for value in values if value is not None]
    if not known:
        return "–"
    digits = 1 if unit else 3
    spread = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.{digits}f}{spread}{unit}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
