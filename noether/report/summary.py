"""The top of the page: what the run achieved, in a sentence or two, and tiles of numbers."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from noether.evaluation.tables import BASELINES
from noether.report.elements import fill
from noether.report.numbers import finite, percent
from noether.report.phrases import in_words, listed
from noether.report.run import ReportedRun, figure

TILES_IN_A_ROW = 6


def summary_header(run: ReportedRun) -> Markup:
    """The run's name, the verdict, and what was trained on how many samples."""
    model, data = run.plan.get("model") or {}, run.plan.get("data") or {}
    return fill("summary.html", run_id=run.run_id, verdict=verdict(run), model=model, data=data, result=run.result)


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
    return {name: score for name, score in scores if score.get("r2") is not None}


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


def summary_tiles(run: ReportedRun) -> Markup:
    """The headline numbers, in rows of like length."""
    times = [row["time"] for row in run.rows if finite(row.get("time")) is not None]
    logged = max(times) - min(times) if len(times) > 1 else None
    return fill("tiles.html", run=run, result=run.result, scores=_scores(run), logged=logged, most=TILES_IN_A_ROW)
