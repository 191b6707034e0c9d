"""How weights move: parameter groups, and the optimisers that torch does not have."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from noether.config.optimizer import AdamWConfig, LionConfig, SGDConfig


def build_optimizer(config: AdamWConfig | SGDConfig | LionConfig, model: nn.Module) -> Optimizer:
    """Builds the optimiser over a model's trainable parameters.

    Biases, norms and every other parameter of fewer than two axes do not decay unless `decay_all` is set.
    """
    groups = parameter_groups(model, config.weight_decay, decay_all=config.decay_all)
    if isinstance(config, AdamWConfig):
        return AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=_fused(model))
    if isinstance(config, LionConfig):
        return Lion(groups, lr=config.learning_rate, betas=config.betas)
    return SGD(
        groups,
        lr=config.learning_rate,
        momentum=config.momentum,
        nesterov=config.nesterov,
        fused=_fused(model),
    )


def parameter_groups(model: nn.Module, weight_decay: float, *, decay_all: bool = False) -> list[dict[str, Any]]:
    """Splits the trainable parameters into those that decay and those that do not."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trainable if decay_all or parameter.ndim >= 2]
    others = [parameter for parameter in trainable if not (decay_all or parameter.ndim >= 2)]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _fused(model: nn.Module) -> bool:
    parameters = list(model.parameters())
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in parameters)


class Lion(Optimizer):
    """Lion (Chen et al., arXiv 2302.06675): every weight moves by the learning rate, in the momentum's sign.

    With momentum m and gradient g: w ← w (1 − lr·wd) − lr · sign(β₁ m + (1 − β₁) g), then
    m ← β₂ m + (1 − β₂) g.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Makes one update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._step_group(parameters, group["lr"], group["betas"], group["weight_decay"])
        return loss

    def _step_group(self, parameters: list[Tensor], lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        beta1, beta2 = betas
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if "exp_avg" not in self.state[parameter]:
                self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)
        momenta = [self.state[parameter]["exp_avg"] for parameter in parameters]
        # A complex weight counts as two real ones.
        parameters, gradients, momenta = (
            [torch.view_as_real(one) if one.is_complex() else one for one in tensors]
            for tensors in (parameters, gradients, momenta)
        )
        directions = torch._foreach_lerp(momenta, gradients, 1 - beta1)
        torch._foreach_sign_(directions)
        if weight_decay:
            torch._foreach_mul_(parameters, 1 - lr * weight_decay)
        torch._foreach_add_(parameters, directions, alpha=-lr)
        torch._foreach_lerp_(momenta, gradients, 1 - beta2)
