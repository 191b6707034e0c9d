"""The sections that every report has: summary, curves, time, plan, environment and configuration."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from markupsafe import Markup

from noether.common.numbers import finite, listed
from noether.launch.batches import BatchPlan
from noether.runs.metrics import weights_name
from noether.runs.report.charts import Series, curves, drawable, time_strip
from noether.runs.report.elements import Chart, absent, charts, fill, heading, in_words
from noether.runs.report.numbers import percent
from noether.runs.report.palette import BANDS, SERIES_COLOURS
from noether.runs.report.run import ReportedRun
from noether.runs.report.tables import own_metrics, unbeaten_baselines

TILES_IN_A_ROW = 6


def summary_header(run: ReportedRun) -> Markup:
    """Return the header: run name, verdict, the model, and the number of training samples."""
    model, data = run.plan.get("model") or {}, run.plan.get("data") or {}
    return fill("summary.html", run_id=run.run_id, verdict=verdict(run), model=model, data=data, result=run.result)


def verdict(run: ReportedRun) -> Markup:
    """Summarize in a sentence or two, with numbers, what the run achieved."""
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
    """Return R² and Spearman of each scalar that has an R²."""
    scores = {name: run.described.of_whole(run.metrics, name) for name in run.result.get("scalars") or {}}
    return {name: (r2, finite(own.get("spearman")))
            for name, own in scores.items() if (r2 := finite(own.get("r2"))) is not None}  # fmt: skip


def summary_tiles(run: ReportedRun) -> Markup:
    """Return the tiles with the headline metrics, in rows of similar length."""
    times = [row["time"] for row in run.rows if finite(row.get("time")) is not None]
    logged = max(times) - min(times) if len(times) > 1 else None
    errors = [(name, *run.relative_l2(name)) for name in run.result.get("fields") or ()]
    scores, own = _scores(run), own_metrics(run.result, run.described)
    own = [(metric, value) for metric, value in own if metric.headline and metric.of not in scores]
    shown = {"errors": errors, "own": own, "scores": scores, "whole": run.seconds, "logged": logged}
    return fill("tiles.html", run=run, result=run.result, **shown, most=TILES_IN_A_ROW)


TRAINING = ("training", "")
"""The split and weights of the training curves."""
OF_TRAINING = (
    ("learning_rate", "The learning rate that the schedule set."),
    ("samples_per_second", "Samples per second over all ranks."),
)


def training_section(run: ReportedRun) -> Markup:
    """Return charts of the logged metrics over the updates."""
    history = run.history
    losses_of = [(split, weights) for split, weights, metric in history.curves if metric == "loss"]
    if not losses_of:
        return absent(run, "metrics.jsonl", "no training row was logged")
    evaluated = [whose for whose in losses_of if whose[0] == "validation"]
    chosen = "validation", history.selected_weights.get("validation", "")

    def line(whose: tuple[str, str], metric: str, colour: str, label: str = "", **more: bool) -> Series:
        x, y = history.curve(*whose, metric)
        return Series(label, x, y, colour, **{"dashed": whose not in (TRAINING, chosen), **more})

    losses = [line(TRAINING, "loss", "muted", "training")]
    for whose in evaluated:
        own = whose == chosen
        label = f"validation, {weights_name(whose[1])}"
        losses.append(line(whose, "loss", "accent" if own else "second", label, points=own))
    headlines = [metric for metric in run.described.values() if metric.headline]
    last = float(max(history.curve(*whose, "loss")[0][-1] for whose in losses_of))
    per_epoch = (run.plan.get("length") or {}).get("updates_per_epoch") or history.updates_per_epoch()

    def chart(title: str, words: str, series: Sequence[Series], *, log: bool = False, unit: str | None = None) -> Chart:
        shown = [line for line in series if drawable(line.y, log=log).any()]
        if not shown:
            unevaluated = unit is not None and not evaluated
            why = "no validation split was evaluated" if unevaluated else "no finite value was logged"
            return Chart(title, f"Not drawn: {why}.")
        name = f"curve-{title.replace(' ', '-')}"
        svg = curves(name, shown, log=log, ratio=unit == "%", last_update=last, updates_per_epoch=per_epoch)
        keys = [(line.label, line.colour, "dashed" if line.dashed else "") for line in shown if line.label]
        return Chart(title, words, svg, keys)

    def of_validation(unit: str) -> Chart:
        metrics, series = [metric for metric in headlines if metric.unit == unit], []
        for k, metric in enumerate(metrics):
            again, colour = divmod(k, len(SERIES_COLOURS))
            name = in_words(metric.of or metric.name)
            series.append(line(chosen, metric.name, SERIES_COLOURS[colour], name, points=True, dashed=bool(again)))
        falling = all(metric.better == "lower" for metric in metrics)
        title = heading(listed(list(dict.fromkeys(metric.label or metric.title for metric in metrics))))
        words = f"Validation split, {weights_name(chosen[1])}." + " Log scale." * falling
        return chart(", ".join(filter(None, (title, unit.strip("%")))), words, series, log=falling, unit=unit)

    of_fields = "Weighted mean squared error in standardised units. " if run.fields else ""
    shown = [
        chart(heading(run.described["loss"].title), f"{of_fields}Log scale.", losses, log=True),
        *map(of_validation, dict.fromkeys(metric.unit for metric in headlines)),  # One chart per unit.
        *(
            chart(heading(run.described[name].title), words, [line(TRAINING, name, "accent")])
            for name, words in OF_TRAINING
        ),
    ]
    missing = "No validation split was evaluated, so only the training loss is shown."
    return charts(shown, note="" if evaluated else missing)


def time_section(run: ReportedRun) -> Markup:
    """Return how time was used: a chart of its shares over the updates, and the seconds of the last attempt."""
    updates, shares = run.history.time_shares()
    whole = run.result.get("time_use")
    if not len(updates) and not whole:
        return absent(run, "metrics.jsonl", "no line records how the time was used")
    keys = [(name, colour, "") for name, (colour, _) in BANDS.items()]
    words = "Share of the time since the previous log line, mean over the ranks."
    bands = {colour: shares[name] for name, colour, _ in keys}
    strip = [Chart("Over the updates", words, time_strip(updates, bands), keys)] if len(updates) else []
    return fill("time.html", strip=strip, whole=whole, arithmetic=run.result.get("arithmetic") or {})


RANKS_SHOWN = 16


def plan_section(run: ReportedRun) -> Markup:
    """Return the plan: the batch in one line, facts, ranks, reasons and warnings."""
    plan = run.plan
    if not plan:
        return absent(run, "plan.json", "how the run was spread over devices is not known")
    batch = batch_arithmetic(plan.get("batch") or {}, plan.get("world_size"))
    return fill("plan.html", plan=plan, batch=batch, most=RANKS_SHOWN)


def batch_arithmetic(batch: Mapping[str, Any], world_size: Any) -> str:
    """Describe the batch of plan.json in one line, as `noether plan` does."""
    try:
        parts = {part.name: int(batch[part.name]) for part in fields(BatchPlan)}
        return BatchPlan(**parts).describe(int(world_size))
    except (KeyError, TypeError, ValueError):
        return "The batch is not known."


def environment_section(run: ReportedRun) -> Markup:
    """Return versions, host and command."""
    if not run.environment:
        return absent(run, "environment.json", "versions and host are not known")
    return fill("environment.html", environment=run.environment, command=lambda words: shlex.join(map(str, words)))


def configuration_section(run: ReportedRun) -> Markup:
    """Return the resolved configuration as a collapsed block."""
    return fill("configuration.html", config=run.config)
