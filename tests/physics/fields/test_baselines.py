"""The training case that each baseline finds, and the values that a baseline carries over or learns."""

import numpy as np
import pytest
import torch

from noether.physics.cars.ellipsoid import EllipsoidCar, make_sample
from noether.physics.fields.baselines import ShapeSearch, make_baselines, score_baselines
from noether.physics.fields.fields import FieldsTask

FIELDS = {
    "surface_pressure": {"unit": "Pa", "points": "surface_points"},
    "volume_velocity": {"unit": "m/s", "points": "volume_points"},
}


def car(length: float, seed: int) -> dict[str, torch.Tensor]:
    sample = make_sample(EllipsoidCar(length, 1.0, 0.9), 400, 150, seed)
    return {key: torch.from_numpy(value) for key, value in sample.items()}


@pytest.fixture(scope="module")
def train() -> list[dict[str, torch.Tensor]]:
    return [car(length, number) for number, length in enumerate(np.linspace(1.5, 2.5, 6))]


@pytest.fixture(scope="module")
def task(train) -> FieldsTask:
    task = FieldsTask(FIELDS, domain_low=-4.5, domain_length=10.5)
    task.fit(train)
    return task


@pytest.mark.parametrize(("length", "nearest"), [(1.52, 0), (1.92, 2), (2.5, 5), (2.28, 4)])
def test_the_nearest_shape_is_found_by_its_points(length: float, nearest: int, train, task) -> None:
    assert ShapeSearch(train, task).nearest(car(length, 99)) == nearest


def test_a_training_shape_is_its_own_nearest_without_error(train, task) -> None:
    scores = score_baselines(task, train, range(len(train)), train[3:5])
    measures = ("relative_l2", "pooled_relative_l2", "weighted_relative_l2", "weighted_mae", "mse", "mae", "max")
    found = {name: own for name, own in scores["nearest_shape"].items() if name.startswith("surface_pressure/")}
    assert found == pytest.approx(dict.fromkeys((f"surface_pressure/{measure}" for measure in measures), 0))


def test_a_training_shape_scored_among_its_own_is_not_its_own_nearest(train, task) -> None:
    scores = score_baselines(task, train, range(len(train)), train, among_itself=True)
    assert scores["nearest_shape"]["surface_pressure/relative_l2"] > 0.01
    assert ShapeSearch(train, task).nearest(train[0], but=0) == 1


def test_the_mean_field_has_a_standardised_error_of_about_one_and_is_pooled_over_all_points(train, task) -> None:
    scores = score_baselines(task, train, range(len(train)), train)
    variance = np.square(task.statistics["surface_pressure"].std[0])
    assert scores["mean_field"]["surface_pressure/mse"] == pytest.approx(variance, rel=1e-5)
    assert scores["nearest_shape"]["surface_pressure/mse"] < variance
    truth = np.concatenate([np.ravel(sample["surface_pressure"]) for sample in train]).astype(np.float64)
    error = truth - task.statistics["surface_pressure"].mean[0]
    pooled = scores["mean_field"]["surface_pressure/pooled_relative_l2"]
    assert pooled == pytest.approx(np.linalg.norm(error) / np.linalg.norm(truth), rel=1e-6)


def test_only_the_training_indices_are_searched(train, task) -> None:
    scores = score_baselines(task, train, [0, 5], [train[2]])
    assert scores["nearest_shape"]["surface_pressure/relative_l2"] > 0.01


def test_outputs_of_the_case_and_forces_are_scored_too(train) -> None:
    fields = {**FIELDS, "lift_coefficient": {"points": "case", "unit": "1"}}
    scalar = {"lift": {"direction": (0.0, 1.0, 0.0), "dynamic_pressure": 551.25, "truth": "lift_coefficient"}}
    task = FieldsTask(fields, domain_low=-4.5, domain_length=10.5, scalars=scalar)
    task.fit(train)
    scores = score_baselines(task, train, range(len(train)), train)
    itself, mean = scores["nearest_shape"], scores["mean_field"]
    assert itself["lift_coefficient/r2"] == pytest.approx(1)
    assert itself["lift/r2"] == pytest.approx(itself["lift/floor_r2"])
    assert mean["lift_coefficient/r2"] == pytest.approx(0, abs=1e-5)
    assert mean["lift/r2"] < itself["lift/r2"]


def beam(number: int) -> dict[str, torch.Tensor]:
    """Return a beam whose deflection and moment follow from its length and load."""
    rng = np.random.default_rng(number)
    length, load = rng.uniform(1, 2), rng.uniform(-1, 1)
    points = rng.uniform(0, 1, (300, 3)) * [length, 0.1, 0.1]
    deflection = load * points[:, 0] ** 2 * (3 * length - points[:, 0])
    sample = {"beam_points": points, "beam_deflection": deflection, "length": [length], "load": [load]}
    return {key: torch.tensor(np.asarray(value), dtype=torch.float32) for key, value in sample.items()} | {
        "moment": torch.tensor([load * length], dtype=torch.float32)
    }


@pytest.fixture(scope="module")
def beams() -> tuple[FieldsTask, list[dict[str, torch.Tensor]]]:
    fields = {"beam_deflection": {"unit": "mm", "points": "beam_points"}, "moment": {"unit": "N", "points": "case"}}
    samples, task = [beam(number) for number in range(40)], FieldsTask(fields, parameters={"length": {}, "load": {}})
    task.examine(samples[0], {})
    task.fit(samples)
    return task, samples


def test_where_cases_have_parameters_two_more_baselines_read_them(beams) -> None:
    """Each beats the baseline that reads only the shape, because the load does not show in the shape."""
    task, samples = beams
    weights = torch.get_rng_state()
    scores = score_baselines(task, samples, range(30), samples[30:])
    errors = {name: own["beam_deflection/relative_l2"] for name, own in scores.items()}
    assert list(errors) == ["mean_field", "nearest_shape", "nearest_case", "plain_network"]
    assert errors["plain_network"] < 0.1 < errors["nearest_case"] < errors["nearest_shape"]
    assert scores["plain_network"]["moment/r2"] > 0.999
    assert scores["plain_network"]["training_updates"] == 2400
    assert scores["plain_network"]["training_seconds"] > 0
    soon = score_baselines(task, samples, range(30), samples[30:], updates=3)["plain_network"]
    assert soon["beam_deflection/relative_l2"] > 5 * errors["plain_network"], "it must train only for `updates`"
    assert torch.equal(torch.get_rng_state(), weights), "no baseline may draw from the run's generator"


def test_the_nearest_case_is_carried_over_in_coordinates_of_its_own_box(beams) -> None:
    task, samples = beams
    longer = {**samples[0], "beam_points": samples[0]["beam_points"] * torch.tensor([1.3, 1.0, 1.0])}
    predicted = make_baselines(task, samples, range(30), updates=0)["nearest_case"](longer, 0)
    assert torch.equal(predicted["beam_deflection"][:, 0], samples[0]["beam_deflection"])
