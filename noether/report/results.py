"""What the page says of the results: errors beside the baselines, classes, scalars, and how errors are spread."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from noether.evaluation.tables import BASELINES, reference_words, squared_unit
from noether.report.charts import error_histogram, parity, sample_errors
from noether.report.elements import Chart, absent, charts, fill
from noether.report.numbers import Array, number, percent, score_text
from noether.report.phrases import heading, in_words, plural
from noether.report.run import ReportedRun, figure

FIGURES = {"relative_l2": "relative L2", "pooled_relative_l2": "pooled", "mse": "MSE", "mae": "MAE", "max": "max"}
SCALAR_PARTS = ("prediction", "truth", "integral_of_truth")


def errors_section(run: ReportedRun) -> Markup:
    """The figures of each field beside the baselines; of a task without fields, its figures."""
    fields, figures = run.result.get("fields") or {}, run.result.get("figures") or {}
    if fields:
        shown = [_field_errors(run, name, own) for name, own in fields.items()]
        return fill("errors.html", fields=shown, figures=FIGURES, baselines=run.result.get("baselines"))
    if figures:
        return fill("figures.html", figures=figures)
    return absent(run, "result.json", "the run has not been evaluated")


def _field_errors(run: ReportedRun, name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows of a field: rows by what made the figures, the model's components after its own."""
    beside = {label: row for key, label in BASELINES.items() if (row := run.baseline(key, name))}
    columns = {key: [value for row in (own, *beside.values()) if (value := figure(row, key)) is not None]
               for key in FIGURES}  # fmt: skip
    unit = run.unit(name)
    return {
        "name": name,
        "units": {"mse": squared_unit(unit), "mae": unit, "max": unit},
        "rows": [
            ("this model", "own", own),
            *((f"{key} alone", "part", row) for key, row in (own.get("components") or {}).items()),
            *((label, "", row) for label, row in beside.items()),
        ],
        "best": {key: min(column) for key, column in columns.items() if len(column) > 1},
        "longest": max(columns["relative_l2"], default=0) or 1,
    }


def confusion(run: ReportedRun) -> tuple[list[str], np.ndarray] | None:
    """The names of the classes and the counts (classes, classes), true by row; None where there are none."""
    classes = run.result.get("classes") or {}
    counts = np.asarray(classes.get("confusion") or [], int)
    names = [str(name) for name in classes.get("names") or ()]
    return (names, counts) if counts.shape == (len(names), len(names)) and names else None


def classes_section(run: ReportedRun) -> Markup:
    """The confusion matrix, one row for each true class, with the share that is right."""
    found = confusion(run)
    if found is None:
        return absent(run, "result.json", "no classes have been counted")
    names, counts = found
    wrong = counts - np.diag(np.diag(counts))
    rows = list(zip(names, counts.tolist(), strict=True))
    return fill("classes.html", rows=rows, all=int(counts.sum()), wrong=int(wrong.sum()), most=max(1, int(wrong.max())))


def scalars_section(run: ReportedRun) -> Markup:
    """Each scalar's scores beside a chart of predictions against truths."""
    scores = run.result.get("scalars") or {}
    names = list(scores) or list(run.meta.get("scalars") or ())
    if not names:
        return absent(run, "result.json", "the task derives no scalar from its fields")
    shown = [_scalar(run, name, scores.get(name) or {}) for name in names]
    return fill("scalars.html", scalars=shown, reference_words=reference_words)


def _scalar(run: ReportedRun, name: str, score: Mapping[str, Any]) -> dict[str, Any]:
    about = {"name": name, "score": score, "chart": ""}
    prediction, truth, floor = (run.figures(f"{name}/{part}") for part in SCALAR_PARTS)
    if prediction is None or truth is None or len(prediction) != len(truth) or not len(truth):
        return about
    if floor is not None and (len(floor) != len(truth) or np.allclose(floor, truth, rtol=1e-9)):
        floor = None  # the truth is that integral: the rings would all lie on the line
    keys = [("model", "accent", "dot"), ("true field", "second", "ring"), ("prediction = truth", "muted", "dashed")]
    lines = [f"R²  {score_text(score.get('r2'))}", f"Spearman  {score_text(score.get('spearman'))}"]
    chart = parity(f"parity-{name}", truth, prediction, floor, lines)
    return {**about, "legend": [key for key in keys if floor is not None or key[2] != "ring"], "chart": chart}


def distributions_section(run: ReportedRun) -> Markup:
    """Histograms of the errors of points, and the errors of samples in their order."""
    shown = []
    for k, name in enumerate(run.fields):
        edges, counts = (run.arrays.get(f"histogram/{name}/{part}") for part in ("edges", "counts"))
        if edges is not None and counts is not None and np.isfinite(edges).all() and np.sum(counts) > 0:
            edges, counts, unit = np.asarray(edges, np.float64), np.asarray(counts, np.float64), run.unit(name)
            words = f"Nine in ten points are within ±{number(_reach(edges, counts, 0.9))} {unit}".rstrip()
            chart = error_histogram(f"histogram-{k}", edges, counts, unit)
            title = f"{heading(name)}: error of points"
            shown.append(Chart(title, f"{words}; the outermost bars hold what is beyond.", chart))
        values = run.figures(f"{name}/relative_l2")
        if values is not None and np.isfinite(values).any():
            cases = [case for case in run.meta.get("cases") or () if "index" in case]
            marks = {int(case["index"]): str(case.get("label", "")) for case in cases}
            chart = sample_errors(f"samples-{k}", values, marks)
            words = _spread(values, marks, chosen_by=run.fields[0])
            shown.append(Chart(f"{heading(name)}: relative L2 of samples", words, chart))
    if not shown:
        return absent(run, f"{run.split}.npz", "no errors of single points or samples were kept")
    return charts(shown)


def _spread(values: Array, marks: Mapping[int, str], chosen_by: str) -> str:
    shown = values[np.isfinite(values)]
    worst = percent(float(shown.max()))
    if len(values) == 1:
        return f"One sample, with {worst}."
    text = f"Median {percent(float(np.median(shown)))}, worst {worst} of {plural(len(shown), 'sample')}"
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
