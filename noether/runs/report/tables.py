"""The metrics of a run as tables for the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table

from noether.common.numbers import counted, duration_text, finite, listed
from noether.runs.metrics import FIELD_ERRORS, Metric, Metrics, described_in, weights_name
from noether.runs.records import mapping

BASELINES = {
    "plain_network": "plain MLP",
    "nearest_case": "nearest case by parameters",
    "nearest_shape": "nearest training shape",
    "mean_field": "mean field",
}
"""Display names of the baselines, in the order of the tables."""


@dataclass
class MetricsTable:
    """A table whose values are never cut: on a narrow terminal, its columns are split into several tables.

    Each of these tables repeats the first column. rows: for each row, a style and the cells of all columns.
    """

    title: str
    columns: Sequence[str]
    rows: list[tuple[str, Sequence[str]]] = field(default_factory=list)

    def add_row(self, style: str, *cells: str) -> None:
        """Add a row, one cell for each column."""
        self.rows.append((style, cells))

    def _part(self, columns: Sequence[int], title: str) -> Table:
        heads = (Column(self.columns[index], no_wrap=True) for index in columns)
        table = Table(*heads, title=title or None, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for style, cells in self.rows:
            table.add_row(*(cells[index] for index in columns), style=style)
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield tables with as many columns each as fit the width."""
        left, title, wide = list(range(1, len(self.columns))), self.title, options.update(max_width=1000)
        while left:
            for fits in range(len(left), 0, -1):
                part = self._part((0, *left[:fits]), title)
                if Measurement.get(console, wide, part).maximum <= options.max_width:
                    break
            yield part
            left, title = left[fits:], ""


def result_tables(result: Mapping[str, Any]) -> list[Any]:
    """Return the printable result: a table of fields and baselines, lines of other metrics, and the pace."""
    values, described = mapping(result, "metrics"), described_in(result)
    if not result.get("fields"):
        plain = Table(Column("metric", overflow="fold"), Column("value", no_wrap=True), box=None, padding=(0, 3, 0, 0))
        for metric, value in own_metrics(result, described):
            plain.add_row(metric.title, metric.text(value))
        return [plain, _pace(result, described)]
    caption = (
        f"{result['samples']} {'unseen ' if result['split'] == 'test' else ''}cases of the {result['split']} split"
    )
    table = MetricsTable(caption, ("field", *FIELD_ERRORS.values()))
    undefined = False
    for name in result["fields"]:
        columns = {measure: described.find(name, measure) for measure in FIELD_ERRORS}
        # Units are on a separate line: next to each value, they would make the table wider than 80 columns.
        table.add_row("bold", name, *(metric.unit.removesuffix("%") for metric in columns.values()))
        for label, kind, row in field_rows(result, described, name):
            style = {"own": "green", "baseline": "dim"}.get(kind, "")
            cells = [metric.bare_text(row[measure]) if measure in row else "" for measure, metric in columns.items()]
            table.add_row(style, f"  {label or weights_name(result['weights'])}", *cells)
            is_undefined = finite(row.get("mse")) is not None and finite(row.get("relative_l2")) is None
            undefined |= is_undefined and kind != "baseline"
    lines: list[Any] = [table]
    if undefined:
        lines.append("relative L2 is undefined (–) if a field or component is 0 everywhere in some case")
    for name, facts in result["scalars"].items():
        lines += scalar_lines(name, values, described, facts)
    lines += [f"{metric.title}: {metric.text(value)}" for metric, value in own_metrics(result, described)]
    if unbeaten := unbeaten_baselines(result):
        lines.append(f"the model does not beat {', nor '.join(unbeaten)}")
    return [*lines, _pace(result, described)]


def own_metrics(result: Mapping[str, Any], described: Metrics) -> list[tuple[Metric, Any]]:
    """Return the metrics, such as the loss, that measure no field or scalar; all metrics if the run has no fields."""
    elsewhere = (*result["fields"], *mapping(result, "scalars")) if result.get("fields") else ()
    metrics = ((described[name], value) for name, value in mapping(result, "metrics").items())
    return [(metric, value) for metric, value in metrics if metric.of not in elsewhere]


def field_rows(result: Mapping[str, Any], described: Metrics, name: str) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return a field's rows: label ("" for the whole field), kind (own, part or baseline), and values by measure."""
    parts = described.by_part(mapping(result, "metrics"), name)
    baselines = mapping(result, "baselines")
    rows = [(part, "part" if part else "own", mapping(parts, part)) for part in parts]
    for key, label in BASELINES.items():
        own = mapping(baselines, key)
        if row := described.of_whole(own, name):
            rows.append((trained_words(label, finite(own.get("training_seconds"))), "baseline", row))
    return rows


def trained_words(label: str, seconds: float | None) -> str:
    """Return a row's label, with the training time if it is known."""
    if seconds is None:
        return label
    return f"{label}, trained {duration_text(seconds) if seconds >= 10 else f'{seconds:.2g} s'}"


def unbeaten_baselines(result: Mapping[str, Any]) -> list[str]:
    """Name each baseline that is at least as good as the model in some fields, and these fields; ignore NaN."""
    values, described = mapping(result, "metrics"), described_in(result)
    unbeaten = []
    for baseline, label in BASELINES.items():
        others = mapping(mapping(result, "baselines"), baseline)
        better = [
            described[name].of.replace("_", " ")
            for name in values
            if described[name].headline
            and (own := finite(values[name])) is not None
            and (other := finite(others.get(name))) is not None
            and not described[name].is_better(own, other)
        ]
        unbeaten += [f"the {label} in {listed(better)}"] if better else []
    return unbeaten


def scalar_lines(name: str, values: Mapping[str, Any], described: Metrics, facts: Mapping[str, Any]) -> list[str]:
    """Describe a scalar in lines: a note, its scores, the floor of its error, and its reference values."""
    label, own = name.replace("_", " "), described.of_whole(values, name)
    texts = {key: described.find(name, key).text(value) for key, value in own.items() if finite(value) is not None}
    words = [f"{described.find(name, key).label} {texts[key]}" for key in ("r2", "spearman", "mae") if key in texts]
    lines = [f"{label}: {facts['note']}"] if facts.get("note") else []
    lines += [f"{label}: {', '.join(words)}"] if words else []
    if "floor_mae" in texts:
        floor_r2 = f"R² {texts['floor_r2']}, " if "floor_r2" in texts else ""
        lines.append(f"  the true field integrated on these points: {floor_r2}mean error {texts['floor_mae']}")
    if facts.get("dynamic_pressure"):
        lines.append(f"  {reference_words(facts)}")
    return lines


def reference_words(score: Mapping[str, Any]) -> str:
    """Describe a coefficient's reference values: dynamic pressure, air density, reference area and length."""
    air = (
        f"air of {score['density']:g} kg/m³ at {score['speed']:.4g} m/s"
        if score.get("density") and score.get("speed")
        else "0.5 · density · speed²"
    )
    if isinstance(given := score["dynamic_pressure"], str):
        pressure = f"0.5 · {score['density']:g} kg/m³ · (each case's {given.replace('_', ' ')})²"
    else:
        pressure = f"dynamic pressure {given:g} Pa ({air})"
    words = [*(["pressure and wall shear"] if score.get("shear") else []), pressure, score["reference_area"]]
    return ", ".join(words + ([f"length {score['reference_length']:g} m"] if "reference_length" in score else []))


def _pace(result: Mapping[str, Any], described: Metrics) -> str:
    parts = [f"{result['parameters']:,} parameters", counted(result["updates"], "update")]
    if result["samples_per_second"]:
        parts.append(described["samples_per_second"].text(result["samples_per_second"]))
    if result.get("device_use") is not None:
        parts.append(f"devices busy {described['device_use'].text(result['device_use'])}")
    ranks = result["world_size"]
    return ", ".join(parts) + f" on {counted(ranks, 'rank')}"


Label = Literal["best", "median", "worst", "unscored"]
"""The reason for showing a sample: its rank among the errors of the split, or a non-finite error ("unscored")."""


def median_sample(errors: np.ndarray) -> int:
    """Return the index of the sample with the median finite error; of two middle errors, take the larger."""
    finite = int(np.isfinite(errors).sum()) or len(errors)
    return int(np.argsort(errors, kind="stable")[finite // 2])


def choose_cases(errors: np.ndarray) -> list[tuple[Label, int, int]]:
    """Return the best, the median and three more samples as (label, place, index), without repeats.

    The three more samples are those without a finite error, then those with the largest errors.
    """
    order = np.argsort(errors, kind="stable")
    finite = np.isfinite(errors[order])
    scored, unscored = order[finite].tolist(), order[~finite][:3].tolist()
    chosen: list[tuple[Label, int, int]] = [("best", 1, index) for index in scored[:1]]
    chosen += [("median", 1, median_sample(errors))] if scored else []
    chosen += [("unscored", place, index) for place, index in enumerate(unscored, 1)]
    chosen += [("worst", place, index) for place, index in enumerate(scored[::-1][: 3 - len(unscored)], 1)]
    first: dict[int, tuple[Label, int, int]] = {}
    for one in chosen:
        first.setdefault(one[2], one)
    return list(first.values())
