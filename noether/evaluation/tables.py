"""The figures of a run as tables for the terminal."""

from typing import Any

from rich.table import Column, Table
from rich.text import Text

from noether.config.task import FieldConfig

BASELINES = {"mean_field": "mean field", "nearest_shape": "nearest training shape"}


def result_tables(result: dict[str, Any], fields: dict[str, FieldConfig]) -> list[Any]:
    """Returns a table of the fields in physical units beside the baselines, one of the scalars, and the pace."""
    if "fields" not in result:
        table = Table("figure", "value", box=None, padding=(0, 3, 0, 0))
        for name, value in result["figures"].items():
            table.add_row(name, f"{value:.2%}" if name == "accuracy" else f"{value:.4g}")
        return [table, _pace(result)]
    caption = (
        f"{result['samples']} {'unseen ' if result['split'] == 'test' else ''}samples of the {result['split']} split"
    )
    table = Table(
        *(Column(name, no_wrap=True) for name in ("field", "", "relative L2", "MSE", "MAE", "max")),
        title=caption,
        title_justify="left",
        box=None,
        padding=(0, 3, 0, 0),
    )
    for name, figures in result["fields"].items():
        unit = fields[name].unit
        table.add_row(Text(name, style="bold"), f"{result['weights']} weights", *_cells(figures, unit), style="green")
        for baseline, label in BASELINES.items():
            table.add_row("", label, *_cells(result["baselines"][baseline][name], unit), style="dim")
    lines: list[Any] = [table]
    for name, score in result["scalars"].items():
        label = name.replace("_", " ")
        if score.get("note"):
            lines.append(f"{label}: {score['note']}")
        if score["r2"] is not None:
            text = f"{label}: R² {score['r2']:.4f}"
            text += f", Spearman {score['spearman']:.4f}" if score["spearman"] is not None else ""
            floor = score["floor_r2"]
            text += f", mean error {score['mae']:.3g}"
            text += f"   (the true field integrated on these points: R² {floor:.4f})" if floor is not None else ""
            lines.append(text)
    return [*lines, _pace(result)]


def _cells(figures: dict[str, float], unit: str) -> list[str]:
    squared = f"({unit})²" if "/" in unit else f"{unit}²" if unit else ""
    return [
        f"{figures['relative_l2']:.2%}",
        f"{figures['mse']:.4g} {squared}",
        f"{figures['mae']:.4g} {unit}",
        f"{figures['max']:.4g} {unit}",
    ]


def _pace(result: dict[str, Any]) -> str:
    parts = [f"{result['parameters']:,} parameters", f"{result['updates']:,} updates"]
    if result["samples_per_second"]:
        parts.append(f"{result['samples_per_second']:.1f} samples/s")
    if result.get("device_use") is not None:
        parts.append(f"devices busy {result['device_use']:.0%}")
    ranks = result["world_size"]
    return ", ".join(parts) + f" on {ranks} rank{'s' if ranks > 1 else ''}"
