"""Predictions in one pass and in chunks of points agree, with any loader; models that cannot be chunked are refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from learned import one_rank
from torch import nn

from noether.config.compose import load_config
from noether.core.data.points import PointSampler
from noether.core.evaluate import Evaluator, _in_order, predict
from noether.core.precision import Precision
from noether.core.problem import Problem
from noether.physics.fields.fields import FieldsTask
from noether.physics.models.transformer import Transformer
from tests.refusal import refusal


def test_a_model_without_chunks_names_the_setting() -> None:
    with refusal("no-prediction-in-chunks") as caught:
        predict(nn.Linear(2, 2), {}, 100)
    assert caught.value.seen == "trainer.evaluation_chunk_size=100"
    assert caught.value.fix == "trainer.evaluation_chunk_size=null"


def cars(count: int) -> list[dict[str, torch.Tensor]]:
    rng = torch.Generator().manual_seed(1)
    samples = []
    for _ in range(count):
        surface, volume = torch.rand(13, 3, generator=rng), torch.rand(11, 3, generator=rng)
        fields = {"surface_pressure": 50 * surface[:, 0] - 20, "volume_velocity": 20 * volume}
        samples.append({"surface_points": surface, "volume_points": volume, **fields})
    return samples


WAYS = {
    "chunks": ["trainer.evaluation_chunk_size=4"],
    "loader-workers": ["num_workers=2"],
    "a-sample-a-batch": ["trainer.evaluation_batch_size=1"],
    "all-of-these": ["trainer.evaluation_chunk_size=5", "num_workers=2", "trainer.evaluation_batch_size=2"],
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_no_metric_depends_on_chunks_workers_or_batches(way) -> None:
    """The number of ranks is tested in tests/training/test_equivalence.py."""
    torch.manual_seed(0)
    samples = cars(5)
    points = {"surface_pressure": "surface_points", "volume_velocity": "volume_points"}
    task = FieldsTask({name: {"points": key, "unit": ""} for name, key in points.items()}, 0.0, 1.0)
    task.fit(samples)
    model = Transformer(dim=24, heads=2, depth=2).double()
    group = one_rank()
    problem = Problem(None, [], [], PointSampler(0, {"surface": 6, "volume": 6}), task, model, {})

    def metrics(*settings):
        evaluator = Evaluator(load_config(settings), problem, group, Precision("float64", "cpu"), usual_batch_size=3)
        return evaluator.sample_metrics(model, samples, range(5))

    expected, found = metrics(), metrics(*way)
    assert expected.keys() == found.keys()
    assert {"loss", "surface_pressure/relative_l2", "volume_velocity/max"} <= expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-10, abs=1e-12), name


def test_batches_that_differ_in_their_metrics_are_refused() -> None:
    with refusal("metrics-differ") as caught:
        _in_order([[{"loss": np.zeros(2)}], [{"loss": np.zeros(1), "lift": np.zeros(1)}]], [[[0, 2]], [[1]]], 3)
    assert caught.value.seen == "lift in some of them only"


class ComplexModel(nn.Module):
    """Predicts a complex field and a count."""

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        wave = torch.complex(batch["surface_points"], batch["surface_points"] + 1)
        return {"wave": wave.to(torch.complex128), "count": torch.ones(1, 13, dtype=torch.int64)}


def test_metrics_and_fields_are_of_the_same_predictions() -> None:
    """In both, complex values keep their imaginary part and integers stay integers."""
    measured: list[dict[str, torch.Tensor]] = []
    as_it_is = dict.fromkeys(("prepare", "to_physical"), lambda tensors: tensors)
    task = SimpleNamespace(**as_it_is, compares_samples=False)
    problem, samples = Problem(None, [], [], PointSampler(0, {}), task, ComplexModel(), {}), cars(1)
    evaluator = Evaluator(load_config([]), problem, one_rank(), Precision("float32", "cpu"), usual_batch_size=1)

    def measure(predictions, batch):
        measured.append(predictions)
        return {}

    evaluator.sample_metrics(problem.model, samples, [0], metrics=measure)
    fields, _ = evaluator.fields(problem.model, samples, 0)
    assert {name: value.dtype for name, value in fields.items()} == {"wave": torch.complex64, "count": torch.int64}
    for name, value in fields.items():
        torch.testing.assert_close(value, measured[0][name], rtol=0, atol=0)
