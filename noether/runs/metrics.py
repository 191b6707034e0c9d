"""What a metric of a run is: its name, its unit, which way is better. No torch here.

The task describes its metrics, and the loop its own. plan.json and result.json carry the descriptions, by which the
console, `status`, sweeps, the report, the live page and the trackers write a value.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from noether.common.numbers import finite, number_text, percent_text, score_text


@dataclass(frozen=True)
class Metric:
    """What is known of a metric.

    name: as rows and results have it, `surface_pressure/relative_l2`.
    unit: of its values; "%": they are shares of 1, written in per cent; "": none, or not known.
    better: which way is; "": not known, or neither.
    label: what it is called beside what it is of: "relative L2".
    of, part: the field, output or scalar that it is of, and which component or part of it; "": the whole.
    measure: which of the measures of that it is, `relative_l2`: what a reader finds it by.
    headline: whether it is shown where there is little room.
    score: whether it is a score whose best value is 1.
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
        """Whether a value is better than another, or than none; NaN never is. Where nothing is known, lower is."""
        if value is None or value != value:
            return False
        return than is None or (value > than if self.better == "higher" else value < than)

    @property
    def title(self) -> str:
        """Its name in words: "surface pressure, x component: relative L2"."""
        if not self.label:
            return self.name.replace("_", " ").replace("/", ": ")
        of = ", ".join(filter(None, (self.of.replace("_", " "), self.part)))
        return f"{of}: {self.label}" if of else self.label

    @property
    def brief(self) -> str:
        """What it is of, where there is little room; of a score also that it is one."""
        return f"{self.of} {self.label}" if self.of and self.score else self.of or self.name

    @property
    def in_words(self) -> str:
        """Its title, unit and direction: "surface pressure: MAE, Pa, lower is better"."""
        unit = "a share of 1" if self.unit == "%" else self.unit
        return ", ".join(filter(None, (self.title, unit, self.better and f"{self.better} is better")))

    def bare_text(self, value: float | None) -> str:
        """A value without its unit, but for the sign of a percentage; a score is never rounded up to 1."""
        if self.score:
            return score_text(value)
        return number_text(value) if self.unit != "%" else percent_text(value)

    def text(self, value: float | None, spread: float | None = None) -> str:
        """A value with its unit, and the standard deviation of several that differ, to the decimals of the value."""
        text = self.bare_text(value)
        if spread:
            rounded = format(spread, f".{len(text.partition('.')[2])}f")
            fits = self.unit != "%" and "e" not in text and float(rounded) > 0
            text += f" ± {rounded if fits else self.bare_text(spread)}"
        return " ".join(filter(None, (text, self.unit.removesuffix("%"))))


class Metrics(dict[str, Metric]):
    """What is known of metrics, by name; of one that nobody has described, the name alone."""

    def __missing__(self, name: str) -> Metric:
        return Metric(name)

    @classmethod
    def of(cls, *described: Metric) -> "Metrics":
        """Return metrics by their names."""
        return cls({metric.name: metric for metric in described})

    def records(self) -> list[dict[str, Any]]:
        """Return the metrics as records hold them, without what is not known of one, and those of the loop."""
        own = (metric for metric in self.values() if metric not in OF_THE_LOOP)
        return [{key: value for key, value in asdict(metric).items() if value} for metric in own]

    def selected_by(self, select_by: str) -> Metric:
        """Return the metric that `trainer.select_by` names.

        Which way is better it says itself; else higher is by a minus before its name, and lower without.
        """
        found = self[select_by.removeprefix("-")]
        return replace(found, better=found.better or ("lower" if found.name == select_by else "higher"))

    def headlines(self, values: Mapping[str, Any], most: int | None = None) -> list[tuple[str, str]]:
        """Return what says most where there is little room: surface_pressure, 5.18%; without headlines, the first.

        A score says that it is one: drag_coefficient R², 0.98.
        """
        there = (name for name in values if finite(values[name]) is not None)
        return [(metric.brief, metric.text(values[metric.name])) for metric in self.foremost(there)[:most]]

    def foremost(self, names: Iterable[str]) -> list[Metric]:
        """Return those of some metrics that say most, the headlines; all where there are none."""
        known = [self[name] for name in names]
        return [metric for metric in known if metric.headline] or known

    def find(self, of: str, measure: str) -> Metric:
        """Return the metric of a whole thing by its measure; one without a name where nobody has described it."""
        every = (metric for metric in self.values() if (metric.of, metric.part, metric.measure) == (of, "", measure))
        return next(every, Metric(""))

    def by_part(self, values: Mapping[str, Any], of: str) -> dict[str, dict[str, Any]]:
        """Return the values that are of one thing, by part ("" is the whole) and measure."""
        parts: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            if self[name].of == of:
                parts.setdefault(self[name].part, {})[self[name].measure] = value
        return parts

    def of_whole(self, values: Mapping[str, Any], of: str) -> dict[str, Any]:
        """Return the values that are of a whole thing, not of a part of it, by measure."""
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
"""What the loop logs of every run."""
SCALAR_PARTS = ("prediction", "truth", "integral_of_truth")
"""What is kept of a number of each sample, `NAME/truth`; the last for force coefficients alone."""
FIELD_ERRORS = {"relative_l2": "relative L2", "pooled_relative_l2": "pooled", "mse": "MSE", "mae": "MAE", "max": "max"}
"""The measures of a field and of its parts, `FIELD/relative_l2` or `FIELD/x/relative_l2`, and their labels."""
_DESCRIBED = TypeAdapter(list[Metric])


def weights_name(kind: Any) -> str:
    """Return what readers call a kind of weights."""
    return f"{'EMA' if kind == 'ema' else kind} weights"


def described_by(told: Iterable[Metric], select_by: str) -> Metrics:
    """Return the loop's metrics and those that a task has told, that of `trainer.select_by` with a direction."""
    known = Metrics.of(*OF_THE_LOOP, *told)
    selected = known.selected_by(select_by)
    return Metrics({**known, selected.name: selected})


def described_in(*records: Mapping[str, Any]) -> Metrics:
    """Return the loop's metrics and those that plan.json and result.json describe, the last record's word before all.

    A record that is damaged describes none.
    """
    found: list[Metric] = []
    for record in records:
        with suppress(ValidationError):
            found += _DESCRIBED.validate_python(record.get("described") or [])
    return Metrics.of(*OF_THE_LOOP, *found)
