"""How far off are the fields: a table beside the baselines, and how errors of points and samples are spread?"""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from noether.evaluation.tables import squared_unit
from noether.report.charts import error_histogram, sample_errors
from noether.report.elements import absent, chart_figure
from noether.report.numbers import Array, finite, number, percent
from noether.report.phrases import BASELINES, heading, in_words, plural
from noether.report.run import ReportedRun, figure

FIGURES = {"relative_l2": "relative L2", "pooled_relative_l2": "pooled", "mse": "MSE", "mae": "MAE", "max": "max"}
RATIOS = ("relative_l2", "pooled_relative_l2")


def errors_section(run: ReportedRun) -> str:
    """The figures of each field beside the baselines; of a task without fields, its figures."""
    fields, baselines = run.result.get("fields") or {}, run.result.get("baselines") or {}
    if not fields:
        return _plain_figures(run)
    rows = []
    for name, own in fields.items():
        table = {"this model": own}
        table |= {label: row for key, label in BASELINES.items() if (row := (baselines.get(key) or {}).get(name))}
        rows.append(_error_head(name, run.unit(name)))
        rows += _error_rows(table, _components(own))
    note = (
        "Means over samples; the maximum is over all points. Relative L2 is the norm of a sample’s error over the "
        "norm of its truth; pooled, that of all samples’ points together."
    )
    if baselines:
        note += (
            " Bold: the best of each column. Two baselines need no training: the field of the most similar training "
            "shape, taken over from its nearest points, and the mean of the training split."
        )
    table_body = f'<table class="errors"><tbody>{"".join(rows)}</tbody></table>'
    return f'<div class="scroll">{table_body}</div><p class="note">{note}</p>'


def _components(own: Any) -> dict[str, Mapping[str, Any]]:
    found = own.get("components") if isinstance(own, Mapping) else None
    return {f"{key} alone": row for key, row in (found or {}).items() if isinstance(row, Mapping)}


def _error_head(name: str, unit: str) -> str:
    units = {"mse": squared_unit(unit), "mae": unit, "max": unit}
    titles = (", ".join(filter(None, (title, units.get(key)))) for key, title in FIGURES.items())
    cells = "".join(f'<th class="n">{escape(title)}</th>' for title in titles)
    return f'<tr class="group"><th>{escape(heading(name))}</th>{cells}</tr>'


def _error_rows(table: Mapping[str, Any], components: Mapping[str, Mapping[str, Any]]) -> list[str]:
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
            if label in components and key not in components[label]:
                text = ""
            elif key == "relative_l2":
                width = 100 * (value or 0) / longest
                bar = f'<span class="bar"><i style="width:{width:.1f}%"></i></span>' if label in table else ""
                text = f'{bar}<span class="figure">{text}</span>'
            is_best = label in table and len(column) > 1 and value is not None and value == min(column)
            cells.append(f'<td class="n{" best" if is_best else ""}">{text}</td>')
        kind = ' class="own"' if label == model else ' class="part"' if label in components else ""
        rows.append(f"<tr{kind}><td>{escape(label)}</td>{''.join(cells)}</tr>")
    return rows


def _plain_figures(run: ReportedRun) -> str:
    """The figures of a task without fields."""
    figures = run.result.get("figures") or {}
    if not figures:
        return absent(run, "result.json", "the run has not been evaluated")
    rows = "".join(
        f'<tr><td>{escape(heading(key))}</td><td class="n">{number(finite(value, None))}</td></tr>'
        for key, value in figures.items()
    )
    return f'<div class="scroll"><table>{rows}</table></div>'


def distributions_section(run: ReportedRun) -> str:
    """Histograms of the errors of points, and the errors of samples in their order."""
    charts = []
    for k, name in enumerate(run.fields):
        edges, counts = (run.arrays.get(f"histogram/{name}/{part}") for part in ("edges", "counts"))
        if edges is not None and counts is not None and np.isfinite(edges).all() and np.sum(counts) > 0:
            edges, counts, unit = np.asarray(edges, np.float64), np.asarray(counts, np.float64), run.unit(name)
            words = f"Nine in ten points are within ±{number(_reach(edges, counts, 0.9))} {unit}".rstrip()
            chart = error_histogram(f"histogram-{k}", edges, counts, unit)
            title = f"{heading(name)}: error of points"
            charts.append(chart_figure(title, f"{words}; the outermost bars hold what is beyond.", chart))
        values = run.figures(f"{name}/relative_l2")
        if values is not None and np.isfinite(values).any():
            cases = [case for case in run.meta.get("cases") or () if "index" in case]
            marks = {int(case["index"]): str(case.get("label", "")) for case in cases}
            chart = sample_errors(f"samples-{k}", values, marks)
            words = _spread(values, marks, chosen_by=run.fields[0])
            charts.append(chart_figure(f"{heading(name)}: relative L2 of samples", words, chart))
    if not charts:
        split = run.result.get("split", "test")
        return absent(run, f"{split}.npz", "no errors of single points or samples were kept")
    return f'<div class="charts">{"".join(charts)}</div>'


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
    """The smallest error, to a bin, that so large a share of the points does not exceed in magnitude."""
    outer = np.maximum(np.abs(edges[:-1]), np.abs(edges[1:]))
    order = np.argsort(outer, kind="stable")
    within = np.cumsum(counts[order]) >= share * counts.sum()
    return float(outer[order][np.argmax(within)])
