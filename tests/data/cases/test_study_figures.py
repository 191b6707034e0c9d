"""The table of a study: which model is best, and mean ± standard deviation over the seeds."""

import sys

import pytest
from conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "examples" / "openfoam"))
from study_figures import best_group, table


def run(group: str, seed: int, error: float, drag: float | None) -> dict:
    fields = {"surface_pressure": {"relative_l2": error}}
    baselines = {"nearest_shape": {"fields": {"surface_pressure": {"relative_l2": 0.5}}, "scalars": {}}}
    return {"group": group, "seed": seed, "fields": fields, "scalars": {"drag_coefficient": drag},
            "baselines": baselines, "parameters": 1234, "cpu_minutes": 2.0}  # fmt: skip


RUNS = {
    "upt-0": run("upt", 0, 0.10, 0.9),
    "upt-1": run("upt", 1, 0.12, 0.8),
    "ab_upt-0": run("ab_upt", 0, 0.2, None),
    "few-cars-0": run("few-cars", 0, 0.05, 0.5),
}
FIGURES = {"cases": {"train": 150, "validation": 20, "test": 30}, "few": 20, "jobs": 2, "cores": 2,
           "processor": "some", "runs": RUNS}  # fmt: skip


def test_the_best_is_among_those_trained_on_all_cases() -> None:
    assert best_group(FIGURES) == "upt"


@pytest.mark.parametrize(
    "row",
    [
        "| UPT | 11.0 ± 1.4 % | 0.850 ± 0.071 | 1,234 | 2.0 |",
        "| AB-UPT | 20.0 % | – | 1,234 | 2.0 |",
        "| nearest shape | 50.0 % | – |  |  |",
        "| UPT, 20 cases, from the built-in cars | 5.0 % | 0.500 | 1,234 | 2.0 |",
    ],
    ids=["seeds", "undefined", "baseline", "few"],
)
def test_the_rows(row: str) -> None:
    assert row in table(FIGURES)


def test_the_words_say_what_it_was_made_of() -> None:
    assert "150 cases to train on, 20 to validate with, 30 to test on" in table(FIGURES)
    assert "8 minutes of a core in all" in table(FIGURES)
