import copy
from functools import partial

import pytest
import torch
from torch import nn

from noether.checkpoints.state import EmaWeights
from noether.config.optimizer import AdamWConfig, MuonConfig, SGDConfig
from noether.training.optimizers import Lion, build_optimizer, parameter_groups


def test_lion_against_a_step_worked_by_hand() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
    lion = Lion([{"params": [weight], "weight_decay": 0.5}], {"lr": 0.1, "betas": (0.9, 0.99)})
    weight.grad = torch.tensor([3.0, -1.0, 0.0])
    lion.step()
    # The momentum is 0, so the direction is sign(0.1 g) = (1, −1, 0). Before it, weights decay by 1 − 0.1·0.5.
    torch.testing.assert_close(weight.data, torch.tensor([0.95 - 0.1, -1.9 + 0.1, 0.475]))
    torch.testing.assert_close(lion.state[weight]["exp_avg"], torch.tensor([0.03, -0.01, 0.0]))
    weight.grad = torch.tensor([-0.1, -1.0, 0.0])
    lion.step()
    # The interpolation 0.9·0.03 − 0.1·0.1 = 0.017 keeps its sign although the gradient has changed sign.
    torch.testing.assert_close(weight.data, torch.tensor([0.85 * 0.95 - 0.1, -1.8 * 0.95 + 0.1, 0.475 * 0.95]))
    torch.testing.assert_close(lion.state[weight]["exp_avg"], torch.tensor([0.0297 - 0.001, -0.0099 - 0.01, 0.0]))


def test_biases_and_norms_do_not_decay() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    decayed, others = parameter_groups(model, 0.05)
    assert [tuple(p.shape) for p in decayed["params"]] == [(4, 3)]
    assert [tuple(p.shape) for p in others["params"]] == [(4,), (4,), (4,)]
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.05, 0.0)
    (everything,) = parameter_groups(model, 0.05, decay_all=True)
    assert len(everything["params"]) == 4


def test_muon_makes_matrices_orthogonal_and_leaves_all_else_to_adamw() -> None:
    """The first step is a matrix with singular values near 1, times AdamW's step size: rate · 0.2·√(larger side)."""
    torch.manual_seed(0)
    ours, theirs = same_networks()
    optimizer = build_optimizer(MuonConfig(learning_rate=0.1), ours)
    adamw = torch.optim.AdamW(theirs.parameters(), 0.1, betas=(0.9, 0.95), weight_decay=0.0)
    before = ours[0].weight.detach().clone()
    for model, of in ((ours, optimizer), (theirs, adamw)):
        model(torch.eye(5)).square().sum().backward()
        of.step()
    step = (before - ours[0].weight.detach()) / (0.1 * 0.2 * 8**0.5)
    assert 0.6 < torch.linalg.svdvals(step).min() <= torch.linalg.svdvals(step).max() < 1.3
    for name in ("0.bias", "1.weight", "1.bias", "2.bias"):
        torch.testing.assert_close(ours.get_parameter(name), theirs.get_parameter(name))
    assert {key for state in optimizer.state.values() for key in state} == {
        "momentum_buffer", "exp_avg", "exp_avg_sq", "step"}  # fmt: skip


def test_muon_is_torch_s_to_the_rounding_of_bfloat16() -> None:
    torch.manual_seed(0)
    shapes = [(8, 24), (24, 8), (8, 24), (4, 16)]
    ours = nn.ParameterList(nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes)
    theirs, before = copy.deepcopy(ours), [one.detach().clone() for one in ours]
    optimizers = (
        build_optimizer(MuonConfig(learning_rate=0.1, weight_decay=0.1), ours),
        torch.optim.Muon(theirs.parameters(), 0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(3):
        gradients = [torch.randn_like(one) for one in ours]
        for parameters, optimizer in zip((ours, theirs), optimizers, strict=True):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
    for one, other, first in zip(ours, theirs, before, strict=True):
        assert (one - other).norm() < 0.03 * (other - first).norm()


def test_ema_weights_follow_the_weights_and_forget_the_first_ones_early() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    ema = EmaWeights(model, decay=0.9)
    expected = 0.0
    for update in range(200):
        nn.init.constant_(model.weight, float(update))
        ema.update(model, update)
        decay = min(0.9, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * update
    assert ema.model.weight.item() == pytest.approx(expected, rel=1e-5)
    assert model.weight.item() == 199.0
    assert not ema.model.weight.requires_grad


def same_networks() -> list[nn.Module]:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    return [first, copy.deepcopy(first)]


ADAMW = AdamWConfig(learning_rate=0.1, weight_decay=0.1)
OF_TORCH = {
    "adamw": (ADAMW, partial(torch.optim.AdamW, betas=ADAMW.betas, eps=ADAMW.eps, fused=True)),
    "sgd": (
        SGDConfig(learning_rate=0.1, momentum=0.9, weight_decay=0.1),
        partial(torch.optim.SGD, momentum=0.9, fused=True),
    ),
}


@pytest.mark.parametrize(("config", "of_torch"), OF_TORCH.values(), ids=OF_TORCH)
def test_it_is_torch_s_own_bit_for_bit_through_what_is_unusual(config, of_torch) -> None:
    """During the updates, the learning rate changes, a gradient is missing, and the state is reloaded."""
    ours, theirs = same_networks()
    optimizers = [build_optimizer(config, ours), of_torch(parameter_groups(theirs, 0.1), 0.1)]
    for update in range(12):
        x = torch.randn(7, 5)
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / (1 + update)
            optimizer.zero_grad()
            model(x).square().sum().backward()
            if update == 5:
                model[0].bias.grad = None
            if update == 8:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer.step()
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    for one, other in ((ours.state_dict(), theirs.state_dict()), states):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
