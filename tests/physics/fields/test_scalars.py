from math import inf, nan

import numpy as np
import pytest

from noether.config.section import FieldConfig
from noether.physics.fields.scalars import measure_scalar, r_squared, spearman
from noether.physics.settings import ParameterConfig
from noether.runs.metrics import Metric, Metrics
from noether.runs.report.tables import choose_cases

TRUTH = np.array([1.0, 2.0, 3.0, 4.0])


def test_the_truth_scores_one() -> None:
    found, note = measure_scalar(TRUTH, TRUTH, TRUTH)
    assert (found["r2"], found["spearman"], found["max"], found["floor_r2"]) == (1.0, pytest.approx(1.0), 0.0, 1.0)
    assert note == ""


def test_the_mean_scores_zero_and_worse_than_the_mean_is_negative() -> None:
    assert r_squared(np.full(4, 2.5), TRUTH) == pytest.approx(0.0)
    assert r_squared(TRUTH[::-1], TRUTH) == pytest.approx(-3.0)


def test_equal_values_share_their_rank_as_in_scipy() -> None:
    from scipy.stats import spearmanr

    generator = np.random.default_rng(0)
    for _ in range(20):
        one, other = generator.integers(0, 6, (2, 30)).astype(float)
        assert spearman(one, other) == pytest.approx(spearmanr(one, other).statistic, abs=1e-12)


ALL = {"r2", "spearman", "mae", "max"}
OFF = np.array([1e-9, 0, 0, 0])
UNDEFINED = {
    "zero": (OFF, np.zeros(4), {"r2", "spearman", "floor_r2"}, "true value is the same"),
    "constant": (np.full(4, 1e6) + OFF, np.full(4, 1e6), {"r2", "spearman", "floor_r2"}, "true value is the same"),
    "rounding": (1 + OFF, 1 + 1e-11 * TRUTH, {"r2", "spearman", "floor_r2"}, "true value is the same"),
    "noise-beside-the-errors": (np.array([0.1, -0.2, 0.15, 0.05]), 1e-9 * TRUTH, {"r2", "spearman"}, "is the same"),
    "nan": (np.array([1.0, nan, 3.0, nan]), TRUTH, ALL, "not a number for 2 of 4 samples"),
    "infinite": (np.array([1.0, inf, 3.0, inf]), TRUTH, ALL, "not a number for 2 of 4 samples"),
    "constant-prediction": (np.full(4, 2.0), TRUTH, {"spearman"}, "Spearman is undefined"),
    "one-sample": (TRUTH[:1], TRUTH[:1], {"r2", "spearman", "floor_r2"}, "one sample"),
}


@pytest.mark.parametrize(("prediction", "truth", "undefined", "words"), UNDEFINED.values(), ids=UNDEFINED)
def test_scores_that_are_undefined_are_said_in_words(prediction, truth, undefined, words) -> None:
    """The embedded flow has no drag: C_D is 0 for every shape, and a NaN would say nothing."""
    found, note = measure_scalar(prediction, truth, truth)
    assert {name for name, value in found.items() if value is None} == undefined
    assert words in note


@pytest.mark.parametrize(
    ("errors", "cases"),
    [
        ([0.3, 0.1, 0.2, 0.5, 0.4], ["best 1: 1", "median 1: 0", "worst 1: 3", "worst 2: 4"]),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], ["best 1: 0", "median 1: 3", "worst 1: 5", "worst 2: 4"]),
        (list(range(9)), ["best 1: 0", "median 1: 4", "worst 1: 8", "worst 2: 7", "worst 3: 6"]),
        ([0.5], ["best 1: 0"]),
        ([nan, 0.1, 0.4, 0.2, inf], ["best 1: 1", "median 1: 3", "unscored 1: 4", "unscored 2: 0", "worst 1: 2"]),
        ([nan, nan], ["unscored 1: 0", "unscored 2: 1"]),
    ],
    ids=["five", "six", "nine", "one", "not-finite-is-not-the-worst", "none-finite"],
)
def test_telling_cases_without_repeats(errors, cases) -> None:
    assert [f"{label} {place}: {index}" for label, place, index in choose_cases(np.array(errors))] == cases


def test_a_field_in_per_cent_is_not_a_share_of_1() -> None:
    assert FieldConfig(points="case", unit="%").unit == "percent"
    known = Metrics.of(Metric("humidity/mae", "percent", of="humidity", headline=True),
                       Metric("drag/r2", label="R²", of="drag", headline=True, score=True))  # fmt: skip
    shown = known.headlines({"humidity/mae": 3.2, "drag/r2": 0.98})
    assert shown == [("humidity", "3.200 percent"), ("drag R²", "0.9800")]
    texts = [known["drag/r2"].bare_text(value) for value in (0.99994, 0.99996, 0.99999999, 1.0)]
    assert texts == ["0.9999", "0.999960", "0.999999", "1.000"]


def test_a_unit_of_an_inverse_is_kept_whole_and_that_of_a_ratio_is_none() -> None:
    units = {unit: FieldConfig(unit=unit).unit for unit in ("s^-1", "1", "%")}
    assert units == {"s^-1": "s^-1", "1": "", "%": "percent"}
    assert ParameterConfig(unit="1").unit == ""
