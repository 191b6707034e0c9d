"""The report's sections on results: errors and baselines, classes, scalars, distributions, use, and intervals."""

import shlex
from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import Any

import numpy as np
from markupsafe import Markup

from noether.common.numbers import DIGITS, LENGTHS, counted, finite, listed
from noether.config.sweep import override_value
from noether.runs.metrics import FIELD_ERRORS, SCALAR_PARTS
from noether.runs.records import mapping
from noether.runs.report.charts import calibration_curve, error_histogram, parity, sample_errors
from noether.runs.report.elements import Chart, absent, axes_words, charts, fill, heading, in_words, of_files
from noether.runs.report.numbers import Array, number, percent, short_number, shown_score, value_text
from noether.runs.report.run import ReportedRun
from noether.runs.report.tables import field_rows, median_sample, own_metrics, reference_words, trained_words


def errors_section(run: ReportedRun) -> Markup:
    """Return a table of each field's metrics and baselines, and the metrics that belong to no field."""
    own = own_metrics(run.result, run.described)
    others = fill("metrics.html", metrics=own) if own else Markup()
    if run.result.get("fields"):
        fields = [_field_errors(run, name) for name in run.fields]
        celsius = [in_words(name) for name in run.fields if run.unit(name) == "°C"]
        return fill("errors.html", fields=fields, celsius=celsius, baselines=run.result.get("baselines")) + others
    return others or absent(run, "result.json", "the run has not been evaluated")


def _field_errors(run: ReportedRun, name: str) -> dict[str, Any]:
    """Return a field's content for the template: columns, and rows for the whole field, its parts and the baselines."""
    own = trained_words("this model", run.seconds)
    rows = [(label or own, kind, row) for label, kind, row in field_rows(run.result, run.described, name)]
    whole = [row for _, kind, row in rows if kind != "part"]
    columns = {measure: [value for row in whole if (value := finite(row.get(measure))) is not None]
               for measure in FIELD_ERRORS}  # fmt: skip
    return {
        "name": name,
        "columns": {measure: (label, run.described.find(name, measure)) for measure, label in FIELD_ERRORS.items()},
        "rows": rows,
        "best": {measure: min(column) for measure, column in columns.items() if len(column) > 1},
        "longest": max(columns["relative_l2"], default=0) or 1,
    }


def confusion(run: ReportedRun) -> tuple[list[str], np.ndarray] | None:
    """Return the class names and the confusion counts (true classes, predicted classes); None if there are none."""
    classes: Any = run.result.get("classes")
    if not isinstance(classes, dict):
        return None
    counts = np.asarray(classes.get("confusion") or [], int)
    names = [str(name) for name in classes.get("names") or ()]
    return (names, counts) if counts.shape == (len(names), len(names)) and names else None


def classes_section(run: ReportedRun) -> Markup:
    """Return the confusion matrix: a row for each true class, with the share of correct predictions."""
    found = confusion(run)
    if found is None:
        return absent(run, "result.json", "no classes have been counted")
    names, counts = found
    wrong = counts - np.diag(np.diag(counts))
    rows = list(zip(names, counts.tolist(), strict=True))
    return fill("classes.html", rows=rows, all=int(counts.sum()), wrong=int(wrong.sum()), most=max(1, int(wrong.max())))


def scalars_section(run: ReportedRun) -> Markup:
    """Return each scalar's scores with a chart of predictions against truths."""
    facts = run.result.get("scalars") or {}
    if not facts:
        return absent(run, "result.json", "the task derives no scalar from its fields")
    shown = [_scalar(run, name, facts.get(name) or {}) for name in facts]
    return fill("scalars.html", scalars=shown, reference_words=reference_words)


def _scalar(run: ReportedRun, name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    own = [(run.described[key], value) for key, value in run.metrics.items() if run.described[key].of == name]
    scores = {metric.measure: finite(value) for metric, value in own}
    r2, rank = scores.get("r2"), scores.get("spearman")
    about = {"name": name, "facts": facts, "scores": own, "floor": "floor_r2" in scores, "chart": ""}
    prediction, truth, floor = (run.sample_metric(name, part) for part in SCALAR_PARTS)
    if prediction is None or truth is None or len(prediction) != len(truth) or not len(truth):
        return about
    if floor is not None and (len(floor) != len(truth) or not about["floor"]):
        floor = None  # The truth is this integral, so all rings would be on the line.
    keys = [("model", "accent", "dot"), ("true field", "second", "ring"), ("prediction = truth", "muted", "dashed")]
    lines = [f"R²  {shown_score(r2)}", f"Spearman  {shown_score(rank)}"]
    chart = parity(f"parity-{name}", truth, prediction, floor, run.described.find(name, "mae").unit, lines)
    return {**about, "legend": [key for key in keys if floor is not None or key[2] != "ring"], "chart": chart}


def distributions_section(run: ReportedRun) -> Markup:
    """Return histograms of the errors at points, and charts of the samples' errors in rising order."""
    shown = []
    for k, name in enumerate(run.fields):
        edges, counts = (run.arrays.get(f"histogram/{name}/{part}") for part in ("edges", "counts"))
        if edges is not None and counts is not None and np.isfinite(edges).all() and np.sum(counts) > 0:
            edges, counts, unit = np.asarray(edges, np.float64), np.asarray(counts, np.float64), run.unit(name)
            words = f"Nine in ten errors are within ±{number(_reach(edges, counts, 0.9))} {unit}".rstrip()
            chart = error_histogram(f"histogram-{k}", edges, counts, unit)
            title = f"{heading(name)}: errors at points"
            shown.append(Chart(title, f"{words}; the outermost bars contain all larger errors.", chart))
        values, scored = run.sample_metric(name, "relative_l2"), run.finite_errors(name)
        if values is not None and scored.size:
            cases = [case for case in run.meta.get("cases") or () if "index" in case]
            # Label only the first field's marks: the cases were chosen by it; other fields rank them differently.
            marks = {int(case["index"]): str(case.get("label", "")) if k == 0 else "" for case in cases}
            chart = sample_errors(f"samples-{k}", values, marks)
            words = _spread(scored, len(values), run.fields[0] if marks else "")
            shown.append(Chart(f"{heading(name)}: relative L2 of cases", words, chart))
    if not shown:
        return absent(run, "test.npz", "no errors of single points or samples were kept")
    return charts(shown)


def _spread(scored: Array, cases: int, chosen_by: str) -> str:
    """Describe the median and the worst finite error of `cases` cases. chosen_by: the field that decides the rings."""
    worst = percent(float(scored.max()))
    if cases == 1:
        return f"One case, with {worst}."
    text = f"Median {percent(float(scored[median_sample(scored)]))}, worst {worst} of {counted(len(scored), 'case')}"
    text += f"; rings mark the cases above, chosen by the {in_words(chosen_by)}." if chosen_by else "."
    if len(scored) < cases:
        text += f" Omitted: {counted(cases - len(scored), 'case')} without a finite error."
    return text


def _reach(edges: Array, counts: Array, share: float) -> float:
    """Return the magnitude, rounded to a bin edge, that the errors of this share of the points do not exceed."""
    outer = np.maximum(np.abs(edges[:-1]), np.abs(edges[1:]))
    order = np.argsort(outer, kind="stable")
    within = np.cumsum(counts[order]) >= share * counts.sum()
    return float(outer[order][np.argmax(within)])


def use_section(run: ReportedRun) -> Markup:
    """Return the model's outputs, ranges and worst errors, its spread over seeds, and the command to train it again."""
    trained = run.result.get("trained_on") or {}
    points, parameters = trained.get("points") or {}, trained.get("parameters") or {}
    space = mapping(run.meta, "space")
    errors = {name: run.finite_errors(name) for name in run.fields}
    worst = [f"{percent(finite.max())} ({in_words(name)})" for name, finite in errors.items() if finite.size]
    scored = [name for name in mapping(run.result, "scalars") if "mae" in run.described.of_whole(run.metrics, name)]
    outputs = [*run.fields, *scored]
    config, again = shlex.quote(str(run.path / "config.yaml")), override_value(f"{run.run_id}-again")
    return fill(
        "use.html",
        outputs=[in_words(name) + (f" in {unit}" if (unit := run.unit(name)) else "") for name in outputs],
        ranges=[(in_words(name), _range(span)) for name, span in parameters.items()],
        boxes=[(in_words(name.removesuffix("_points")), _box(span, space)) for name, span in points.items()],
        axes=axes_words(space, of_files(space)) if points else "",
        training=(run.plan.get("data") or {}).get("training"),
        worst=listed(worst),
        seeds=[  # Mean, standard deviation and number of runs that differ by seed.
            (metric.title, f"{value_text(own['mean'], metric, own['std'])} ({own['n']} seeds)")
            for metric in run.described.foremost(run.spread)
            if (own := run.spread[metric.name])
        ],
        again=f"noether train --hp {config} resume=null {shlex.quote(f'run_id={again}')}",
        version=run.environment.get("noether"),
        revision=run.environment.get("git_revision"),
        image=(run.environment.get("image") or {}).get("digest"),
        conditions=run.plan.get("conditions") or {},
    )


def _range(span: Mapping[str, Any]) -> str:
    text = ", ".join(f"{low} to {high}" for low, high in zip(*_rounded(span), strict=True))
    return f"{text} {span.get('unit') or ''}".rstrip()


def _box(span: Mapping[str, Any], space: Mapping[str, Any]) -> str:
    """Format the box of a set's points in the axes and length unit of the data's files (m if they define none)."""
    files = mapping(space, "files").get("metres")
    unit, metres = next((known for known in LENGTHS.items() if known[1] == files), ("m", 1.0))
    corners = np.array([span["low"], span["high"]]) / metres
    corners = corners @ of_files(space) + 0.0 if corners.shape[1] == 3 else corners  # + 0.0 turns -0.0 into 0.0.
    own = {"low": corners.min(axis=0).tolist(), "high": corners.max(axis=0).tolist()}
    sides = zip("xyz", *_rounded(own), strict=False)
    return ", ".join(f"{axis} {low} to {high}" for axis, low, high in sides) + f" {unit}"


def _rounded(span: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Format both ends of a range with the decimals that suit its largest value: beside 1 m, a micrometre is 0 m."""
    low, high = span["low"], span["high"]
    widest = max((abs(value) for value in (*low, *high)), default=0)
    decimals = DIGITS - 1 - floor(log10(widest)) if widest else 0

    def written(values: list[float]) -> list[str]:
        return [short_number(round(value, decimals)).replace("-", "−") for value in values]

    return written(low), written(high)


NAMED = (50, 80, 90, 95)
"""Nominal shares, in percent, for which the covered share is printed."""


def intervals_section(run: ReportedRun) -> Markup:
    """Return a chart for each field and coefficient, and a sentence on the number of cases used for calibration."""
    record = run.calibration
    held_out, test = record["cases"]["validation"], record["cases"]["test"]
    levels = np.array(record["levels"], np.float64) / 100
    # Two standard errors for one value per case. Both the calibration cases and the test cases are random draws.
    stray = 2 * np.sqrt(levels * (1 - levels) * (1 / (held_out + 2) + 1 / max(test, 1)))
    keys = [
        ("covered", "accent", ""),
        ("promised", "muted", "dashed"),
        ("range expected by chance, for one value per case", "line", "dot"),
    ]
    shown = [
        Chart(
            heading(label),
            _words(levels, own["covered"]),
            calibration_curve(f"calibration-{label}", levels, np.array(own["covered"], np.float64), stray),
            keys,
        )
        for label, own in record["outputs"].items()
    ]
    runs = len(record["members"])
    whose = "this run" if runs == 1 else f"{runs} runs"
    note = (
        f"The intervals of {whose} were calibrated on {held_out} validation cases and checked on {test} test cases. "
        "x axis: the share that they promise to cover; y axis: the share that they cover; below the line is too low."
    )
    return fill("intervals.html", note=note, shown=shown)


def _words(levels: np.ndarray, covered: Sequence[float]) -> str:
    places = {round(100 * level): place for place, level in enumerate(levels)}
    return ", ".join(f"{level} %: {100 * covered[places[level]]:.1f} %" for level in NAMED if level in places)
