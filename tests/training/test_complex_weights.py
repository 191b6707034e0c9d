"""Complex weights and buffers stay complex, in the run's precision; both parts are learned, saved and resumed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import REPOSITORY, final_hashes
from learned import weights
from own_complex import OneWeight

from noether.core.precision import Precision
from noether.core.problem import place_model
from noether.runs.folder import RunFolder

HERE = Path(__file__).parent
CONFIG = """\
defaults: [/optimizer: adamw, /schedule: constant, _self_]
dataset: {kind: own_complex.Turned, count: 32, validation_fraction: 0.25}
model: {kind: own_complex.OneWeight}
task: {kind: own_complex.Regression}
optimizer: {learning_rate: 0.1}
accelerator: cpu
trainer: {effective_batch_size: 8, max_updates: 90, checkpoint_every: 45 updates, ema_decay: 0.9}
tracker: {tensorboard: false, report: false}
"""


@pytest.mark.parametrize(
    ("name", "dtype"), [("float32", torch.complex64), ("float64", torch.complex128), ("bf16", torch.complex64)]
)
def test_a_model_is_placed_with_its_kind_of_numbers(name, dtype) -> None:
    model = OneWeight()
    with torch.no_grad():
        model.w.fill_(1 + 2j)
    placed = place_model(model, torch.device("cpu"), Precision(name, "cpu"))
    assert (placed.w.dtype, placed.phase.dtype) == (dtype, dtype)
    assert (placed.w.item(), placed.phase.item()) == (1 + 2j, 1 + 1j)


@pytest.fixture
def train(noether, tmp_path) -> Callable[..., RunFolder]:
    (tmp_path / "turned.yaml").write_text(CONFIG)

    def run(name: str, *more: str) -> RunFolder:
        words = ["--hp", str(tmp_path / "turned.yaml"), f"output_path={tmp_path}", f"run_id={name}", *more]
        noether("train", *words, PYTHONPATH=f"{REPOSITORY}:{HERE}", code=0)
        return RunFolder(tmp_path / name)

    return run


@pytest.mark.slow
def test_both_parts_are_learned_and_a_resumed_run_is_the_same(train) -> None:
    whole = train("whole", "devices=2")
    weight = weights(whole)["w"]
    real, imaginary = torch.view_as_real(weight).flatten() if weight.is_complex() else weight.flatten()
    assert float(real) == pytest.approx(2, abs=0.7)
    assert float(imaginary) == pytest.approx(3, abs=0.7)
    train("cut", "devices=2", "trainer.max_updates=45")
    assert final_hashes(train("cut", "devices=2", "resume=auto")) == final_hashes(whole)


OPERATOR = (
    *("dataset.kind=own_complex.Diffusion", "dataset.count=64", "model.kind=neuralop.models.FNO", "model.input=x"),
    *("model.output=y", "model.n_modes=[8,8]", "model.in_channels=1", "model.out_channels=1"),
    *("model.hidden_channels=8", "model.n_layers=2", "optimizer.learning_rate=0.01", "trainer.effective_batch_size=16"),
    *("trainer.max_updates=24", "trainer.evaluate_every=null", "trainer.ema_decay=0.7"),
)


@pytest.mark.slow
def test_a_public_fourier_neural_operator_trains_by_its_dotted_path(train) -> None:
    whole = train("whole", *OPERATOR)
    assert any(value.is_complex() for value in weights(whole).values())
    assert json.loads(whole.result.read_text())["metrics"]["loss"] < 0.06  # This is half of the variance.
