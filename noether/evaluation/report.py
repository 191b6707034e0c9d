"""What did a run learn, how was it trained, and where? One HTML file, read from the run folder; no torch.

The page holds everything it shows: no script, no font, no picture is loaded from elsewhere. Whatever a run
folder lacks, its section says in a sentence.
"""

import json
import os
import shlex
import time
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import isfinite
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import yaml
from scipy.spatial import QhullError

from noether import __version__
from noether.evaluation import pictures
from noether.evaluation.pictures import Array, Scale, Series, number, percent
from noether.run_folder import RunFolder
from noether.tracking.metrics_file import read_metrics

PAGE = Path(__file__).with_name("report_page.html")
FIGURES = {"relative_l2": "relative L2", "mse": "MSE", "mae": "MAE", "max": "max"}
BASELINES = {"nearest_shape": "nearest training shape", "mean_field": "mean field"}
RANKS_SHOWN = 16
BATCH_PARTS = ("effective", "per_rank", "micro", "accumulation_steps")
SCALAR_PARTS = ("prediction", "truth", "integral_of_truth")


def write_report(folder: RunFolder) -> Path:
    """Writes report.html into a run folder and returns its path.

    Only config.yaml must be there; the page says what else is missing. An older report is replaced at once
    and whole.

    Raises:
        OSError: the configuration cannot be read, or the page not be written.
    """
    page = render_report(read_run(folder))
    partial = folder.report.with_name(f".{folder.report.name}.{os.getpid()}")
    partial.write_text(page, encoding="utf-8")
    partial.replace(folder.report)
    return folder.report


# --- what a run left behind ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What the page is made of. What could not be read is empty; `troubles` says why, by file name.

    arrays and meta are those of the evaluation's npz, without and with its "meta".
    """

    run_id: str
    config: str
    plan: Mapping[str, Any]
    environment: Mapping[str, Any]
    result: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    meta: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    troubles: Mapping[str, str] = field(default_factory=dict)

    @property
    def fields(self) -> list[str]:
        """The fields, in the order of the results."""
        return list(self.result.get("fields") or self.meta.get("fields") or {})

    def unit(self, name: str) -> str:
        """A field's unit from the evaluation, else from the configuration; "" where neither names one."""
        about = (self.meta.get("fields") or {}).get(name)
        if not about:
            try:
                about = yaml.safe_load(self.config)["task"]["fields"][name]
            except (yaml.YAMLError, KeyError, TypeError):
                about = {}
        return str((about or {}).get("unit") or "")

    def figures(self, name: str) -> Array | None:
        """A figure of every sample (S,), such as "surface_pressure/relative_l2"; None where there is none."""
        values = self.arrays.get(f"figures/{name}")
        return None if values is None else np.asarray(values, np.float64).ravel()


def read_run(folder: RunFolder) -> Run:
    """Reads a run folder. Files that are missing or damaged are left out, and named in `troubles`."""
    troubles: dict[str, str] = {}

    def read(path: Path, reader: Callable[[Path], Any], empty: Any) -> Any:
        try:
            return reader(path)
        except FileNotFoundError:
            troubles[path.name] = f"There is no {path.name}"
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            troubles[path.name] = f"{path.name} cannot be read ({type(error).__name__}: {error})"
        return empty

    result = read(folder.result, _read_object, {})
    meta, arrays = read(folder.evaluation / f"{result.get('split', 'test')}.npz", _read_npz, ({}, {}))
    return Run(
        run_id=folder.path.resolve().name,
        config=folder.config.read_text(encoding="utf-8"),
        plan=read(folder.plan, _read_object, {}),
        environment=read(folder.environment, _read_object, {}),
        result=result,
        rows=[row for row in read(folder.metrics, read_metrics, []) if isinstance(row, dict)],
        meta=meta,
        arrays=arrays,
        troubles=troubles,
    )


def _read_object(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


def _read_npz(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with np.load(path, allow_pickle=False) as file:
        return json.loads(str(file["meta"])), {key: file[key] for key in file.files if key != "meta"}


# --- the page -----------------------------------------------------------------------------------------------


def render_report(run: Run) -> str:
    """Returns the page."""
    sections: list[tuple[str, str, Callable[[Run], str]]] = [
        ("errors", "Errors", _errors),
        ("cases", "Cases", _cases),
        ("scalars", "Force coefficients", _scalars),
        ("distributions", "Distributions", _distributions),
        ("curves", "Training", _curves),
        ("plan", "Plan", _plan),
        ("environment", "Environment", _environment),
        ("configuration", "Configuration", _configuration),
    ]
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title, _ in sections)
    body = [_header(run), _tiles(run), f"<nav>{links}</nav>"]
    body += [f'<section id="{key}">\n<h2>{title}</h2>\n{make(run)}\n</section>' for key, title, make in sections]
    made = time.strftime("%Y-%m-%d %H:%M %Z")
    body.append(f"<footer>Written by noether {escape(__version__)} on {escape(made)}.</footer>")
    light, dark = (" ".join(f"--{name}: {pair[k]};" for name, pair in pictures.COLOURS.items()) for k in range(2))
    return Template(PAGE.read_text(encoding="utf-8")).substitute(
        title=escape(f"{run.run_id} – noether"), light=light, dark=dark, body="\n".join(body)
    )


def _header(run: Run) -> str:
    model, data = run.plan.get("model") or {}, run.plan.get("data") or {}
    also = []
    if model:
        also.append(f"Model {model.get('kind', '')} with {_count(model.get('parameters'))} parameters")
    if data.get("training"):
        also.append(f"trained on {_plural(data['training'], 'sample')}")
    if run.result.get("weights"):
        also.append(f"{_weights(run.result['weights'])} of checkpoint {run.result.get('checkpoint', '–')}")
    return (
        f'<header>\n<p class="kicker">Training report</p>\n<h1 class="mono">{escape(run.run_id)}</h1>\n'
        f'<p class="verdict">{verdict(run)}</p>\n'
        + (f'<p class="also">{escape(_sentence(also))}</p>\n' if also else "")
        + "</header>"
    )


def verdict(run: Run) -> str:
    """What the run achieved, in a sentence or two of HTML with numbers."""
    fields, baselines = run.result.get("fields") or {}, run.result.get("baselines") or {}
    samples = run.result.get("samples") or len(run.meta.get("names") or ()) or None
    split = str(run.result.get("split", "test"))
    kind = "unseen shapes" if split == "test" else f"shapes of the {split} split"
    where = f"On {_count(samples)} {kind}" if samples else f"On {kind}"
    if not fields:
        figures = [
            f"{escape(_words(key))} <b>{number(_finite(value, None))}</b>"
            for key, value in (run.result.get("figures") or {}).items()
        ]
        return f"{escape(where.replace('shapes', 'samples'))}: {', '.join(figures)}." if figures else _progress(run)
    parts = [f"the {escape(_words(name))} by <b>{percent(_figure(row))}</b>" for name, row in fields.items()]
    text = f"{escape(where)} the model misses {_listed(parts)} (mean relative L2)"
    nearest = {name: _figure((baselines.get("nearest_shape") or {}).get(name)) for name in fields}
    beside = [percent(nearest[name]) for name in fields if nearest[name] is not None]
    if len(beside) == len(fields):
        text += f", the nearest training shape by {_listed(beside)}"
    for name, score in (run.result.get("scalars") or {}).items():
        if isinstance(score, Mapping) and score.get("r2") is not None:
            text += f"; {escape(_words(name))} R² <b>{_score(score['r2'])}</b>"
    return f"{text}. {_against_baselines(fields, baselines)}".strip()


def _against_baselines(fields: Mapping[str, Any], baselines: Mapping[str, Any]) -> str:
    """Names every field in which a baseline is at least as good: a failure must be read at the top."""
    beaten = []
    for baseline, label in BASELINES.items():
        better = [
            _words(name)
            for name, row in fields.items()
            if (own := _figure(row)) is not None
            and (other := _figure((baselines.get(baseline) or {}).get(name))) is not None
            and own >= other
        ]
        beaten += [f"the {label} in {_listed(better)}"] if better else []
    undefined = [_words(name) for name, row in fields.items() if _figure(row) is None]
    sentences = [f"It does not beat {escape(_listed(beaten))}."] if beaten else []
    sentences += [f"The error of the {escape(_listed(undefined))} is not finite."] if undefined else []
    return " ".join(sentences)


def _progress(run: Run) -> str:
    done = max((row["update"] for row in run.rows if isinstance(row.get("update"), int)), default=0)
    total = (run.plan.get("length") or {}).get("total_updates")
    if not done:
        return "The run has made no update yet."
    last = [row for row in run.rows if row.get("kind") == "training"][-1:]
    loss = f"; the training loss is <b>{number(_finite(last[0].get('loss'), None))}</b>" if last else ""
    made = f"{_count(done)} of {_plural(total, 'update')}" if total else _plural(done, "update")
    return f"The run has made {made} and has not been evaluated on a test split{loss}."


def _tiles(run: Run) -> str:
    tiles = []
    baselines = run.result.get("baselines") or {}
    for name, row in (run.result.get("fields") or {}).items():
        other = _figure((baselines.get("nearest_shape") or {}).get(name))
        beside = "relative L2" + (f"; nearest shape {percent(other)}" if other is not None else "")
        tiles.append(("key", percent(_figure(row)), _words(name), beside))
    for name, score in (run.result.get("scalars") or {}).items():
        if isinstance(score, Mapping) and score.get("r2") is not None:
            rank = score.get("spearman")
            beside = f"Spearman {_score(rank)}" if rank is not None else ""
            tiles.append(("key", f"{_score(score['r2'])} <small>R²</small>", _words(name), beside))
    updates, length = run.result.get("updates"), run.plan.get("length") or {}
    if updates:
        per_epoch = length.get("updates_per_epoch")
        beside = f"{_trimmed(updates / per_epoch)} epochs" if per_epoch else ""
        tiles.append(("", _count(updates), "updates", beside))
    if (rate := run.result.get("samples_per_second")) is not None:
        ranks = run.result.get("world_size")
        use = run.result.get("device_use")
        beside = f"on {_plural(ranks, 'rank')}" if ranks else ""
        beside += f", devices busy {percent(use, 2)}" if use is not None else ""
        tiles.append(("", f"{number(rate)} <small>samples/s</small>", "training speed", beside))
    if seconds := run.result.get("seconds"):
        tiles.append(("", _duration(seconds), "wall time", "training and evaluation"))
    elif seconds := _elapsed(run.rows):
        tiles.append(("", _duration(seconds), "wall time", "from the first log line to the last"))
    parts = [
        f'<div class="{kind}"><dt>{escape(name)}</dt><dd class="figure">{value}</dd>'
        f'<dd class="beside">{escape(beside)}</dd></div>'
        for kind, value, name, beside in tiles
    ]
    return f'<dl class="tiles">{"".join(parts)}</dl>' if parts else ""


def _errors(run: Run) -> str:
    fields, baselines = run.result.get("fields") or {}, run.result.get("baselines") or {}
    if not fields:
        return _plain_figures(run)
    rows = []
    for name, own in fields.items():
        table = {"this model": own}
        table |= {label: row for key, label in BASELINES.items() if (row := (baselines.get(key) or {}).get(name))}
        rows.append(_error_head(name, run.unit(name)))
        rows += _error_rows(table)
    note = (
        "Means over samples; the maximum is over all points. Relative L2 is the norm of a sample’s error over the "
        "norm of its truth."
    )
    if baselines:
        note += (
            " Bold: the best of each column. Two baselines need no training: the field of the most similar training "
            "shape, taken over from its nearest points, and the mean of the training split."
        )
    table_body = f'<table class="errors"><tbody>{"".join(rows)}</tbody></table>'
    return f'<div class="scroll">{table_body}</div><p class="note">{note}</p>'


def _error_head(name: str, unit: str) -> str:
    square = f"({unit})²" if "/" in unit else f"{unit}²" if unit else ""
    units = {"mse": square, "mae": unit, "max": unit}
    titles = (", ".join(filter(None, (title, units.get(key)))) for key, title in FIGURES.items())
    cells = "".join(f'<th class="n">{escape(title)}</th>' for title in titles)
    return f'<tr class="group"><th>{escape(_title(name))}</th>{cells}</tr>'


def _error_rows(table: Mapping[str, Any]) -> list[str]:
    """The rows of one field, by what made the figures; the first is the model's own."""
    columns = {key: [value for row in table.values() if (value := _figure(row, key)) is not None] for key in FIGURES}
    longest = max(columns["relative_l2"], default=0) or 1
    rows = []
    for position, (label, row) in enumerate(table.items()):
        cells = []
        for key, column in columns.items():
            value = _figure(row, key)
            text = number(value)
            if key == "relative_l2":
                width = 100 * (value or 0) / longest
                text = f'<span class="bar"><i style="width:{width:.1f}%"></i></span>'
                text += f'<span class="figure">{percent(value)}</span>'
            is_best = len(table) > 1 and value is not None and value == min(column)
            cells.append(f'<td class="n{" best" if is_best else ""}">{text}</td>')
        own = ' class="own"' if position == 0 else ""
        rows.append(f"<tr{own}><td>{escape(label)}</td>{''.join(cells)}</tr>")
    return rows


def _plain_figures(run: Run) -> str:
    """The figures of a task without fields."""
    figures = run.result.get("figures") or {}
    if not figures:
        return _absent(run, "result.json", "the run has not been evaluated")
    rows = "".join(
        f'<tr><td>{escape(_title(key))}</td><td class="n">{number(_finite(value, None))}</td></tr>'
        for key, value in figures.items()
    )
    return f'<div class="scroll"><table>{rows}</table></div>'


# --- cases --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """One field of one sample: points (N, 3), what is drawn of prediction and truth (N,), and its labels."""

    label: str
    sample: str
    relative_l2: float | None
    points: Array
    normals: Array | None
    prediction: Array
    truth: Array
    is_vector: bool
    body: Array | None


def _cases(run: Run) -> str:
    if not run.meta.get("cases"):
        split = run.result.get("split", "test")
        return _absent(run, f"{split}.npz", "no fields of single samples were kept")
    parts = []
    for name in run.fields:
        cases = [case for k in range(len(run.meta["cases"])) if (case := _case(run, k, name)) is not None]
        parts.append(f'<div class="field">{_field_cases(run, name, cases)}</div>')
    first = _words(run.fields[0]) if run.fields else "first field"
    lead = f'<p class="lead">Chosen by their relative L2 error in the {escape(first)}.</p>'
    return lead + "\n".join(parts)


def _case(run: Run, k: int, name: str) -> _Case | None:
    about, arrays = run.meta["cases"][k], run.arrays
    prefix = f"case/{k}/{name}"
    if not all(f"{prefix}/{part}" in arrays for part in ("points", "truth", "prediction")):
        return None
    points, truth, prediction = (
        np.asarray(arrays[f"{prefix}/{part}"], np.float64) for part in ("points", "truth", "prediction")
    )
    normals = arrays.get(f"{prefix}/normals")
    bodies = (f"case/{k}/{other}/points" for other in run.fields if other != name and _on_surface(run, other))
    body = next((arrays[key] for key in bodies if key in arrays), None)
    return _Case(
        label=str(about.get("label", "")),
        sample=str(about.get("sample", "")),
        relative_l2=(about.get("relative_l2") or {}).get(name),
        points=points,
        normals=None if normals is None else np.asarray(normals, np.float64),
        prediction=_magnitude(prediction),
        truth=_magnitude(truth),
        is_vector=truth.ndim == 2 and truth.shape[1] > 1,
        body=None if body is None else np.asarray(body, np.float64),
    )


def _magnitude(values: Array) -> Array:
    """What a picture shows of a field (N, C): its only channel, or the vectors' lengths."""
    values = values.reshape(len(values), -1)
    return values[:, 0] if values.shape[1] == 1 else np.asarray(np.linalg.norm(values, axis=1))


def _on_surface(run: Run, name: str) -> bool:
    about = (run.meta.get("fields") or {}).get(name) or {}
    return str(about.get("points", name)).startswith("surface")


def _field_cases(run: Run, name: str, cases: Sequence[_Case]) -> str:
    unit = run.unit(name)
    quantity = ("speed" if "velocity" in name else "magnitude") if any(case.is_vector for case in cases) else ""
    title = f"<h3>{escape(_title(name))}"
    title += f' <span class="unit">{escape(", ".join(filter(None, (quantity, unit))))}</span></h3>'
    if not cases:
        return f'{title}<p class="absent">No sample of this field was kept.</p>'
    if any(case.points.ndim != 2 or case.points.shape[1] != 3 for case in cases):
        return f'{title}<p class="absent">Pictures are drawn of points in three dimensions only.</p>'
    surface = _on_surface(run, name)
    if surface:
        frame = pictures.frame_around([pictures.surface_extent(case.points) for case in cases], 0.035)
        note = "Seen from ahead, to the side and above; the arrow is the wind, and white lines join equal values."
    else:
        frame = pictures.frame_around([pictures.side(case.points) for case in cases], 0.0)
        note = "The vertical mid-plane, the wind from the left, interpolated between the points on either side of it."
        if any(case.body is not None for case in cases):
            note += " Grey: the shape’s outline."
    values = pictures.value_scale([case.truth for case in cases], [case.prediction for case in cases])
    errors = pictures.error_scale([case.prediction - case.truth for case in cases])
    error_name = f"error in {quantity}" if quantity else "error"
    note += (
        " Prediction and truth have one colour scale for all rows, errors (prediction − truth) another; "
        "values beyond a scale’s ends take its end colours."
    )
    rows = "".join(_case_row(case, unit, surface, frame, values, errors, _words(name)) for case in cases)
    suffix = f", {unit}" if unit else ""
    return (
        f'{title}<p class="note">{escape(note)}</p>'
        f'<div class="scales"><span></span>{_colour_bar(values, (quantity or _words(name)) + suffix)}'
        f"{_colour_bar(errors, error_name + suffix)}</div>"
        '<div class="heads"><span></span><span>Prediction</span><span>Truth</span><span>Error</span></div>'
        f"{rows}"
    )


def _case_row(
    case: _Case, unit: str, surface: bool, frame: pictures.Frame, values: Scale, errors: Scale, field_name: str
) -> str:
    error = case.prediction - case.truth
    largest = np.max(np.abs(error)) if error.size and np.isfinite(error).all() else None
    who = (
        f'<div class="who"><b>{escape(_title(case.label))}</b><span>{escape(case.sample)}</span>'
        f"<span>relative L2 {percent(_finite(case.relative_l2, None))}</span>"
        f"<span>at most {number(largest)} {escape(unit)}</span></div>"
    )
    try:
        if surface:
            view = pictures.surface_view(case.points, case.normals, frame)
        else:
            view = pictures.section_view(case.points, case.body, frame)
    except (QhullError, ValueError) as problem:
        # Qhull's text is a page of its own terms.
        reason = "too few points, or all in a plane" if isinstance(problem, QhullError) else str(problem)
        return f'<div class="case">{who}<p class="absent">Not drawn: {escape(reason)}.</p></div>'
    columns = (("Prediction", case.prediction, values), ("Truth", case.truth, values), ("Error", error, errors))
    figures = []
    for title, column, scale in columns:
        png = b64encode(pictures.field_picture(view, column, scale)).decode()
        alt = escape(f"{title} of the {field_name}, {case.sample}")
        figures.append(
            f'<figure><img src="data:image/png;base64,{png}" alt="{alt}"><figcaption>{title}</figcaption></figure>'
        )
    return f'<div class="case{"" if surface else " section"}">{who}{"".join(figures)}</div>'


def _colour_bar(scale: Scale, label: str) -> str:
    ticks = "".join(f'<span style="left:{100 * at:.2f}%">{text}</span>' for at, text in scale.tick_labels())
    ramp = f"linear-gradient(90deg, {', '.join(scale.gradient())})"
    return (
        f'<div class="scale"><span>{escape(label)}</span><div class="ramp" style="background:{ramp}"></div>'
        f'<div class="ticks">{ticks}</div></div>'
    )


# --- scalars and distributions ------------------------------------------------------------------------------


def _scalars(run: Run) -> str:
    scores = run.result.get("scalars") or {}
    names = list(scores) or list(run.meta.get("scalars") or ())
    if not names:
        return _absent(run, "result.json", "the task derives no scalar from its fields")
    return "".join(f'<div class="two scalar">{_scalar(run, name, scores.get(name))}</div>' for name in names)


def _scalar(run: Run, name: str, score: Any) -> str:
    score = score if isinstance(score, Mapping) else {}
    facts = {
        "R²": _score(score.get("r2")),
        "Spearman": _score(score.get("spearman")),
        "mean error": number(score["mae"]) if score.get("mae") is not None else None,
        "largest error": number(score["max"]) if score.get("max") is not None else None,
        "R² of the true field": _score(score["floor_r2"]) if score.get("floor_r2") is not None else None,
    }
    words = "".join(f'<p class="note">{escape(text)}</p>' for text in _scalar_words(score))
    known = any(score.get(key) is not None for key in ("r2", "mae", "floor_r2"))
    head = f"<div><h3>{escape(_title(name))}</h3>{words}{_facts(facts.items()) if known else ''}</div>"
    prediction, truth, floor = (run.figures(f"{name}/{part}") for part in SCALAR_PARTS)
    if prediction is None or truth is None or len(prediction) != len(truth) or not len(truth):
        return head
    if floor is not None and (len(floor) != len(truth) or np.allclose(floor, truth, rtol=1e-9)):
        floor = None  # the truth is that integral: the rings would all lie on the line
    keys = '<span class="dot" style="--key:var(--accent)">model</span>'
    keys += '<span class="ring" style="--key:var(--second)">true field</span>' if floor is not None else ""
    keys += '<span class="dashed" style="--key:var(--muted)">prediction = truth</span>'
    lines = [f"R²  {_score(score.get('r2'))}", f"Spearman  {_score(score.get('spearman'))}"]
    chart = pictures.parity(f"parity-{name}", truth, prediction, floor, lines)
    return f'{head}<figure class="chart"><div class="keys">{keys}</div>{chart}</figure>'


def _scalar_words(score: Mapping[str, Any]) -> list[str]:
    words = [_full_stop(str(score["note"]))] if score.get("note") else []
    if score.get("r2") is None and not words:
        words.append("R² is undefined for these samples.")
    if score.get("floor_r2") is not None:
        words.append(
            "The true field, integrated over the same points, has the R² that is listed last; with these points no "
            "model can be expected to do better."
        )
    return words


def _distributions(run: Run) -> str:
    charts = []
    for k, name in enumerate(run.fields):
        edges, counts = (run.arrays.get(f"histogram/{name}/{part}") for part in ("edges", "counts"))
        if edges is not None and counts is not None and np.isfinite(edges).all() and np.sum(counts) > 0:
            edges, counts, unit = np.asarray(edges, np.float64), np.asarray(counts, np.float64), run.unit(name)
            words = f"Nine in ten points are within ±{number(_reach(edges, counts, 0.9))} {unit}".rstrip()
            chart = pictures.error_histogram(f"histogram-{k}", edges, counts, unit)
            title = f"{_title(name)}: error of points"
            charts.append(_chart(title, f"{words}; the outermost bars hold what is beyond.", chart))
        values = run.figures(f"{name}/relative_l2")
        if values is not None and np.isfinite(values).any():
            cases = [case for case in run.meta.get("cases") or () if "index" in case]
            marks = {int(case["index"]): str(case.get("label", "")) for case in cases}
            chart = pictures.sample_errors(f"samples-{k}", values, marks)
            charts.append(_chart(f"{_title(name)}: relative L2 of samples", _spread(values, marks), chart))
    if not charts:
        split = run.result.get("split", "test")
        return _absent(run, f"{split}.npz", "no errors of single points or samples were kept")
    return f'<div class="charts">{"".join(charts)}</div>'


def _spread(values: Array, marks: Mapping[int, str]) -> str:
    finite = values[np.isfinite(values)]
    worst = percent(float(finite.max()))
    text = f"Median {percent(float(np.median(finite)))}, worst {worst} of {_plural(len(finite), 'sample')}"
    if len(values) == 1:
        return f"One sample, with {worst}."
    text += "; rings: the cases above." if marks else "."
    if len(finite) < len(values):
        text += f" {_plural(len(values) - len(finite), 'sample')} without a finite error left out."
    return text


def _reach(edges: Array, counts: Array, share: float) -> float:
    """The smallest error, to a bin, that so large a share of the points does not exceed in magnitude."""
    outer = np.maximum(np.abs(edges[:-1]), np.abs(edges[1:]))
    order = np.argsort(outer, kind="stable")
    within = np.cumsum(counts[order]) >= share * counts.sum()
    return float(outer[order][np.argmax(within)])


def _chart(title: str, words: str, svg: str, keys: str = "") -> str:
    return (
        f'<figure class="chart"><h3>{escape(title)}</h3><p class="note">{escape(words)}</p>'
        f'<div class="keys">{keys}</div>{svg}</figure>'
    )


# --- training -----------------------------------------------------------------------------------------------


def _curves(run: Run) -> str:
    training = _by_update(row for row in run.rows if row.get("kind") == "training")
    validation = {weights: _validation(run.rows, weights) for weights in ("ema", "raw")}
    if not training and not any(validation.values()):
        return _absent(run, "metrics.jsonl", "no line of training was written")
    selected = "ema" if validation["ema"] else "raw"
    chosen = validation[selected]

    losses = [_series("training", training, "loss", "muted")]
    for weights, colour in (("ema", "accent"), ("raw", "second")):
        label = f"validation, {'EMA' if weights == 'ema' else weights} weights"
        own = weights == selected
        losses.append(_series(label, validation[weights], "loss", colour, dashed=not own, points=own))
    names = [key for key in (chosen[-1] if chosen else ()) if str(key).endswith("/relative_l2")]
    relative = [
        _series(_words(key.removesuffix("/relative_l2")), chosen, key, colour, points=True)
        for key, colour in zip(names, pictures.SERIES_COLOURS, strict=False)
    ]
    rate = [_series("", training, "learning_rate", "accent")]
    speed = [_series("", training, "samples_per_second", "accent")]

    last = float(max(rows[-1]["update"] for rows in (training, *validation.values()) if rows))
    per_epoch = (run.plan.get("length") or {}).get("updates_per_epoch") or _updates_per_epoch(training)

    def chart(title: str, words: str, series: Sequence[Series], *, log: bool = False, ratio: bool = False) -> str:
        shown = [line for line in series if pictures.can_draw(line, log=log)]
        if not shown:
            why = "no validation split was evaluated" if not chosen and ratio else "no finite value was logged"
            return f'<figure class="chart"><h3>{title}</h3><p class="absent">Not drawn: {why}.</p></figure>'
        svg = pictures.curves(
            f"curve-{title.replace(' ', '-')}",
            shown,
            log=log,
            ratio=ratio,
            last_update=last,
            updates_per_epoch=per_epoch,
        )
        return _chart(title, words, svg, "".join(map(_key, shown)))

    unit = "Weighted mean squared error in standardised units. " if run.fields else ""
    charts = (
        chart("Loss", f"{unit}Log scale.", losses, log=True),
        chart("Relative L2", f"Validation split, {_weights(selected)}. Log scale.", relative, log=True, ratio=True),
        chart("Learning rate", "As the schedule set it.", rate),
        chart("Speed", "Samples per second over all ranks.", speed),
    )
    text = ""
    if not any(validation.values()):
        text = '<p class="absent">No validation split was evaluated: the loss is the training loss alone.</p>'
    return f'{text}<div class="charts">{"".join(charts)}</div>'


def _validation(rows: Iterable[Mapping[str, Any]], weights: str) -> list[Mapping[str, Any]]:
    """The evaluations of the validation split with one kind of weights, their figures among the row's values."""
    return _by_update(
        {**row["figures"], "update": row.get("update")}
        for row in rows
        if row.get("kind") == "evaluation"
        and row.get("split", "validation") == "validation"
        and row.get("weights") == weights
        and isinstance(row.get("figures"), Mapping)
    )


def _key(line: Series) -> str:
    if not line.label:
        return ""
    dashed = ' class="dashed"' if line.dashed else ""
    return f'<span{dashed} style="--key:var(--{line.colour})">{escape(line.label)}</span>'


def _by_update(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows by rising update; of rows of the same update the last written, as a resumed run makes some anew."""
    latest = {row["update"]: row for row in rows if isinstance(row.get("update"), (int, float))}
    return [latest[update] for update in sorted(latest)]


def _series(
    label: str, rows: Sequence[Mapping[str, Any]], key: str, colour: str, *, dashed: bool = False, points: bool = False
) -> Series:
    x = np.array([row["update"] for row in rows], dtype=np.float64)
    y = np.array([_finite(row.get(key), np.nan) for row in rows], dtype=np.float64)
    return Series(label, x, y, colour, dashed, points)


def _updates_per_epoch(rows: Sequence[Mapping[str, Any]]) -> float | None:
    if not rows or not _finite(rows[-1].get("epoch"), 0):
        return None
    return float(rows[-1]["update"] / rows[-1]["epoch"]) or None


def _elapsed(rows: Sequence[Mapping[str, Any]]) -> float | None:
    times = [row["time"] for row in rows if _finite(row.get("time"), None) is not None]
    return max(times) - min(times) if len(times) > 1 else None


# --- how and where ------------------------------------------------------------------------------------------


def _plan(run: Run) -> str:
    plan = run.plan
    if not plan:
        return _absent(run, "plan.json", "how the run was spread over devices is not known")
    summary = escape(batch_arithmetic(plan.get("batch") or {}, plan.get("world_size")))
    facts = _facts(_plan_facts(plan).items())
    parts = [f'<p class="sum">{summary}</p><div class="two"><div>{facts}</div>{_ranks(plan)}</div>']
    if isinstance(reasons := plan.get("reasons"), Mapping) and reasons:
        lines = _facts((_words(name), reason) for name, reason in reasons.items())
        parts.append(f'<h3 class="because">Because</h3>{lines}')
    if warnings := plan.get("warnings"):
        lines = "".join(f'<p class="note">{escape(str(line))}</p>' for line in warnings)
        parts.append(f'<h3 class="because">Warnings</h3>{lines}')
    return "".join(parts)


def _plan_facts(plan: Mapping[str, Any]) -> dict[str, Any]:
    nodes, length, data = plan.get("nodes") or (), plan.get("length") or {}, plan.get("data") or {}
    model, endpoint = plan.get("model") or {}, plan.get("endpoint") or {}
    ranks, sizes = _plural(plan.get("world_size"), "rank"), [f"{_count(size)} {split}" for split, size in data.items()]
    facts = {
        "launcher": plan.get("launcher"),
        "ranks": f"{ranks} on {_plural(len(nodes), 'node')}" if nodes else ranks,
        "meeting at": f"{endpoint.get('host')}, port {endpoint.get('port') or 'chosen at the start'}",
        "attempt": f"{plan.get('attempt')} (the run was started again)",
        "model": f"{model.get('kind')}, {_count(model.get('parameters'))} parameters",
        "data": f"{_listed(sizes)} samples",
        "length": _length_words(length),
    }
    known = {"meeting at": endpoint, "attempt": plan.get("attempt"), "model": model, "data": data}
    return {name: text for name, text in facts.items() if known.get(name, True)}


def _ranks(plan: Mapping[str, Any]) -> str:
    nodes, workers = [str(node) for node in plan.get("nodes") or ()], plan.get("workers") or []
    if not workers:
        return ""
    head = '<thead><tr><th>rank</th><th>node</th><th class="n">local rank</th><th class="n">device</th></tr></thead>'
    rows = [_rank_row(worker, nodes) for worker in workers]
    table = f"<table>{head}<tbody>{''.join(rows[:RANKS_SHOWN])}</tbody></table>"
    if (more := len(rows) - RANKS_SHOWN) > 0:
        rest = f"<table>{head}<tbody>{''.join(rows[RANKS_SHOWN:])}</tbody></table>"
        table += f"<details><summary>{_plural(more, 'more rank')}</summary>{rest}</details>"
    if (plan.get("world_size") or 0) > len(workers):
        host = escape(_node(plan.get("node_rank"), nodes))
        table += f'<p class="note">The ranks that were started on {host}.</p>'
    return f'<div class="ranks">{table}</div>'


def batch_arithmetic(batch: Mapping[str, Any], world_size: int | None) -> str:
    """The batch plan in one line: "8 samples per update = 2 ranks × 4; per rank 1 micro-batch of 4"."""
    try:
        effective, per_rank, micro, steps = (int(batch[key]) for key in BATCH_PARTS)
    except (KeyError, TypeError, ValueError):
        return "The batch is not known."
    micro_text = f"{micro}" if per_rank == micro * steps else f"at most {micro}"
    return (
        f"{_plural(effective, 'sample')} per update = {_plural(world_size, 'rank')} × {per_rank}; "
        f"per rank {_plural(steps, 'micro-batch', 'micro-batches')} of {micro_text}"
    )


def _length_words(length: Mapping[str, Any]) -> str | None:
    if not length.get("total_updates"):
        return None
    text = f"{_count(length['total_updates'])} updates"
    if length.get("epochs") and length.get("updates_per_epoch"):
        text += f" = {_trimmed(length['epochs'])} epochs of {_plural(length['updates_per_epoch'], 'update')}"
    return text


def _rank_row(worker: Mapping[str, Any], nodes: Sequence[str]) -> str:
    return (
        f"<tr><td>{escape(str(worker.get('rank', '–')))}</td><td>{escape(_node(worker.get('node_rank'), nodes))}</td>"
        f'<td class="n">{escape(str(worker.get("local_rank", "–")))}</td>'
        f'<td class="n mono">{escape(str(worker.get("device", "–")))}</td></tr>'
    )


def _node(rank: Any, nodes: Sequence[str]) -> str:
    return nodes[rank] if isinstance(rank, int) and 0 <= rank < len(nodes) else "this node"


def _environment(run: Run) -> str:
    if not run.environment:
        return _absent(run, "environment.json", "versions and host are not known")
    return f'<div class="columns">{_facts(_flat(run.environment))}</div>'


def _flat(content: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Names and values of nested content, under their own names: a package speaks for itself."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif isinstance(value, (list, tuple)):
            yield _words(str(key)), shlex.join(map(str, value))
        else:
            yield _words(str(key)), value


def _facts(facts: Iterable[tuple[str, Any]]) -> str:
    """A list of names and values; values that are None are left out."""
    rows = (
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in facts
        if value is not None
    )
    return f'<dl class="facts">{"".join(rows)}</dl>'


def _configuration(run: Run) -> str:
    lines = _plural(run.config.count("\n"), "line")
    return f"<details><summary>config.yaml, resolved, {lines}</summary><pre>{escape(run.config)}</pre></details>"


# --- words --------------------------------------------------------------------------------------------------


def _absent(run: Run, file: str, consequence: str) -> str:
    trouble = run.troubles.get(file)
    text = f"{trouble}: {consequence}." if trouble else f"{consequence[0].upper()}{consequence[1:]}."
    return f'<p class="absent">{escape(text)}</p>'


def _finite(value: Any, otherwise: Any) -> Any:
    """The value where it is a finite number."""
    return value if isinstance(value, (int, float)) and isfinite(value) else otherwise


def _figure(row: Any, key: str = "relative_l2") -> float | None:
    """A figure of a field's row; None where it is missing or not finite."""
    value: float | None = _finite(row.get(key), None) if isinstance(row, Mapping) else None
    return value


def _words(name: str) -> str:
    return name.replace("_", " ")


def _title(name: str) -> str:
    words = _words(name)
    return words[:1].upper() + words[1:]


def _full_stop(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _sentence(parts: Sequence[str]) -> str:
    return _full_stop(", ".join(parts))


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def _weights(kind: Any) -> str:
    return {"ema": "averaged weights (EMA)", "raw": "raw weights"}.get(str(kind), f"{kind} weights")


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else number(_finite(value, None))


def _trimmed(value: float) -> str:
    """Three digits, fewer where the number is whole."""
    return _count(int(value)) if float(value).is_integer() else number(value)


def _plural(value: Any, one: str, many: str = "") -> str:
    return f"{_count(value)} {one if value == 1 else many or one + 's'}"


def _score(value: float | None) -> str:
    """A score whose best value is 1: three decimals, more where they would be nines; never rounded up to 1."""
    if value is None or not isfinite(value):
        return "undefined"
    digits = 3 if value < 0.999 else 5
    return f"{min(value, 1 - 10.0**-digits) if value < 1 else value:.{digits}f}".replace("-", "−")


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{number(seconds)} <small>s</small>"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} <small>min</small> {rest:02d} <small>s</small>"
    return f"{minutes // 60:,} <small>h</small> {minutes % 60:02d} <small>min</small>"
