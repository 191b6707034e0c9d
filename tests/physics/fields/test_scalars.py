from math import inf, nan

import numpy as np
import pytest

from noether.config.fields import FieldConfig
from noether.physics.fields.scalars import measure_scalar, r_squared, spearman
from noether.physics.settings import ParameterConfig
from noether.runs.metrics import Metric, Metrics
from noether.runs.report.chosen_cases import choose_cases

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


@pytest.mark.parametrize(
    "truth", [np.zeros(4), np.full(4, 1e6), 1 + 1e-11 * np.arange(4)], ids=["zero", "constant", "rounding"]
)
def test_scores_of_a_constant_truth_are_undefined_and_said_in_words(truth) -> None:
    """The embedded flow has no drag: C_D is 0 for every shape, and a NaN would say nothing."""
    found, note = measure_scalar(truth + np.array([1e-9, 0, 0, 0]), truth, truth)
    assert found["r2"] is found["spearman"] is found["floor_r2"] is None
    assert "true value is the same" in note
    assert found["max"] == pytest.approx(1e-9, rel=0.1)


def test_a_truth_that_is_noise_beside_the_errors_has_no_scores() -> None:
    found, note = measure_scalar(np.array([0.1, -0.2, 0.15, 0.05]), 1e-9 * TRUTH, None)
    assert found["r2"] is found["spearman"] is None  # R² would be −10¹⁵
    assert "true value is the same" in note


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=["nan", "infinite"])
def test_a_prediction_that_is_no_number_leaves_every_score_undefined(value) -> None:
    found, note = measure_scalar(np.array([1.0, value, 3.0, value]), TRUTH, TRUTH)
    assert found["r2"] is found["spearman"] is found["mae"] is found["max"] is None
    assert "not a number for 2 of 4 samples" in note


def test_a_constant_prediction_has_no_rank_correlation() -> None:
    found, note = measure_scalar(np.full(4, 2.0), TRUTH, TRUTH)
    assert found["spearman"] is None
    assert found["r2"] == pytest.approx(-0.2)
    assert note.startswith("Spearman is undefined")


def test_one_sample_is_not_said_to_be_the_same_as_others() -> None:
    found, note = measure_scalar(TRUTH[:1], TRUTH[:1], None)
    assert found["r2"] is found["spearman"] is None
    assert "one sample" in note


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
