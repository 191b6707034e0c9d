"""One update: accumulation equals one large batch, clipping comes last, and numbers that are not finite are found."""

import copy

import pytest
import torch
from learned import one_rank
from torch import nn

from noether.checkpoints.state import Progress, TrainingState
from noether.config.trainer import TrainerConfig
from noether.core.precision import Precision
from noether.core.tasks.base import Task
from noether.training.update import DeferredFiniteCheck, NonFiniteError, Updater


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1).double()

    def forward(self, batch):
        return {"y": self.layer(batch["x"])}


class MeanSquare(Task):
    def loss(self, predictions, batch):
        return (predictions["y"] - batch["t"]).square().mean()


class NormedNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3).double()

    def forward(self, batch):
        return super().forward({**batch, "x": self.norm(batch["x"])})


def make(config: TrainerConfig, steps: int, precision: str = "float64", net: type[Net] = Net) -> Updater:
    torch.manual_seed(0)
    model = net() if precision == "float64" else net().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TrainingState(model, None, optimizer, Precision(precision, "cpu").scaler(), MeanSquare(), Progress())
    return Updater(state, one_rank(), config, Precision(precision, "cpu"), steps)


def make_batch(samples: int, seed: int = 0) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 3, generator=rng, dtype=torch.float64)
    return {"x": x, "t": x.sum(dim=1, keepdim=True) * 5, "index": torch.arange(samples)}


def cut(batch, *sizes: int):
    return [
        dict(zip(batch, parts, strict=True))
        for parts in zip(*(v.split(list(sizes)) for v in batch.values()), strict=True)
    ]


CONFIG = TrainerConfig(effective_batch_size=7, max_updates=1, clip_gradient_norm=0.5)


@pytest.mark.parametrize("sizes", [(7,), (4, 3), (3, 3, 1), (1,) * 7], ids=str)
def test_accumulation_is_one_large_batch(sizes) -> None:
    """With unequal micro-batches, a mean of means would give the last sample more weight (transformers #34191)."""
    batch = make_batch(7)
    whole, parts = make(CONFIG, 1), make(CONFIG, len(sizes))
    measured = [whole.update([batch], 0.1), parts.update(cut(batch, *sizes), 0.1)]
    torch.testing.assert_close(measured[0].loss, measured[1].loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(measured[0].gradient_norm, measured[1].gradient_norm, rtol=1e-12, atol=0)
    torch.testing.assert_close(whole.state.model.layer.weight, parts.state.model.layer.weight, rtol=1e-12, atol=1e-14)
    assert (parts.state.progress.updates, parts.state.progress.samples) == (1, 7)


def test_the_gradient_is_clipped_once_after_the_last_micro_batch() -> None:
    updater = make(CONFIG, 2)
    before = copy.deepcopy(updater.state.model.state_dict())
    norm = updater.update(cut(make_batch(7), 4, 3), 0.1).gradient_norm
    assert float(norm) > 0.5
    moved = torch.cat([(before[k] - v).flatten() for k, v in updater.state.model.state_dict().items()])
    assert float(moved.norm()) == pytest.approx(0.1 * 0.5, rel=1e-4)


@pytest.mark.parametrize("steps", [1, 2])
def test_each_number_of_the_gradient_is_clipped_as_torch_does(steps) -> None:
    config = TrainerConfig(effective_batch_size=7, max_updates=1, clip_gradient_norm=None, clip_gradient_value=0.7)
    updater, batch = make(config, steps), make_batch(7)
    model = copy.deepcopy(updater.state.model)
    MeanSquare().loss(model(batch), batch).backward()
    assert sorted(float(one.grad.abs().max()) > 0.7 for one in model.parameters()) == [True, True]
    nn.utils.clip_grad_value_(model.parameters(), 0.7)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    updater.update(cut(batch, *((7,) if steps == 1 else (4, 3))), 0.1)
    torch.testing.assert_close(updater.state.model.state_dict(), model.state_dict(), rtol=1e-12, atol=0)


def broken(batch):
    batch["t"][3] = float("nan")
    return batch


def test_a_bad_gradient_stops_the_run_and_names_samples_and_parameters() -> None:
    updater = make(CONFIG, 1)
    before = copy.deepcopy(updater.state.model.state_dict())
    with pytest.raises(NonFiniteError) as caught:
        updater.update([broken(make_batch(7))], 0.1)
    for word in ("update 1", "rank 0: sample 3, t", "layer.weight", "optimizer.learning_rate"):
        assert word in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in updater.state.model.state_dict().items())


def test_bad_gradients_are_skipped_up_to_the_limit() -> None:
    config = CONFIG.model_copy(update={"nan_policy": "skip", "max_skipped_updates": 2})
    updater = make(config, 1)
    before = copy.deepcopy(updater.state.model.state_dict())
    for number in (1, 2):
        said = updater.update([broken(make_batch(7))], 0.1).skipped
        assert f"update {number} is skipped" in said
        assert "sample 3, t" in said
    assert all(torch.equal(value, before[name]) for name, value in updater.state.model.state_dict().items())
    assert updater.update([make_batch(7)], 0.1).skipped is None
    assert updater.state.progress.skipped_in_a_row == 0
    assert updater.state.progress.updates == 3
    for _ in range(2):
        updater.update([broken(make_batch(7))], 0.1)
    with pytest.raises(NonFiniteError, match="3 in a row"):
        updater.update([broken(make_batch(7))], 0.1)


def test_a_skipped_update_leaves_running_statistics_and_names_the_sample_alone() -> None:
    """BatchNorm spreads a sample's NaN over its batch and the running statistics, and cannot train on one sample."""
    config = CONFIG.model_copy(update={"nan_policy": "skip"})
    updater = make(config, 2, net=NormedNet)
    updater.update(cut(make_batch(7), 4, 3), 0.1)
    before = copy.deepcopy(updater.state.model.state_dict())
    bad_input = make_batch(7)
    bad_input["x"][2, 1] = float("nan")
    for batch, found in ((bad_input, "sample 2, x"), (overflowing(make_batch(7)), "sample 5, loss inf")):
        said = updater.update(cut(batch, 4, 3), 0.1).skipped
        assert found in said
        assert said.count("rank 0: sample") == 1, said
        after = updater.state.model.state_dict()
        floats = [name for name, value in after.items() if value.is_floating_point()]
        assert all(torch.equal(after[name], before[name]) for name in floats)
    assert updater.update(cut(make_batch(7, 1), 4, 3), 0.1).skipped is None


def test_a_step_that_overflows_is_seen_before_anything_is_kept() -> None:
    updater = make(CONFIG.model_copy(update={"clip_gradient_norm": None}), 1)
    updater.update([make_batch(7)], float("inf"))
    with pytest.raises(NonFiniteError, match="weights are not finite after update 1") as caught:
        updater.settle()
    assert "layer.weight" in str(caught.value)
    assert "optimizer.learning_rate" in str(caught.value)


def test_fp16_unscales_before_clipping_and_passes_over_overflows() -> None:
    half, single = make(CONFIG, 1, "fp16"), make(CONFIG, 1, "float32")
    batch = {k: v.float() if v.is_floating_point() else v for k, v in make_batch(7).items()}
    norm = single.update([batch], 0.1).gradient_norm
    # The scale starts high: an update that overflows halves it and leaves the weights unchanged, until an update fits.
    for _ in range(8):
        measured = half.update([batch], 0.1)
        if half.state.progress.skipped_in_a_row == 0:
            break
    assert float(measured.gradient_norm) == pytest.approx(float(norm), rel=0.01)
    torch.testing.assert_close(half.state.model.layer.weight, single.state.model.layer.weight, rtol=0.02, atol=0.002)


def overflowing(batch):
    batch["x"][5] = 1e300
    batch["t"][5] = -1e300
    return batch


def test_weights_that_are_not_finite_are_named_themselves() -> None:
    updater = make(CONFIG, 1)
    with torch.no_grad():
        updater.state.model.layer.bias[0] = float("inf")
    with pytest.raises(NonFiniteError, match=r"the weights themselves, layer\.bias"):
        updater.update([make_batch(7)], 0.1)


def test_where_the_device_is_not_waited_for_the_answer_comes_one_update_late_and_before_anything_is_kept() -> None:
    """On a GPU under nan_policy=stop, the norm is read one update later: reading it at once would stall the host."""

    def after(batch) -> Updater:
        updater = make(CONFIG, 1)
        updater.finite_check = DeferredFiniteCheck()
        updater.update([batch], 0.1)
        return updater

    with pytest.raises(NonFiniteError, match="update 1 is not finite"):
        after(broken(make_batch(7))).settle()
    with pytest.raises(NonFiniteError, match="update 1 is not finite") as caught:
        after(broken(make_batch(7))).update([make_batch(7)], 0.1)
    assert "rank 0: sample 3, t" in str(caught.value)
    # Here inputs are finite but the loss is not, and the weights have changed, so the error also names samples.
    with pytest.raises(NonFiniteError, match="or one of samples 0, 1, 2, 3, 4, 5, 6"):
        after(overflowing(make_batch(7))).settle()
    updater = after(make_batch(7))
    updater.update([make_batch(7)], 0.1)
    updater.settle()
