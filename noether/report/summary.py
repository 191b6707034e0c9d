"""What did the run achieve: the verdict in a sentence or two, and the tiles of numbers at the top of the page."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil
from typing import Any

from noether.report.numbers import (
    count_text,
    duration_text,
    finite,
    number,
    percent,
    score_text,
    short_number,
)
from noether.report.phrases import BASELINES, in_words, listed, plural, sentence, weights_name
from noether.report.run import ReportedRun, figure

TILES_IN_A_ROW = 6


def summary_header(run: ReportedRun) -> str:
    """The run's name, the verdict, and what was trained on how many samples."""
    model, data = run.plan.get("model") or {}, run.plan.get("data") or {}
    also = []
    if model:
        also.append(f"Model {model.get('kind', '')} with {count_text(model.get('parameters'))} parameters")
    if data.get("training"):
        also.append(f"trained on {plural(data['training'], 'sample')}")
    if run.result.get("weights"):
        also.append(f"{weights_name(run.result['weights'])} of checkpoint {run.result.get('checkpoint', '–')}")
    return (
        f'<header>\n<p class="kicker">Training report</p>\n<h1 class="mono">{escape(run.run_id)}</h1>\n'
        f'<p class="verdict">{verdict(run)}</p>\n'
        + (f'<p class="also">{escape(sentence(also))}</p>\n' if also else "")
        + "</header>"
    )


def verdict(run: ReportedRun) -> str:
    """What the run achieved, in a sentence or two of HTML with numbers."""
    fields, baselines = run.result.get("fields") or {}, run.result.get("baselines") or {}
    samples = run.result.get("samples") or len(run.meta.get("names") or ()) or None
    split = str(run.result.get("split", "test"))
    kind = "unseen shapes" if split == "test" else f"shapes of the {split} split"
    where = f"On {count_text(samples)} {kind}" if samples else f"On {kind}"
    if not fields and (accuracy := finite((run.result.get("figures") or {}).get("accuracy"), None)) is not None:
        return f"{escape(where.replace('shapes', 'samples'))} the model is right in <b>{percent(accuracy)}</b>."
    if not fields:
        figures = [
            f"{escape(in_words(key))} <b>{number(finite(value, None))}</b>"
            for key, value in (run.result.get("figures") or {}).items()
        ]
        return f"{escape(where.replace('shapes', 'samples'))}: {', '.join(figures)}." if figures else _progress(run)
    parts = [f"the {escape(in_words(name))} by <b>{percent(figure(row))}</b>" for name, row in fields.items()]
    text = f"{escape(where)} the model misses {listed(parts)} (mean relative L2)"
    nearest = {name: figure((baselines.get("nearest_shape") or {}).get(name)) for name in fields}
    beside = [percent(nearest[name]) for name in fields if nearest[name] is not None]
    if len(beside) == len(fields):
        text += f", the nearest training shape by {listed(beside)}"
    for name, score in (run.result.get("scalars") or {}).items():
        if isinstance(score, Mapping) and score.get("r2") is not None:
            text += f"; {escape(in_words(name))} R² <b>{score_text(score['r2'])}</b>"
    return f"{text}. {_against_baselines(fields, baselines)}".strip()


def _against_baselines(fields: Mapping[str, Any], baselines: Mapping[str, Any]) -> str:
    """Names every field in which a baseline is at least as good: a failure must be read at the top."""
    beaten = []
    for baseline, label in BASELINES.items():
        better = [
            in_words(name)
            for name, row in fields.items()
            if (own := figure(row)) is not None
            and (other := figure((baselines.get(baseline) or {}).get(name))) is not None
            and own >= other
        ]
        beaten += [f"the {label} in {listed(better)}"] if better else []
    undefined = [in_words(name) for name, row in fields.items() if figure(row) is None]
    sentences = [f"It does not beat {escape(listed(beaten))}."] if beaten else []
    sentences += [f"The error of the {escape(listed(undefined))} is not finite."] if undefined else []
    return " ".join(sentences)


def _progress(run: ReportedRun) -> str:
    done = max((row["update"] for row in run.rows if isinstance(row.get("update"), int)), default=0)
    total = (run.plan.get("length") or {}).get("total_updates")
    if not done:
        return "The run has made no update yet."
    last = [row for row in run.rows if row.get("kind") == "training"][-1:]
    loss = f"; the training loss is <b>{number(finite(last[0].get('loss'), None))}</b>" if last else ""
    made = f"{count_text(done)} of {plural(total, 'update')}" if total else plural(done, "update")
    return f"The run has made {made} and has not been evaluated on a test split{loss}."


def summary_tiles(run: ReportedRun) -> str:
    """The headline numbers."""
    tiles = []
    baselines = run.result.get("baselines") or {}
    for name, row in (run.result.get("fields") or {}).items():
        other = figure((baselines.get("nearest_shape") or {}).get(name))
        beside = "relative L2" + (f"; nearest shape {percent(other)}" if other is not None else "")
        tiles.append(("key", percent(figure(row)), in_words(name), beside))
    for name, score in (run.result.get("scalars") or {}).items():
        if isinstance(score, Mapping) and score.get("r2") is not None:
            rank = score.get("spearman")
            beside = f"Spearman {score_text(rank)}" if rank is not None else ""
            short = in_words(name).removesuffix(" coefficient")
            tiles.append(("key", f"{score_text(score['r2'])} <small>R²</small>", short, beside))
    updates, length = run.result.get("updates"), run.plan.get("length") or {}
    if updates:
        per_epoch = length.get("updates_per_epoch")
        beside = f"{short_number(updates / per_epoch)} epochs" if per_epoch else ""
        tiles.append(("", count_text(updates), "updates", beside))
    if (rate := run.result.get("samples_per_second")) is not None:
        ranks = run.result.get("world_size")
        use = run.result.get("device_use")
        beside = f"on {plural(ranks, 'rank')}" if ranks else ""
        beside += f", devices busy {percent(use, 2)}" if use is not None else ""
        tiles.append(("", f"{number(rate)} <small>samples/s</small>", "training speed", beside))
    if seconds := run.result.get("seconds"):
        tiles.append(("", duration_text(seconds), "wall time", "training and evaluation"))
    elif seconds := _elapsed(run.rows):
        tiles.append(("", duration_text(seconds), "wall time", "from the first log line to the last"))
    parts = [
        f'<div class="{kind}"><dt>{escape(name)}</dt><dd class="figure">{value}</dd>'
        f'<dd class="beside">{escape(beside)}</dd></div>'
        for kind, value, name, beside in tiles
    ]
    rows = ceil(len(parts) / TILES_IN_A_ROW) or 1
    columns = ceil(len(parts) / rows)  # rows of like length: no tile is left alone in the last
    return f'<dl class="tiles" style="--columns: {columns}">{"".join(parts)}</dl>' if parts else ""


def _elapsed(rows: Sequence[Mapping[str, Any]]) -> float | None:
    times = [row["time"] for row in rows if finite(row.get("time"), None) is not None]
    return max(times) - min(times) if len(times) > 1 else None
