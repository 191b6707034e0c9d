"""How the report writes numbers."""

import pytest

from noether.report.numbers import number, tick_labels


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
