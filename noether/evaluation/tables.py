"""The figures of a run as tables for the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeGuard

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table

from noether.config.task import FieldConfig

NONE = "–"
"""Stands in tables where there is no number: a ratio to 0, or a model that predicts NaN."""
BASELINES = {
    "plain_network": "plain MLP",
    "nearest_case": "nearest case by parameters",
    "nearest_shape": "nearest training shape",
    "mean_field": "mean field",
}
"""What tables call the baselines, in the order in which they show them."""


@dataclass
class FiguresTable:
    """A table of figures that are never cut: on a narrow terminal its columns come in several tables.

    The first column is repeated in each of them. rows: a style, and a cell for each column.
    """

    title: str
    columns: Sequence[str]
    rows: list[tuple[str, Sequence[str]]] = field(default_factory=list)

    def add_row(self, style: str, *cells: str) -> None:
        """Adds a row, one cell for each column."""
        self.rows.append((style, cells))

    def _part(self, columns: Sequence[int], title: str) -> Table:
        heads = (Column(self.columns[index], no_wrap=True) for index in columns)
        table = Table(*heads, title=title or None, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for style, cells in self.rows:
            table.add_row(*(cells[index] for index in columns), style=style)
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields as few tables as the width allows, each with as many columns as fit."""
        left, title, wide = list(range(1, len(self.columns))), self.title, options.update(max_width=1000)
        while left:
            for fits in range(len(left), 0, -1):
                part = self._part((0, *left[:fits]), title)
                if Measurement.get(console, wide, part).maximum <= options.max_width:
                    break
            yield part
            left, title = left[fits:], ""


def result_tables(result: dict[str, Any], fields: Mapping[str, FieldConfig]) -> list[Any]:
    """Returns a table of the fields in physical units beside the baselines, one of the scalars, and the pace."""
    if "fields" not in result:
        plain = Table(Column("figure", overflow="fold"), Column("value", no_wrap=True), box=None, padding=(0, 3, 0, 0))
        for name, value in result["figures"].items():
            plain.add_row(name, _ratio(value) if name == "accuracy" else _quantity(value))
        return [plain, _pace(result)]
    caption = (
        f"{result['samples']} {'unseen ' if result['split'] == 'test' else ''}samples of the {result['split']} split"
    )
    table = FiguresTable(caption, ("field", "relative L2", "pooled", "MSE", "MAE", "max"))
    for name, figures in result["fields"].items():
        # Units have a line of their own: beside each figure they would make the table wider than 80 columns.
        unit = fields[name].unit
        table.add_row("bold", name, "", "", squared_unit(unit), unit, unit)
        table.add_row("green", f"  {result['weights']} weights", *_cells(figures))
        if "weighted_relative_l2" in figures:
            errors = _ratio(figures["weighted_relative_l2"]), "", "", _quantity(figures["weighted_mae"]), ""
            table.add_row("", "  weighted by area or volume", *errors)
        for part, errors in figures.get("parts", {}).items():
            table.add_row("", f"  on {part}", "", _ratio(errors.get("pooled_relative_l2")), "", "", "")
        for component, errors in figures.get("components", {}).items():
            table.add_row("", f"  {component} alone", *_cells(errors))
        for baseline, label in BASELINES.items():
            if baseline in result["baselines"]:
                table.add_row("dim", f"  {label}", *_cells(result["baselines"][baseline][name]))
    lines: list[Any] = [table]
    rows = [part for row in result["fields"].values() for part in (row, *row.get("components", {}).values())]
    if any(_is_number(row["mse"]) and not _is_number(row["relative_l2"]) for row in rows):
        lines.append("relative L2 is undefined: the true field of some sample is 0 everywhere")
    for name, score in result["scalars"].items():
        lines += scalar_lines(name.replace("_", " "), score)
    if unbeaten := unbeaten_baselines(result):
        lines.append(f"the model does not beat {' and '.join(unbeaten)}")
    return [*lines, _pace(result)]


def unbeaten_baselines(result: Mapping[str, Any]) -> list[str]:
    """Returns the baselines whose relative L2 is at least as good as the model's, each with the fields."""
    unbeaten = []
    for baseline, label in BASELINES.items():
        others = (result.get("baselines") or {}).get(baseline) or {}
        better = [
            name.replace("_", " ")
            for name, row in (result.get("fields") or {}).items()
            if _is_number(own := row.get("relative_l2"))
            and _is_number(other := (others.get(name) or {}).get("relative_l2"))
            and own >= other
        ]
        unbeaten += [f"the {label} in {', '.join(better)}"] if better else []
    return unbeaten


def scalar_lines(label: str, score: dict[str, Any]) -> list[str]:
    """Returns what there is to say of a force coefficient: scores, the floor, and what it is made with."""
    if score["mae"] is None:
        return [f"{label}: {score['note']}"]
    words = [f"R² {score['r2']:.4f}"] if score["r2"] is not None else []
    words += [f"Spearman {score['spearman']:.4f}"] if score["spearman"] is not None else []
    unit = f" {score['unit']}" if score.get("unit", "1") not in ("", "1") else ""
    words.append(f"mean error {score['mae']:.3g}{unit}")
    lines = [f"{label}: {score['note']}"] if score.get("note") else []
    lines.append(f"{label}: {', '.join(words)}")
    if score.get("floor_mae") is not None:
        floor = f"R² {score['floor_r2']:.4f}, " if score["floor_r2"] is not None else ""
        lines.append(f"  the true field integrated on these points: {floor}mean error {score['floor_mae']:.3g}")
    if score.get("dynamic_pressure") or score.get("speed_of"):
        lines.append(f"  {reference_words(score)}")
    return lines


def squared_unit(unit: str) -> str:
    """Returns the unit of a mean squared error: Pa², (m/s)²."""
    return f"({unit})²" if "/" in unit else f"{unit}²" if unit else ""


def reference_words(score: Mapping[str, Any]) -> str:
    """Returns what a coefficient is made with: dynamic pressure, density of the air, reference area and length."""
    air = (
        f"air of {score['density']:g} kg/m³ at {score['speed']:.4g} m/s"
        if score.get("density") and score.get("speed")
        else "0.5 · density · speed²"
    )
    if score.get("speed_of"):
        pressure = f"0.5 · {score['density']:g} kg/m³ · (each case's {score['speed_of'].replace('_', ' ')})²"
    else:
        pressure = f"dynamic pressure {score['dynamic_pressure']:g} Pa ({air})"
    words = [*(["pressure and friction"] if score.get("friction") else []), pressure, score["reference_area"]]
    return ", ".join(words + ([f"length {score['reference_length']:g} m"] if "reference_length" in score else []))


def _cells(figures: dict[str, Any]) -> list[str]:
    return [
        _ratio(figures["relative_l2"]),
        _ratio(figures["pooled_relative_l2"]) if "pooled_relative_l2" in figures else "",
        *(_quantity(figures[name]) for name in ("mse", "mae", "max")),
    ]


def _ratio(value: float | None) -> str:
    return _quantity(value, ".2%")


def _quantity(value: float | None, form: str = ".4g") -> str:
    return format(value, form) if _is_number(value) else NONE


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and isfinite(value)


def _pace(result: dict[str, Any]) -> str:
    parts = [f"{result['parameters']:,} parameters", f"{result['updates']:,} updates"]
    if result["samples_per_second"]:
        parts.append(f"{result['samples_per_second']:.1f} samples/s")
    if result.get("device_use") is not None:
        parts.append(f"devices busy {result['device_use']:.0%}")
    ranks = result["world_size"]
    return ", ".join(parts) + f" on {ranks} rank{'s' if ranks > 1 else ''}"
