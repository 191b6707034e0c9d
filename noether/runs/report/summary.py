"""The top of the page: what the run achieved, in a sentence or two, and tiles of numbers."""

from markupsafe import Markup

from noether.common.numbers import finite
from noether.runs.records import mapping
from noether.runs.report.elements import fill
from noether.runs.report.numbers import percent
from noether.runs.report.phrases import in_words
from noether.runs.report.run import ReportedRun
from noether.runs.report.tables import own_metrics, unbeaten_baselines

TILES_IN_A_ROW = 6


def summary_header(run: ReportedRun) -> Markup:
    """The run's name, the verdict, and what was trained on how many samples."""
    model, data = run.plan.get("model") or {}, run.plan.get("data") or {}
    return fill("summary.html", run_id=run.run_id, verdict=verdict(run), model=model, data=data, result=run.result)


def verdict(run: ReportedRun) -> Markup:
    """What the run achieved, in a sentence or two with numbers."""
    result, fields = run.result, run.result.get("fields") or []
    found = {name: run.relative_l2(name) for name in fields}
    errors, beside = ({name: pair[k] for name, pair in found.items()} for k in range(2))
    return fill(
        "verdict.html",
        samples=result.get("samples") or len(run.meta.get("names") or ()),
        things="unseen cases" if fields else "unseen samples",
        errors=errors,
        beside=[] if None in beside.values() else [percent(error) for error in beside.values()],
        scalars=_scores(run),
        beaten=unbeaten_baselines(run.result),
        undefined=[in_words(name) for name, error in errors.items() if error is None],
        metrics=own_metrics(run.result, run.described),
        done=run.history.update or 0,
        total=(run.plan.get("length") or {}).get("total_updates"),
        losses=[row.get("loss") for row in run.rows if row.get("kind") == "training"],
    )


def _scores(run: ReportedRun) -> dict[str, tuple[float, float | None]]:
    """R² and Spearman of the scalars that have an R²."""
    scores = {name: run.described.of_whole(run.metrics, name) for name in run.result.get("scalars") or {}}
    return {name: (r2, finite(own.get("spearman")))
            for name, own in scores.items() if (r2 := finite(own.get("r2"))) is not None}  # fmt: skip


def summary_tiles(run: ReportedRun) -> Markup:
    """The headline numbers, in rows of like length."""
    times = [row["time"] for row in run.rows if finite(row.get("time")) is not None]
    # One value: that of the section of the time, where one attempt made every update.
    parts = mapping(mapping(run.result, "time_use"), "parts").values()
    whole = sum(finite(part, 0.0) for part in parts) if parts and not run.resumed else None
    logged = max(times) - min(times) if len(times) > 1 else None
    errors = [(name, *run.relative_l2(name)) for name in run.result.get("fields") or ()]
    scores, own = _scores(run), own_metrics(run.result, run.described)
    own = [(metric, value) for metric, value in own if metric.headline and metric.of not in scores]
    shown = {"errors": errors, "own": own, "scores": scores}
    return fill("tiles.html", run=run, result=run.result, **shown, whole=whole, logged=logged, most=TILES_IN_A_ROW)
