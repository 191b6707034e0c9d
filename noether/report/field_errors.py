"""Errors of the fields: a table beside the baselines, and the distributions over points and samples."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from noether.evaluation.tables import BASELINES, squared_unit
from noether.report.charts import error_histogram, sample_errors
from noether.report.elements import Chart, absent, chart_list, fill
from noether.report.numbers import Array, finite, number, percent
from noether.report.phrases import heading, in_words, plural
from noether.report.run import ReportedRun, figure

FIGURES = {"relative_l2": "relative L2", "pooled_relative_l2": "pooled", "mse": "MSE", "mae": "MAE", "max": "max"}
RATIOS = ("relative_l2", "pooled_relative_l2")


def errors_section(run: ReportedRun) -> Markup:
    """The figures of each field beside the baselines; of a task without fields, its figures."""
    fields, baselines = run.result.get("fields") or {}, run.result.get("baselines") or {}
    if not fields:
        return _plain_figures(run)
    shown = []
    for name, own in fields.items():
        table = {"this model": own}
        table |= {label: row for key, label in BASELINES.items() if (row := (baselines.get(key) or {}).get(name))}
        rows = _error_rows(table, _components(own))
        shown.append({"heading": heading(name), "titles": _titles(run.unit(name)), "rows": rows})
    note = (
        "Means over samples; the maximum is over all points. Relative L2 is the norm of a sample’s error over the "
        "norm of its truth; pooled, that of all samples’ points together."
    )
    if baselines:
        note += (
            " Bold: the best of each column. Two baselines need no training: the field of the most similar training "
            "shape, taken over from its nearest points, and the mean of the training split."
        )
    return fill("errors.html", fields=shown, note=note)


def _components(own: Any) -> dict[str, Mapping[str, Any]]:
    found = own.get("components") if isinstance(own, Mapping) else None
    return {f"{key} alone": row for key, row in (found or {}).items() if isinstance(row, Mapping)}


def _titles(unit: str) -> list[str]:
    units = {"mse": squared_unit(unit), "mae": unit, "max": unit}
    return [", ".join(filter(None, (title, units.get(key)))) for key, title in FIGURES.items()]


def _error_rows(table: Mapping[str, Any], components: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one field, by what made the figures; the first is the model's own, followed by its components'."""
    columns = {key: [value for row in table.values() if (value := figure(row, key)) is not None] for key in FIGURES}
    longest = max(columns["relative_l2"], default=0) or 1
    (model, own), *others = table.items()
    rows = []
    for label, row in [(model, own), *components.items(), *others]:
        cells = []
        for key, column in columns.items():
            value = figure(row, key)
            text = percent(value) if key in RATIOS else number(value)
            left_out = label in components and key not in components[label]
            has_bar = key == "relative_l2" and label in table and not left_out
            cells.append(
                {
                    "text": "" if left_out else text,
                    "set_apart": key == "relative_l2" and not left_out,
                    "bar": f"{100 * (value or 0) / longest:.1f}" if has_bar else None,
                    "best": label in table and len(column) > 1 and value is not None and value == min(column),
                }
            )
        kind = "own" if label == model else "part" if label in components else ""
        rows.append({"label": label, "kind": kind, "cells": cells})
    return rows


def _plain_figures(run: ReportedRun) -> Markup:
    """The figures of a task without fields."""
    figures = run.result.get("figures") or {}
    if not figures:
        return absent(run, "result.json", "the run has not been evaluated")
    return fill("figures.html", figures=[(heading(key), number(finite(value, None))) for key, value in figures.items()])


def distributions_section(run: ReportedRun) -> Markup:
    """Histograms of the errors of points, and the errors of samples in their order."""
    charts = []
    for k, name in enumerate(run.fields):
        edges, counts = (run.arrays.get(f"histogram/{name}/{part}") for part in ("edges", "counts"))
        if edges is not None and counts is not None and np.isfinite(edges).all() and np.sum(counts) > 0:
            edges, counts, unit = np.asarray(edges, np.float64), np.asarray(counts, np.float64), run.unit(name)
            words = f"Nine in ten points are within ±{number(_reach(edges, counts, 0.9))} {unit}".rstrip()
            chart = error_histogram(f"histogram-{k}", edges, counts, unit)
            title = f"{heading(name)}: error of points"
            charts.append(Chart(title, f"{words}; the outermost bars hold what is beyond.", chart))
        values = run.figures(f"{name}/relative_l2")
        if values is not None and np.isfinite(values).any():
            cases = [case for case in run.meta.get("cases") or () if "index" in case]
            marks = {int(case["index"]): str(case.get("label", "")) for case in cases}
            chart = sample_errors(f"samples-{k}", values, marks)
            words = _spread(values, marks, chosen_by=run.fields[0])
            charts.append(Chart(f"{heading(name)}: relative L2 of samples", words, chart))
    if not charts:
        split = run.result.get("split", "test")
        return absent(run, f"{split}.npz", "no errors of single points or samples were kept")
    return chart_list(charts)


def _spread(values: Array, marks: Mapping[int, str], chosen_by: str) -> str:
    shown = values[np.isfinite(values)]
    worst = percent(float(shown.max()))
    text = f"Median {percent(float(np.median(shown)))}, worst {worst} of {plural(len(shown), 'sample')}"
    if len(values) == 1:
        return f"One sample, with {worst}."
    text += f"; rings: the cases above, chosen by the {in_words(chosen_by)}." if marks else "."
    if len(shown) < len(values):
        text += f" {plural(len(values) - len(shown), 'sample')} without a finite error left out."
    return text


def _reach(edges: Array, counts: Array, share: float) -> float:
    """The magnitude, to a bin, that this share of the points does not exceed."""
    outer = np.maximum(np.abs(edges[:-1]), np.abs(edges[1:]))
    order = np.argsort(outer, kind="stable")
    within = np.cumsum(counts[order]) >= share * counts.sum()
    return float(outer[order][np.argmax(within)])
