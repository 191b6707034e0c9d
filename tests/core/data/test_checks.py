"""Before training, each sample that cannot be used is reported with its name and its mistake."""

import numpy as np
import pytest
import torch

from noether.core.data.checks import checked_samples, describe_split
from tests.refusal import refusal


class Samples(list):
    def name(self, index: int) -> str:
        return f"car-{index:02d}"


def make(count: int = 5) -> Samples:
    rng = np.random.default_rng(0)
    return Samples(
        {"surface_points": torch.from_numpy(rng.random((20 + i, 3), np.float32)),
         "surface_normals": torch.from_numpy(rng.random((20 + i, 3), np.float32)),
         "surface_pressure": torch.from_numpy(rng.random(20 + i, np.float32)),
         "wind_speed": torch.ones(1)}
        for i in range(count)
    )  # fmt: skip


def with_nan(sample) -> None:
    sample["surface_pressure"][4] = float("nan")


def with_infinity(sample) -> None:
    sample["wind_speed"][0] = float("inf")


WRONG = {
    "nan": (with_nan, "surface_pressure has 1 of 23 values that are not finite"),
    "infinite-number": (with_infinity, "wind_speed has 1 of 1"),
    "rows": (lambda s: s.update(surface_pressure=torch.zeros(9)), "surface_pressure has 9 rows, and surface_points 23"),
    "missing": (lambda s: s.pop("surface_normals"), "surface_normals is missing"),
    "unknown": (lambda s: s.update(more=torch.zeros(1)), "more is in this sample and not in the first"),
    "components": (lambda s: s.update(surface_pressure=torch.zeros(23, 2)), "surface_pressure has the shape (23, 2)"),
    "type": (lambda s: s.update(wind_speed=torch.ones(1, dtype=torch.float64)), "wind_speed is float64"),
}


@pytest.mark.parametrize(("change", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_sample_that_is_wrong_is_named(change, words: str) -> None:
    samples = make()
    change(samples[3])
    with refusal(summary="sample 3 (car-03)", seen=words):
        list(checked_samples(samples, range(5), {"surface_pressure": "surface_points"}))


def test_good_samples_of_differing_sizes_pass() -> None:
    assert len(list(checked_samples(make(), range(5), {"surface_pressure": "surface_points"}))) == 5
    assert describe_split(make())["faults"] == []


def test_describe_lists_every_sample_that_is_wrong() -> None:
    samples = make()
    with_nan(samples[1])
    samples[4]["surface_normals"] = torch.zeros(3, 3)
    faults = describe_split(samples)["faults"]
    assert [words.split(":")[0] for words in faults] == ["sample 1 (car-01)", "sample 4 (car-04)"]
    assert "surface_normals has 3 rows" in faults[1]


ARRAYS = {"points": ([(5, 3), (7, 3)], "(5..7, 3)", 3), "a-class": ([(), ()], "()", 1)}


@pytest.mark.parametrize(("shapes", "words", "channels"), ARRAYS.values(), ids=ARRAYS.keys())
def test_shapes_and_channels(shapes, words: str, channels: int) -> None:
    rng = np.random.default_rng(0)
    samples = [{"array": torch.from_numpy(np.asarray(rng.normal(size=shape)))} for shape in shapes]
    about = describe_split(samples)["arrays"]["array"]
    assert (about["shape"], len(about["channels"])) == (words, channels)
    columns = np.concatenate([sample["array"].numpy().reshape(-1, channels) for sample in samples])
    for row, column in zip(about["channels"], columns.T, strict=True):
        assert row == pytest.approx({of: getattr(column, of)() for of in ("min", "max", "mean", "std")})
