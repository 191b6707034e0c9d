"""The top of the page: what the run achieved, in a sentence or two, and tiles of numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from markupsafe import Markup

from noether.evaluation.tables import BASELINES
from noether.report.elements import fill
from noether.report.numbers import (
    count_text,
    duration_parts,
    finite,
    number,
    percent,
    score_text,
    short_number,
)
from noether.report.phrases import in_words, listed, plural, sentence, weights_name
from noether.report.run import ReportedRun, figure

TILES_IN_A_ROW = 6


def summary_header(run: ReportedRun) -> Markup:
    """The run's name, the verdict, and what was trained on how many samples."""
    model, data = run.plan.get("model") or {}, run.plan.get("data") or {}
    also = []
    if model:
        also.append(f"Model {model.get('kind', '')} with {count_text(model.get('parameters'))} parameters")
    if data.get("training"):
        also.append(f"trained on {plural(data['training'], 'sample')}")
    if run.result.get("weights"):
        also.append(f"{weights_name(run.result['weights'])} of checkpoint {run.result.get('checkpoint', '–')}")
    return fill("summary.html", run_id=run.run_id, verdict=verdict(run), also=sentence(also) if also else "")


def verdict(run: ReportedRun) -> Markup:
    """What the run achieved, in a sentence or two with numbers."""
    fields, baselines = run.result.get("fields") or {}, run.result.get("baselines") or {}
    samples = run.result.get("samples") or len(run.meta.get("names") or ()) or None
    split = str(run.result.get("split", "test"))
    things = "shapes" if fields else "samples"
    kind = f"unseen {things}" if split == "test" else f"{things} of the {split} split"
    figures = run.result.get("figures") or {}
    accuracy = finite(figures.get("accuracy"), None)
    nearest = {name: figure((baselines.get("nearest_shape") or {}).get(name)) for name in fields}
    beside = [percent(nearest[name]) for name in fields if nearest[name] is not None]
    scores = (run.result.get("scalars") or {}).items()
    beaten, undefined = _against_baselines(fields, baselines)
    made, loss = _progress(run)
    return fill(
        "verdict.html",
        where=f"On {count_text(samples)} {kind}" if samples else f"On {kind}",
        fields=[(in_words(name), percent(figure(row))) for name, row in fields.items()],
        beside=listed(beside) if len(beside) == len(fields) else "",
        scalars=[
            (in_words(name), score_text(score["r2"]))
            for name, score in scores
            if isinstance(score, Mapping) and score.get("r2") is not None
        ],
        beaten=listed(beaten),
        undefined=listed(undefined),
        accuracy="" if accuracy is None else percent(accuracy),
        figures=[(in_words(key), number(finite(value, None))) for key, value in figures.items()],
        made=made,
        loss=loss,
    )


def _against_baselines(fields: Mapping[str, Any], baselines: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns the baselines that are at least as good, with their fields, and the fields without a finite error.

    A failure must be read at the top.
    """
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
    return beaten, [in_words(name) for name, row in fields.items() if figure(row) is None]


def _progress(run: ReportedRun) -> tuple[str, str]:
    """Returns how many updates are made, and the last training loss; "" where there is none."""
    done = max((row["update"] for row in run.rows if isinstance(row.get("update"), int)), default=0)
    total = (run.plan.get("length") or {}).get("total_updates")
    if not done:
        return "", ""
    last = [row for row in run.rows if row.get("kind") == "training"][-1:]
    loss = number(finite(last[0].get("loss"), None)) if last else ""
    return f"{count_text(done)} of {plural(total, 'update')}" if total else plural(done, "update"), loss


@dataclass(frozen=True)
class Tile:
    """A number at the top of the page, in parts with their units; kind "key": of what the run is about."""

    figures: Sequence[tuple[str, str]]
    name: str
    beside: str
    kind: str = ""


def summary_tiles(run: ReportedRun) -> Markup:
    """The headline numbers."""
    tiles: list[Tile] = []
    baselines = run.result.get("baselines") or {}
    for name, row in (run.result.get("fields") or {}).items():
        other = figure((baselines.get("nearest_shape") or {}).get(name))
        beside = "relative L2" + (f"; nearest shape {percent(other)}" if other is not None else "")
        tiles.append(Tile([(percent(figure(row)), "")], in_words(name), beside, kind="key"))
    for name, score in (run.result.get("scalars") or {}).items():
        if isinstance(score, Mapping) and score.get("r2") is not None:
            rank = score.get("spearman")
            beside = f"Spearman {score_text(rank)}" if rank is not None else ""
            short = in_words(name).removesuffix(" coefficient")
            tiles.append(Tile([(score_text(score["r2"]), "R²")], short, beside, kind="key"))
    updates, length = run.result.get("updates"), run.plan.get("length") or {}
    if updates:
        per_epoch = length.get("updates_per_epoch")
        beside = f"{short_number(updates / per_epoch)} epochs" if per_epoch else ""
        tiles.append(Tile([(count_text(updates), "")], "updates", beside))
    if (rate := run.result.get("samples_per_second")) is not None:
        ranks = run.result.get("world_size")
        use = run.result.get("device_use")
        beside = f"on {plural(ranks, 'rank')}" if ranks else ""
        beside += f", devices busy {percent(use, 2)}" if use is not None else ""
        tiles.append(Tile([(number(rate), "samples/s")], "training speed", beside))
    if seconds := run.result.get("seconds"):
        tiles.append(Tile(duration_parts(seconds), "wall time", "training and evaluation"))
    elif seconds := _elapsed(run.rows):
        tiles.append(Tile(duration_parts(seconds), "wall time", "from the first log line to the last"))
    rows = ceil(len(tiles) / TILES_IN_A_ROW) or 1
    columns = ceil(len(tiles) / rows)  # rows of like length: no tile is left alone in the last
    return fill("tiles.html", tiles=tiles, columns=columns)


def _elapsed(rows: Sequence[Mapping[str, Any]]) -> float | None:
    times = [row["time"] for row in rows if finite(row.get("time"), None) is not None]
    return max(times) - min(times) if len(times) > 1 else None
