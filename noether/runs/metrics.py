"""Descriptions of a run's metrics: name, unit, and whether lower or higher is better. No torch here.

The task describes its metrics, and the training loop its own. plan.json and result.json carry the descriptions; the
console, `status`, sweeps, the report, the live page and the trackers use them to format values.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from noether.common.numbers import finite, number_text, percent_text, score_text


@dataclass(frozen=True)
class Metric:
    """The description of a metric.

    name: its key in rows and results, such as `surface_pressure/relative_l2`.
    unit: the unit of its values; "" if none or unknown. With "%", values are fractions of 1, shown in percent.
    better: whether lower or higher values are better; "" if neither, or unknown.
    label: its display name without the quantity that it measures, such as "relative L2".
    of: the field, output or scalar that it measures. part: which component or other part of this; "" for the whole.
    measure: the kind of measure, such as `relative_l2`, by which code finds the metric.
    headline: whether to show the metric where there is space for only a few.
    score: whether the metric is a score whose best value is 1.
    """

    name: str
    unit: str = ""
    better: Literal["lower", "higher", ""] = ""
    label: str = ""
    of: str = ""
    part: str = ""
    measure: str = ""
    headline: bool = False
    score: bool = False

    def is_better(self, value: float | None, than: float | None) -> bool:
        """Return whether `value` is better than `than` (by default: lower). NaN never is; other numbers beat None."""
        if value is None or value != value:
            return False
        return than is None or (value > than if self.better == "higher" else value < than)

    @property
    def title(self) -> str:
        """The metric's name in words: "surface pressure, x component: relative L2"."""
        if not self.label:
            return self.name.replace("_", " ").replace("/", ": ")
        of = ", ".join(filter(None, (self.of.replace("_", " "), self.part)))
        return f"{of}: {self.label}" if of else self.label

    @property
    def brief(self) -> str:
        """A short name: what the metric measures, followed by its label if it is a score."""
        return f"{self.of} {self.label}" if self.of and self.score else self.of or self.name

    @property
    def in_words(self) -> str:
        """The metric's title, unit and direction: "surface pressure: MAE, Pa, lower is better"."""
        unit = "a share of 1" if self.unit == "%" else self.unit
        return ", ".join(filter(None, (self.title, unit, self.better and f"{self.better} is better")))

    def bare_text(self, value: float | None) -> str:
        """Format a value without its unit, except for a percent sign; never round a score up to 1."""
        if self.score:
            return score_text(value)
        return number_text(value) if self.unit != "%" else percent_text(value)

    def text(self, value: float | None, spread: float | None = None) -> str:
        """Format a value with its unit, followed by ± `spread`, a standard deviation, if that is not 0."""
        text = self.bare_text(value)
        if spread:
            rounded = format(spread, f".{len(text.partition('.')[2])}f")
            fits = self.unit != "%" and "e" not in text and float(rounded) > 0
            text += f" ± {rounded if fits else self.bare_text(spread)}"
        return " ".join(filter(None, (text, self.unit.removesuffix("%"))))


class Metrics(dict[str, Metric]):
    """Metrics by name. A metric without a description has only its name."""

    def __missing__(self, name: str) -> Metric:
        return Metric(name)

    @classmethod
    def of(cls, *described: Metric) -> "Metrics":
        """Return the given metrics by name."""
        return cls({metric.name: metric for metric in described})

    def records(self) -> list[dict[str, Any]]:
        """Return the metrics as records store them: without empty entries, and without the loop's own metrics."""
        own = (metric for metric in self.values() if metric not in OF_THE_LOOP)
        return [{key: value for key, value in asdict(metric).items() if value} for metric in own]

    def selected_by(self, select_by: str) -> Metric:
        """Return the metric that `trainer.select_by` names, with a direction.

        If its description has no direction, a minus sign before its name means that higher is better; else lower is.
        """
        found = self[select_by.removeprefix("-")]
        return replace(found, better=found.better or ("lower" if found.name == select_by else "higher"))

    def headlines(self, values: Mapping[str, Any], most: int | None = None) -> list[tuple[str, str]]:
        """Return short names and formatted values of the first `most` headline metrics that are finite.

        A score's name includes its label: drag_coefficient R², 0.98. If no metric is a headline, use all metrics.
        """
        there = (name for name in values if finite(values[name]) is not None)
        return [(metric.brief, metric.text(values[metric.name])) for metric in self.foremost(there)[:most]]

    def foremost(self, names: Iterable[str]) -> list[Metric]:
        """Return the headline metrics among `names`, or all of `names` if none is a headline."""
        known = [self[name] for name in names]
        return [metric for metric in known if metric.headline] or known

    def find(self, of: str, measure: str) -> Metric:
        """Return the metric of the whole quantity `of` with this `measure`, or a nameless metric if there is none."""
        every = (metric for metric in self.values() if (metric.of, metric.part, metric.measure) == (of, "", measure))
        return next(every, Metric(""))

    def by_part(self, values: Mapping[str, Any], of: str) -> dict[str, dict[str, Any]]:
        """Return the values that measure the quantity `of`, by part ("" is the whole) and measure."""
        parts: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            if self[name].of == of:
                parts.setdefault(self[name].part, {})[self[name].measure] = value
        return parts

    def of_whole(self, values: Mapping[str, Any], of: str) -> dict[str, Any]:
        """Return the values that measure the quantity `of` as a whole, not a part of it, by measure."""
        return self.by_part(values, of).get("", {})


OF_THE_LOOP = (
    Metric("loss", better="lower", label="loss"),
    Metric("gradient_norm", label="gradient norm"),
    Metric("learning_rate", label="learning rate"),
    Metric("samples_per_second", unit="samples/s", better="higher", label="training speed"),
    Metric("memory_mib", unit="MiB", label="peak memory of the device"),
    Metric("device_use", unit="%", better="higher", label="device use"),
    Metric("cpu_cores", unit="cores", label="processor use"),
    Metric("host_memory_mib", unit="MiB", label="memory of the host"),
)
"""The metrics that the training loop logs in every run."""
SCALAR_PARTS = ("prediction", "truth", "integral_of_truth")
"""The values stored for each sample's scalar, as `NAME/truth`; integral_of_truth only for force coefficients."""
FIELD_ERRORS = {"relative_l2": "relative L2", "pooled_relative_l2": "pooled", "mse": "MSE", "mae": "MAE", "max": "max"}
"""The label of each measure of a field (`FIELD/relative_l2`) or of a part of it (`FIELD/x/relative_l2`)."""
_DESCRIBED = TypeAdapter(list[Metric])


def weights_name(kind: Any) -> str:
    """Return the display name of a kind of weights."""
    return f"{'EMA' if kind == 'ema' else kind} weights"


def described_by(told: Iterable[Metric], select_by: str) -> Metrics:
    """Return the loop's metrics and the task's (`told`). The metric that `select_by` names always has a direction."""
    known = Metrics.of(*OF_THE_LOOP, *told)
    selected = known.selected_by(select_by)
    return Metrics({**known, selected.name: selected})


def described_in(*records: Mapping[str, Any]) -> Metrics:
    """Return the loop's metrics and those that records such as plan.json and result.json describe.

    A later record overrides an earlier one. Ignore damaged descriptions.
    """
    found: list[Metric] = []
    for record in records:
        with suppress(ValidationError):
            found += _DESCRIBED.validate_python(record.get("described") or [])
    return Metrics.of(*OF_THE_LOOP, *found)
