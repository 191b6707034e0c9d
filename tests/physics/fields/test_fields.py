"""Fields and scalars are standardised for the model and scored in physical units."""

import json
from math import inf, nan

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from noether.common.errors import RequestError
from noether.config.section import FieldConfig
from noether.core.data.loader import stack_samples
from noether.core.data.points import GEOMETRY
from noether.core.tasks.base import Evaluated
from noether.physics.fields.field_errors import field_errors
from noether.physics.fields.field_statistics import Scaling
from noether.physics.fields.fields import FieldsTask
from noether.physics.fields.scalars import force_coefficient, measure_scalar, r_squared, spearman
from noether.physics.settings import ParameterConfig
from noether.runs.metrics import Metric, Metrics
from noether.runs.report.tables import choose_cases
from tests.refusal import refusal

FIELDS = {
    "surface_pressure": {"unit": "Pa", "points": "surface_points", "weight": 1.0},
    "volume_velocity": {"unit": "m/s", "points": "volume_points", "weight": 0.5},
}


def make_samples(count: int = 6) -> list[dict[str, torch.Tensor]]:
    rng = torch.Generator().manual_seed(3)
    return [{
        "surface_points": torch.rand(11, 3, generator=rng),
        "surface_pressure": 1e5 + 3 * torch.randn(11, generator=rng),
        "volume_points": torch.rand(7, 3, generator=rng),
        "volume_velocity": torch.randn(7, 3, generator=rng) * torch.tensor([1.0, 2.0, 5.0]) + 17,
    } for _ in range(count)]  # fmt: skip


def make_task(**more) -> FieldsTask:
    task = FieldsTask(FIELDS, domain_low=-4.5, domain_length=10.5, **more)
    task.fit(make_samples())
    return task


def stack(samples) -> dict[str, torch.Tensor]:
    return {key: torch.stack([sample[key] for sample in samples]).double() for key in samples[0]}


def test_statistics_are_those_of_all_points_together() -> None:
    task, batch = make_task(), stack(make_samples())
    for key, axes in (("surface_pressure", (0, 1)), ("volume_velocity", (0, 1))):
        mean, std = task.statistics[key].mean, task.statistics[key].std
        np.testing.assert_allclose(mean, np.atleast_1d(batch[key].numpy().mean(axis=axes)), rtol=1e-12)
        # The mean is 1e5 and the deviation 3, so a sum of squares in one pass would lose its significant digits.
        np.testing.assert_allclose(std, np.atleast_1d(batch[key].numpy().std(axis=axes)), rtol=1e-9)


def test_a_mean_predictor_costs_one_per_unit_of_weight_and_the_truth_nothing() -> None:
    task, batch = make_task(), stack(make_samples())
    prepared = task.prepare(batch)
    nothing = {name: torch.zeros_like(prepared[name]) for name in FIELDS}
    assert float(task.loss(nothing, prepared)) == pytest.approx(1.5, rel=1e-9)
    metrics = task.metrics({name: prepared[name] for name in FIELDS}, batch)
    assert float(metrics["loss"].max()) == 0
    assert [float(metrics[f"{name}/max"].max()) for name in FIELDS] == pytest.approx([0, 0], abs=1e-9)


class OwnMetrics(FieldsTask):
    def metrics(self, predictions, batch):
        return super().metrics(predictions, batch) | {"own": batch["surface_pressure"].mean(dim=1)}


def test_an_evaluation_brings_predictions_to_physical_units_once(monkeypatch) -> None:
    task, made, backward = OwnMetrics(FIELDS, domain_low=-4.5, domain_length=10.5), [], Scaling.backward
    task.fit(make_samples())
    batch = stack(make_samples())
    prepared = task.prepare(batch)
    monkeypatch.setattr(Scaling, "backward", lambda self, values: made.append(self) or backward(self, values))
    predictions = Evaluated({name: prepared[name] for name in FIELDS})
    assert "own" in task.metrics(predictions, batch)
    physical = task.to_physical(predictions)
    assert len(made) == len(FIELDS)
    torch.testing.assert_close(physical["volume_velocity"], batch["volume_velocity"])


def test_positions_are_scaled_isotropically_to_a_thousand() -> None:
    batch = {**stack(make_samples(1)), GEOMETRY: torch.tensor([[[-4.5, 6.0, 0.75]]])}
    assert make_task().prepare(batch)[GEOMETRY].flatten().tolist() == pytest.approx([0.0, 1000.0, 500.0])


VARYING = {
    "constant": (torch.full((11,), 5.0), 0.0),
    "rounding-of-float32": (101325 + 1e-3 * torch.arange(11) / 11, 0.0),
    "small-numbers-of-SI-units-vary": (1e-14 * torch.arange(11.0), 1e-14 * 10**0.5),
}


@pytest.mark.parametrize(("values", "std"), VARYING.values(), ids=VARYING)
def test_what_varies_is_told_without_an_absolute_limit(values: torch.Tensor, std: float) -> None:
    task = FieldsTask(FIELDS, domain_low=0, domain_length=1)
    task.fit([{**sample, "surface_pressure": values} for sample in make_samples()])
    assert task.statistics["surface_pressure"].std == pytest.approx([std])
    found = task.to_physical({"surface_pressure": torch.ones(1, 11, 1)})["surface_pressure"]
    assert found.flatten().tolist() == pytest.approx([float(values.mean()) + std] * 11)


def test_a_component_that_is_noise_beside_the_others_is_constant_and_has_no_relative_error() -> None:
    vector = torch.arange(33.0).reshape(11, 3) * torch.tensor([1.0, 1.0, 1e-14])
    samples = [{**sample, "surface_pressure": vector} for sample in make_samples()]
    task = FieldsTask(FIELDS, domain_low=0, domain_length=1)
    task.fit(samples)
    batch = stack(samples)
    found = task.to_physical({"surface_pressure": torch.ones(len(samples), 11, 3)})
    assert task.statistics["surface_pressure"].std[2] == 0
    assert float(found["surface_pressure"][..., 2].abs().max()) < 1e-12
    details = task.final_metrics({**found, "volume_velocity": batch["volume_velocity"]}, batch)
    assert details["surface_pressure/z/relative_l2"].isnan().all()
    assert details["surface_pressure/x/relative_l2"].isfinite().all()


def test_outputs_of_the_case_that_span_decades_are_scaled_channel_by_channel() -> None:
    case = {"points": "case", "scaling": "symmetric_log"}
    task = FieldsTask({"drag": case, "force": case}, domain_low=0, domain_length=1)
    task.fit([{"drag": torch.tensor(10.0**i), "force": i * torch.tensor([1.0, 100.0])} for i in (1, 2, 3)])
    assert task.statistics["drag"].log_scale == pytest.approx([370.0])
    assert task.statistics["force"].log_scale == pytest.approx([2.0, 200.0])


def test_at_points_the_logarithm_begins_at_ten_times_the_usual_value() -> None:
    task = FieldsTask({"volume_flux": {"points": "volume_points", "scaling": "symmetric_log"}})
    points = torch.rand(5, 3)
    task.fit([{"volume_points": points, "volume_flux": i * torch.tensor([-1.0, 2, 3, -4, 1e6])} for i in (1, 3)])
    assert task.statistics["volume_flux"].log_scale == pytest.approx([10 * (3 + 9) / 2])


NAMED = {
    "fields": {
        "surface_pressure": {"points": "surface_points", "unit": "Pa", "scaling": "symmetric_log"},
        "volume_velocity": {"points": "volume_points", "unit": "m/s", "scaling": None, "weight": 0.5},
    }
}
ALONE, VELOCITY = {"points": "surface_points", "weight": 2.0}, {"volume_velocity": ("m/s", "standardised", 0.5)}
GIVEN = {
    "nothing": (None, ("Pa", "symmetric_log", 1.0), VELOCITY),
    "a-change-of-one": ({"surface_pressure": {"scaling": "standardised"}}, ("Pa", "standardised", 1.0), VELOCITY),
    "one-with-points": ({"surface_pressure": ALONE}, ("Pa", "symmetric_log", 2.0), {}),
}


@pytest.mark.parametrize(("given", "pressure", "more"), GIVEN.values(), ids=GIVEN)
def test_what_the_configuration_leaves_open_is_as_the_data_set_says(given, pressure, more) -> None:
    expected = {"surface_pressure": pressure, **more}
    every = None if given is None else {name: FieldConfig(**own).model_dump() for name, own in given.items()}
    task = FieldsTask(every)
    task.examine(make_samples()[0], NAMED)
    assert {name: (own.unit, own.scaling, own.weight) for name, own in task.fields.items()} == expected
    task.fit(make_samples())
    logs = {name for name, (_, scaling, _) in expected.items() if scaling == "symmetric_log"}
    assert {name for name, own in task.statistics.items() if own.log_scale is not None} == logs


def test_a_change_of_a_field_that_the_data_set_does_not_name_is_refused() -> None:
    with refusal("field-without-points", fix="task.fields.volume_velocity"):
        FieldsTask({"volume_velocty": {"weight": 2.0}}).examine(make_samples()[0], NAMED)


class CopiesOfNumbers(TorchFunctionMode):
    """Record the calls that turn Python numbers into tensors: on a GPU, each is a copy that waits for the device."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.new_tensor, torch.tensor, torch.as_tensor):
            self.made.append(function.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("scaling", ["standardised", "symmetric_log"])
def test_after_the_first_batch_an_update_copies_no_statistics(scaling) -> None:
    task = FieldsTask({"surface_pressure": {**FIELDS["surface_pressure"], "scaling": scaling}})
    samples = make_samples()
    task.fit(samples)
    batch = stack(samples)
    with CopiesOfNumbers() as first, torch.inference_mode():
        expected = task.prepare(batch)["surface_pressure"]
    with CopiesOfNumbers() as second:
        prediction = task.prepare(batch)["surface_pressure"].clone().requires_grad_()
        task.to_physical({"surface_pressure": prediction})["surface_pressure"].sum().backward()
    assert first.made
    assert second.made == []
    assert torch.equal(prediction, expected)
    assert task.prepare({key: value.float() for key, value in batch.items()})["surface_pressure"].dtype == torch.float32
    json.dumps(task.state())


def test_errors_of_a_field_by_hand() -> None:
    truth = torch.tensor([[[3.0, 0.0], [0.0, 4.0]]])
    prediction = torch.tensor([[[3.0, 0.0], [1.0, 2.0]]])
    errors = {name: float(value[0]) for name, value in field_errors(prediction, truth).items()}
    assert errors == pytest.approx({"relative_l2": 5**0.5 / 5, "mse": 5 / 4, "mae": 3 / 4, "max": 2.0})


LIFT = {"lift": {"direction": (0.0, 1.0, 0.0), "dynamic_pressure": 245.0, "reference_area": "area"}}


def test_a_force_weighs_its_error_in_standard_deviations_of_the_training_split() -> None:
    rng = torch.Generator().manual_seed(1)
    more = {"surface_area": torch.rand(11, generator=rng), "area": torch.ones(1)}
    samples = [{**sample, **more, "surface_normals": torch.randn(11, 3, generator=rng)} for sample in make_samples()]
    tasks = [FieldsTask(FIELDS, scalars=LIFT, force_weight=weight) for weight in (0.0, 0.3)]
    for task in tasks:
        task.examine(samples[0], {})
        task.fit(samples)
    statistics = tasks[1].statistics
    tasks[1].load_state(json.loads(json.dumps(tasks[1].state())))
    assert tasks[1].statistics == statistics
    assert tasks[1].seen.numbers == {"area": {"low": [1.0], "high": [1.0]}}
    batch = stack(samples)
    plain, weighed = (task.loss({k: v for k, v in task.prepare(batch).items() if k in FIELDS}, task.prepare(batch))
                      for task in tasks)  # fmt: skip
    assert float(plain) == float(weighed) == 0.0
    # All pressures are 2 Pa too high, so the error of the force depends only on the sum of the normals.
    prepared = tasks[1].prepare(batch)
    wrong = {name: prepared[name].clone() for name in FIELDS}
    wrong["surface_pressure"] += 2 / tasks[1].statistics["surface_pressure"].std[0]
    losses = [float(task.loss(wrong, task.prepare(batch))) for task in tasks]
    share = batch["surface_area"] / batch["surface_area"].sum(dim=1, keepdim=True)
    force = -(batch["surface_pressure"] * batch["surface_normals"][..., 1] * share).sum(dim=1)
    error = -(2 * batch["surface_normals"][..., 1] * share).sum(dim=1)
    expected = 0.3 * float((error / force.std(correction=0)).square().mean())
    assert losses[1] - losses[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("fields", "scalar"),
    [
        (FIELDS, "surface_pressure"),
        ({**FIELDS, "drag": {"points": "case"}}, "drag"),
        ({**FIELDS, "force": {"points": "case", "component_names": ["side", "lift", "drag"]}}, "force_lift"),
        ({"force": {"points": "case"}, "force_x": {"points": "case"}}, ""),
    ],
    ids=["field", "output", "component-of-an-output", "two-outputs"],
)
def test_two_things_whose_metrics_would_share_a_name_are_refused(fields, scalar) -> None:
    sample = {**make_samples(1)[0], "drag": torch.ones(()), "force": torch.ones(3), "force_x": torch.ones(())}
    task = FieldsTask(fields, scalars={scalar: LIFT["lift"]} if scalar else {})
    with refusal("metrics-share-a-name") as refused:
        task.examine(sample, {})
    assert (f"task.scalars.{scalar}" if scalar else "force_x") in refused.value.fix


@pytest.mark.parametrize("scalars", [{}, LIFT], ids=["no-coefficient", "no-normals"])
def test_a_weight_of_forces_that_cannot_be_integrated_is_refused(scalars) -> None:
    task = FieldsTask(FIELDS, scalars=scalars, force_weight=1.0)
    with pytest.raises(RequestError) as refusal:
        task.examine(make_samples(1)[0], {})
    assert (refusal.value.code, refusal.value.fix) == ("forces-not-known", "task.force_weight=0")


def test_lift_of_a_hemisphere_on_the_ground() -> None:
    """Cp = 1 − 9/4 sin²θ on the sphere gives C_L = 11/16 with reference area πR² (closed form of the embedded data)."""
    task = make_task(scalars=LIFT)
    polar, azimuth = (np.arange(400) + 0.5) / 400 * np.pi, (np.arange(400) + 0.5) / 400 * np.pi
    theta, phi = np.meshgrid(polar, azimuth, indexing="ij")
    normals = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], -1).reshape(1, -1, 3)
    areas = (np.sin(theta) * (np.pi / 400) ** 2).reshape(1, -1)
    pressure = 245.0 * (1 - 9 / 4 * np.sin(theta) ** 2).reshape(1, -1, 1)
    batch = {"surface_normals": torch.from_numpy(normals), "surface_area": torch.from_numpy(areas)}
    batch["area"] = torch.tensor([np.pi])
    lift = force_coefficient({"surface_pressure": torch.from_numpy(pressure)}, batch, task.scalars["lift"])
    assert float(lift) == pytest.approx(11 / 16, rel=1e-4)


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        (lambda p: {**p, "volume_velocity": p["volume_velocity"][..., :1]}, "volume_velocity has the wrong shape"),
        (lambda p: {"surface_pressure": p["surface_pressure"]}, "the model predicts no volume_velocity"),
        (lambda p: p["surface_pressure"], "the model does not return a dict"),
    ],
    ids=["one-channel-of-three-would-broadcast", "missing", "a-bare-tensor"],
)
def test_wrong_predictions_are_refused_not_broadcast(predictions, message) -> None:
    task = make_task()
    prepared = task.prepare(stack(make_samples()))
    with pytest.raises(RequestError, match=message):
        task.loss(predictions({name: prepared[name] for name in FIELDS}), prepared)


def test_padding_counts_nothing_in_loss_and_metrics() -> None:
    """In a batch with differing numbers of points, each sample gets the same score as in a batch of its own."""
    areas = {"surface_normals": torch.ones(11, 3), "surface_area": torch.ones(11), "area": torch.ones(1)}
    task = make_task(scalars=LIFT)
    samples = [{**sample, **areas} for sample in make_samples(2)]
    samples[1] = {key: value[:5] if key.startswith("surface") else value for key, value in samples[1].items()}
    batch = stack_samples(samples, pad=True)
    rng = torch.Generator().manual_seed(0)
    predictions = {name: torch.randn(task.prepare(batch)[name].shape, generator=rng) for name in FIELDS}
    together, loss = task.metrics(predictions, batch), task.loss(predictions, task.prepare(batch))
    losses = []
    for i, sample in enumerate(samples):
        alone = stack_samples([sample])
        own = {name: value[i : i + 1, : task.prepare(alone)[name].shape[1]] for name, value in predictions.items()}
        for name, value in task.metrics(own, alone).items():
            assert float(together[name][i]) == pytest.approx(float(value), rel=1e-6), name
        losses.append(float(task.loss(own, task.prepare(alone))))
    assert float(loss) == pytest.approx(sum(losses) / 2, rel=1e-6)


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
    """The embedded flow has C_D = 0 for every shape, so some scores are undefined; NaN would explain nothing."""
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
