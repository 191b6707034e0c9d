"""What the report says: the verdict, the arithmetic of a batch, and how numbers are written."""

from dataclasses import replace

import pytest

from noether.report.numbers import number, percent, tick_labels
from noether.report.run import ReportedRun
from noether.report.summary import verdict

pytest_plugins = ("report_fixtures",)


@pytest.mark.parametrize(
    ("own", "nearest", "mean", "ending"),
    [
        (0.03, 0.2, 0.9, "R² <b>0.9931</b>."),
        (0.3, 0.2, 0.9, "It does not beat the nearest training shape in surface pressure."),
        (0.9, 0.2, 0.9, "in surface pressure, nor the mean field in surface pressure."),
    ],
    ids=["beats both", "loses to the nearest shape", "no better than the mean"],
)
def test_verdict_names_a_baseline_that_is_not_beaten(
    run: ReportedRun, own: float, nearest: float, mean: float, ending: str
) -> None:
    result = {
        "samples": 100,
        "fields": ["surface_pressure"],
        "metrics": {"surface_pressure/relative_l2": own, "lift_coefficient/r2": 0.9931},
        "described": run.result["described"],
        "baselines": {
            "nearest_shape": {"surface_pressure/relative_l2": nearest},
            "mean_field": {"surface_pressure/relative_l2": mean},
        },
        "scalars": {"lift_coefficient": {}},
    }
    words = verdict(replace(run, result=result))
    assert words.startswith(f"On 100 unseen shapes the model misses the surface pressure by <b>{percent(own)}</b>")
    assert words.endswith(ending)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.14159, "3.14"),
        (0.0312, "0.0312"),
        (9.999, "10.0"),
        (1234.6, "1,230"),
        (-0.5, "−0.500"),
        (0.0, "0"),
        (0.9996, "1.00"),
        (1.5e-5, "1.50\u202f×\u202f10⁻⁵"),
        (2.5e7, "2.50\u202f×\u202f10⁷"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (None, "–"),
    ],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.8, 1.0, 1.2000000000000002], ["0.8", "1.0", "1.2"]),
        ([-50, 0, 50], ["−50", "0", "50"]),
        ([0, 0.00025, 0.001], ["0", "0.00025", "0.00100"]),
        ([1e-6, 2.5e-6], ["10⁻⁶", "2.5·10⁻⁶"]),
        ([1000, 20000], ["1,000", "20,000"]),
    ],
    ids=["common decimals", "negative", "small", "powers", "thousands"],
)
def test_tick_labels(values: list[float], labels: list[str]) -> None:
    assert tick_labels(values) == labels
