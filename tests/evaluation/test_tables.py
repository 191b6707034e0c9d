"""The figures of a run in the terminal: what is undefined is said to be."""

import io
from typing import Any

import pytest
from rich.console import Console

from noether.config.task import FieldConfig
from noether.evaluation.tables import result_tables


def text_of(*, width: int = 160, **figures: float) -> str:
    errors = {"relative_l2": 0.5, "mse": 2.0, "mae": 1.0, "max": 3.0}
    result: dict[str, Any] = {
        "split": "test", "samples": 2, "weights": "raw", "parameters": 1, "updates": 1, "samples_per_second": None,
        "world_size": 1, "figures": {}, "fields": {"p": {**errors, **figures}}, "scalars": {},
        "baselines": {"mean_field": {"p": errors}, "nearest_shape": {"p": errors}},
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=width)
    for line in result_tables(result, {"p": FieldConfig(unit="Pa", points="surface_points")}):
        console.print(line)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ratio", [float("nan"), float("inf")], ids=["0-of-0", "something-of-0"])
def test_a_ratio_to_a_field_of_zeros_is_undefined_in_words(ratio: float) -> None:
    text = text_of(relative_l2=ratio)
    assert "undefined: the true field of some sample is 0 everywhere" in text
    assert "nan" not in text
    assert "inf" not in text


@pytest.mark.parametrize(
    ("figures", "words"),
    [({}, "50.00%"), ({"relative_l2": float("nan"), "mse": float("nan")}, "nan%")],
    ids=["a-number", "a-model-that-predicts-none"],
)
def test_other_ratios_are_shown_as_they_are(figures, words: str) -> None:
    text = text_of(**figures)
    assert words in text
    assert "undefined" not in text


def test_a_terminal_of_80_columns_shows_every_figure() -> None:
    figures = {"relative_l2": 12.345, "pooled_relative_l2": 1.2345, "mse": 1.234e-05, "mae": 0.001234, "max": 0.01234}
    text = text_of(width=80, **figures)
    assert "…" not in text
    assert ["raw", "weights", "1234.50%", "123.45%", "1.234e-05", "0.001234", "0.01234"] in map(
        str.split, text.split("\n")
    )
    assert "nearest training shape" in text
    assert text.split("\n")[2].split() == ["p", "Pa²", "Pa", "Pa"]
