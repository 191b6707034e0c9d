"""How the training went: loss, validation error, learning rate, speed and use of the time over the updates."""

from collections.abc import Sequence

from markupsafe import Markup

from noether.common.numbers import listed
from noether.runs.metrics import weights_name
from noether.runs.report.charts import Series, can_draw, curves, time_strip
from noether.runs.report.elements import Chart, absent, charts, fill
from noether.runs.report.palette import BANDS, SERIES_COLOURS
from noether.runs.report.phrases import heading, in_words
from noether.runs.report.run import ReportedRun

TRAINING = ("training", "")
"""Split and weights of curves."""
OF_TRAINING = (
    ("learning_rate", "As the schedule set it."),
    ("samples_per_second", "Samples per second over all ranks."),
)


def training_section(run: ReportedRun) -> Markup:
    """Charts over updates, of whatever was logged."""
    history = run.history
    losses_of = [(split, weights) for split, weights, metric in history.curves if metric == "loss"]
    if not losses_of:
        return absent(run, "metrics.jsonl", "no line of training was written")
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
        shown = [line for line in series if can_draw(line, log=log)]
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
        *map(of_validation, dict.fromkeys(metric.unit for metric in headlines)),  # One axis has one unit.
        *(
            chart(heading(run.described[name].title), words, [line(TRAINING, name, "accent")])
            for name, words in OF_TRAINING
        ),
    ]
    missing = "No validation split was evaluated: the loss is the training loss alone."
    return charts(shown, note="" if evaluated else missing)


def time_section(run: ReportedRun) -> Markup:
    """What the time was made of: the shares over the updates, and the seconds of the last attempt."""
    updates, shares = run.history.time_shares()
    whole = run.result.get("time_use")
    if not len(updates) and not whole:
        return absent(run, "metrics.jsonl", "no line says what the time was made of")
    keys = [(name, colour, "") for name, (colour, _) in BANDS.items()]
    words = "Share of the time since the line before, mean over the ranks."
    bands = {colour: shares[name] for name, colour, _ in keys}
    strip = [Chart("Over the updates", words, time_strip(updates, bands), keys)] if len(updates) else []
    return fill("time.html", strip=strip, whole=whole, arithmetic=run.result.get("arithmetic") or {})
