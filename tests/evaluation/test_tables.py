"""The figures of a run in the terminal: what is undefined is said to be."""

import io
from typing import Any

import pytest
from rich.console import Console

from noether.config.task import ForceCoefficientConfig
from noether.evaluation.tables import reference_words, result_tables
from noether.runs.metrics import Metrics
from noether.tasks.field_errors import field_metrics


def text_of(*, width: int = 160, **figures: float) -> str:
    errors = {"p/relative_l2": 0.5, "p/mse": 2.0, "p/mae": 1.0, "p/max": 3.0}
    given = {f"p/{name}": value for name, value in figures.items()}
    result: dict[str, Any] = {
        "split": "test", "samples": 2, "weights": "raw", "parameters": 1, "updates": 1, "samples_per_second": None,
        "world_size": 1, "metrics": {**errors, **given}, "fields": ["p"], "scalars": {},
        "baselines": {"mean_field": errors, "nearest_shape": errors},
        "described": Metrics.of(*field_metrics("p", "Pa", {})).described(),
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=width)
    for line in result_tables(result):
        console.print(line)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ratio", [float("nan"), float("inf")], ids=["0-of-0", "something-of-0"])
def test_a_ratio_to_a_field_of_zeros_is_a_dash_and_said_in_words(ratio: float) -> None:
    text = text_of(relative_l2=ratio)
    assert "undefined: the true field of some sample is 0 everywhere" in text
    assert "–  " in text
    assert "nan" not in text
    assert "inf" not in text


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({}, "50.00%"),
        (dict.fromkeys(("relative_l2", "mse", "mae", "max"), float("nan")), "–"),
        (dict.fromkeys(("relative_l2", "mse", "mae", "max")), "–"),
    ],
    ids=["a-number", "a-model-that-predicts-none", "as-result.json-has-it"],
)
def test_a_figure_is_a_number_or_a_dash(figures, words: str) -> None:
    text = text_of(**figures)
    assert words in text
    assert "undefined" not in text
    assert "nan" not in text


@pytest.mark.parametrize(
    ("scalar", "words"),
    [
        ({"density": 1.225}, "dynamic pressure 245 Pa (air of 1.225 kg/m³ at 20 m/s), area of each"),
        ({}, "dynamic pressure 245 Pa (0.5 · density · speed²), area of each"),
        ({"density": 1.225, "moment": True, "reference_length": 2.5}, "20 m/s), area of each, length 2.5 m"),
    ],
    ids=["density-stated", "density-unknown", "moment"],
)
def test_what_a_coefficient_is_made_with_is_stated(scalar, words: str) -> None:
    config = ForceCoefficientConfig.model_validate({"direction": (0, 1, 0), "dynamic_pressure": 245.0, **scalar})
    made_with = {key: getattr(config, key) for key in ("dynamic_pressure", "density", "speed")}
    if config.moment:
        made_with["reference_length"] = config.reference_length
    assert words in reference_words({**made_with, "reference_area": "area of each"})


def test_a_terminal_of_80_columns_shows_every_figure() -> None:
    figures = {"relative_l2": 12.345, "pooled_relative_l2": 1.2345, "mse": 1.234e-05, "mae": 0.001234, "max": 0.01234}
    text = text_of(width=80, **figures)
    assert "…" not in text
    assert ["raw", "weights", "1234.50%", "123.45%", "1.234e-05", "0.001234", "0.01234"] in map(
        str.split, text.split("\n")
    )
    assert "nearest training shape" in text
    assert text.split("\n")[2].split() == ["p", "Pa²", "Pa", "Pa"]


@pytest.mark.parametrize("width", [60, 44])
def test_a_narrow_terminal_shows_the_same_figures_in_several_tables(width: int) -> None:
    text = text_of(width=width, relative_l2=0.12345, pooled_relative_l2=0.23456, mse=1234.5, mae=0.001234, max=0.01234)
    assert "…" not in text
    for figure in ("12.35%", "23.46%", "1234", "0.001234", "0.01234"):
        assert figure in text.split(), text
