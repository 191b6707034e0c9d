"""The tables of a run's metrics in the terminal; an undefined metric is shown as undefined."""

import io
from math import nan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from noether.physics.fields.field_errors import field_metrics
from noether.physics.fields.scalars import scalar_facts
from noether.physics.settings import ForceCoefficientConfig
from noether.runs.metrics import Metric, Metrics
from noether.runs.report.tables import reference_words, result_tables, scalar_lines

OWN = Metric("my_score", "%", label="my score", headline=True)
DESCRIBED = Metrics.of(*field_metrics("p", "Pa", {}), OWN).records()


def text_of(*, width: int = 160, **metrics: float) -> str:
    errors = {"p/relative_l2": 0.5, "p/mse": 2.0, "p/mae": 1.0, "p/max": 3.0}
    given = {f"p/{name}": value for name, value in metrics.items()}
    result: dict[str, Any] = {
        "split": "test", "samples": 2, "weights": "ema", "parameters": 1, "updates": 1, "samples_per_second": None,
        "world_size": 1, "fields": ["p"], "scalars": {},
        "metrics": {**errors, **given, "my_score": 0.125, "loss": 0.375},
        "baselines": {"mean_field": errors, "nearest_shape": errors},
        "described": DESCRIBED,
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=width)
    for line in result_tables(result):
        console.print(line)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_pace_and_device_use_are_written_as_metrics_are() -> None:
    pace = {"samples_per_second": 1234.56, "device_use": 0.85123, "world_size": 2, "updates": 12, "parameters": 1}
    assert result_tables({"metrics": {}, **pace})[-1].endswith("1,235 samples/s, devices busy 85.12% on 2 ranks")


@pytest.mark.parametrize("ratio", [float("nan"), float("inf")], ids=["0-of-0", "something-of-0"])
def test_a_ratio_to_a_field_of_zeros_is_a_dash_and_said_in_words(ratio: float) -> None:
    text = text_of(relative_l2=ratio)
    assert "undefined (–) if a field or component is 0 everywhere" in text
    assert "–  " in text
    assert "nan" not in text
    assert "inf" not in text


@pytest.mark.parametrize(
    ("metrics", "words"),
    [({}, "50.00%"), *((dict.fromkeys(("relative_l2", "mse", "mae", "max"), none), "–") for none in (nan, None))],
    ids=["a-number", "a-model-that-predicts-none", "as-result.json-has-it"],
)
def test_a_metric_is_a_number_or_a_dash(metrics, words: str) -> None:
    text = text_of(**metrics)
    assert words in text
    assert "undefined" not in text
    assert "nan" not in text


def test_a_metric_that_is_of_no_field_stands_below_the_fields() -> None:
    assert {"my score: 12.50%", "loss: 0.3750"} <= {line.strip() for line in text_of().splitlines()}


@pytest.mark.parametrize("width", [60, 44])
def test_a_narrow_terminal_shows_the_same_metrics_in_several_tables(width: int) -> None:
    text = text_of(width=width, relative_l2=0.12345, pooled_relative_l2=0.23456, mse=1234.5, mae=0.001234, max=0.01234)
    assert "…" not in text
    for figure in ("12.35%", "23.46%", "1,234", "0.001234", "0.01234"):
        assert figure in text.split(), text


@pytest.mark.parametrize(
    ("given", "words"),
    [({"dynamic_pressure": 245.0}, "dynamic pressure 245 Pa (0.5 · density · speed²), A"),
     ({"dynamic_pressure": "wind_speed", "density": 1.2, "shear": "wall_shear"},
      "pressure and wall shear, 0.5 · 1.2 kg/m³ · (each case's wind speed)², A")],
    ids=["one pressure", "a speed of each case"],
)  # fmt: skip
def test_what_a_coefficient_is_made_with(given: dict[str, Any], words: str) -> None:
    scalar = ForceCoefficientConfig(pressure="p", direction=(0, 0, 1), **given)
    samples = {"d/prediction": np.ones(2), "d/truth": np.ones(2), "d/reference_area": np.ones(2)}
    task = SimpleNamespace(scalars={"d": scalar}, case_fields={})
    facts = scalar_facts(task, samples)["d"]
    assert reference_words({**facts, "reference_area": "A"}) == words
    assert any(words.partition(",")[0] in line for line in scalar_lines("d", {}, Metrics(), facts))
