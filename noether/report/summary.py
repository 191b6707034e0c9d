"""The top of the page: what the run achieved, in a sentence or two, and tiles of numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from markupsafe import Markup

from noether.evaluation.tables import BASELINES
from noether.report.elements import fill
from noether.report.numbers import count_text, duration_parts, finite, number, percent, score_text, short_number
from noether.report.phrases import in_words, listed, plural, weights_name
from noether.report.run import ReportedRun, figure

TILES_IN_A_ROW = 6


def summary_header(run: ReportedRun) -> Markup:
    """The run's name, the verdict, and what was trained on how many samples."""
    model, data, weights = run.plan.get("model") or {}, run.plan.get("data") or {}, run.result.get("weights")
    also = [
        f"Model {model.get('kind', '')} with {count_text(model.get('parameters'))} parameters" if model else "",
        f"trained on {plural(data['training'], 'sample')}" if data.get("training") else "",
        f"{weights_name(weights)} of checkpoint {run.result.get('checkpoint', '–')}" if weights else "",
    ]
    return fill("summary.html", run_id=run.run_id, verdict=verdict(run), also=", ".join(filter(None, also)))


def verdict(run: ReportedRun) -> Markup:
    """What the run achieved, in a sentence or two with numbers."""
    result, fields = run.result, run.result.get("fields") or {}
    things = "shapes" if fields else "samples"
    nearest = [figure(run.baseline("nearest_shape", name)) for name in fields]
    done = max((row["update"] for row in run.rows if isinstance(row.get("update"), int)), default=0)
    return fill(
        "verdict.html",
        samples=result.get("samples") or len(run.meta.get("names") or ()),
        things=f"unseen {things}" if run.split == "test" else f"{things} of the {run.split} split",
        fields=fields,
        beside=[] if None in nearest else [percent(error) for error in nearest],
        scalars=_scores(run),
        beaten=_unbeaten_baselines(run),
        undefined=[in_words(name) for name, row in fields.items() if figure(row) is None],
        figures=result.get("figures") or {},
        done=done,
        total=(run.plan.get("length") or {}).get("total_updates"),
        losses=[row.get("loss") for row in run.rows if row.get("kind") == "training"],
    )


def _scores(run: ReportedRun) -> dict[str, Mapping[str, Any]]:
    """The scores of the scalars that have an R²."""
    scores = (run.result.get("scalars") or {}).items()
    return {name: score for name, score in scores if isinstance(score, Mapping) and score.get("r2") is not None}


def _unbeaten_baselines(run: ReportedRun) -> list[str]:
    """The baselines that are at least as good, with their fields: a failure must be read at the top."""
    unbeaten = []
    for baseline, label in BASELINES.items():
        better = [
            in_words(name)
            for name, row in (run.result.get("fields") or {}).items()
            if (own := figure(row)) is not None
            and (other := figure(run.baseline(baseline, name))) is not None
            and own >= other
        ]
        unbeaten += [f"the {label} in {listed(better)}"] if better else []
    return unbeaten


@dataclass(frozen=True)
class Tile:
    """A number at the top of the page, in parts with their units; kind "key": of what the run is about."""

    figures: Sequence[tuple[str, str]]
    name: str
    beside: str
    kind: str = ""


def summary_tiles(run: ReportedRun) -> Markup:
    """The headline numbers."""
    tiles = list(_tiles(run))
    rows = ceil(len(tiles) / TILES_IN_A_ROW) or 1
    columns = ceil(len(tiles) / rows)  # rows of like length: no tile is left alone in the last
    return fill("tiles.html", tiles=tiles, columns=columns)


def _tiles(run: ReportedRun) -> Iterator[Tile]:
    result = run.result
    for name, row in (result.get("fields") or {}).items():
        other = figure(run.baseline("nearest_shape", name))
        beside = "relative L2" + (f"; nearest shape {percent(other)}" if other is not None else "")
        yield Tile([(percent(figure(row)), "")], in_words(name), beside, kind="key")
    for name, score in _scores(run).items():
        rank = score.get("spearman")
        beside = f"Spearman {score_text(rank)}" if rank is not None else ""
        yield Tile([(score_text(score["r2"]), "R²")], in_words(name).removesuffix(" coefficient"), beside, kind="key")
    if updates := result.get("updates"):
        per_epoch = (run.plan.get("length") or {}).get("updates_per_epoch")
        beside = f"{short_number(updates / per_epoch)} epochs" if per_epoch else ""
        yield Tile([(count_text(updates), "")], "updates", beside)
    if (rate := result.get("samples_per_second")) is not None:
        ranks, use = result.get("world_size"), result.get("device_use")
        beside = f"on {plural(ranks, 'rank')}" if ranks else ""
        beside += f", devices busy {percent(use, 2)}" if use is not None else ""
        yield Tile([(number(rate), "samples/s")], "training speed", beside)
    if seconds := result.get("seconds"):
        yield Tile(duration_parts(seconds), "wall time", "training and evaluation")
    elif len(times := [row["time"] for row in run.rows if finite(row.get("time")) is not None]) > 1:
        yield Tile(duration_parts(max(times) - min(times)), "wall time", "from the first log line to the last")
