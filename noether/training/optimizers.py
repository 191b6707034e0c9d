"""Builds optimisers: parameter groups, and the optimisers that torch does not have."""

from collections.abc import Iterable
from inspect import unwrap
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
        return LightAdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=_fused(model))
    if isinstance(config, LionConfig):
        return Lion(groups, lr=config.learning_rate, betas=config.betas)
    return LightSGD(
        groups, lr=config.learning_rate, momentum=config.momentum, nesterov=config.nesterov, fused=_fused(model)
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


class WithoutCompiler(Optimizer):
    """An optimiser whose methods do not import torch's compiler, which takes a process more than a second.

    Torch guards these methods against being compiled by a wrapper that imports the compiler (torch/_compile.py). The
    trainer compiles the model alone, so that they need no guard; `unwrap` finds what is behind it.
    """

    add_param_group = unwrap(Optimizer.add_param_group)
    load_state_dict = unwrap(Optimizer.load_state_dict)
    state_dict = unwrap(Optimizer.state_dict)
    zero_grad = unwrap(Optimizer.zero_grad)


class LightSGD(WithoutCompiler, SGD):
    """SGD whose step does not import torch's compiler either."""

    step = torch.no_grad()(unwrap(SGD.step))


class LightAdamW(WithoutCompiler, AdamW):
    """AdamW without what it does around its fused kernel in every step: it finds its lists of tensors once.

    The numbers are AdamW's bit for bit, and so is the state. Anything unusual goes AdamW's own way: the first step,
    parameters without a gradient, a loss scaler that hands its scale to the kernel, devices on which it is not fused.
    Step hooks are not called.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._lists: list[tuple[dict[str, Any], list[Any]]] = []

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Makes one update of every parameter that has a gradient."""
        lists = self._lists
        gradients = [[parameter.grad for parameter in own[0]] for _, own in lists]
        if not lists or hasattr(self, "found_inf") or any(one is None for own in gradients for one in own):
            self._step_as_torch()
            return
        for (group, (parameters, averages, squares, steps)), own_gradients in zip(lists, gradients, strict=True):
            torch._foreach_add_(steps, 1)
            torch._fused_adamw_(
                parameters,
                own_gradients,
                averages,
                squares,
                [],
                steps,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )

    # Torch wraps the step of each class of optimisers once, for the sake of its profiler; a mark says that it has.
    step.hooked = True  # type: ignore[attr-defined]

    def load_state_dict(self, state_dict: Any) -> None:
        """Takes a state; the lists are found anew."""
        self._lists = []
        super().load_state_dict(state_dict)

    def _step_as_torch(self) -> None:
        unwrap(AdamW.step)(self)
        kinds = {(one.device, one.dtype) for group in self.param_groups for one in group["params"]}
        usual = len(kinds) == 1 and all(group["fused"] and not group["amsgrad"] for group in self.param_groups)
        states = [[self.state.get(one, {}) for one in group["params"]] for group in self.param_groups]
        self._lists = []
        if usual and all(state for own in states for state in own):
            names = ("exp_avg", "exp_avg_sq", "step")
            self._lists = [
                (group, [group["params"], *([state[name] for state in own] for name in names)])
                for group, own in zip(self.param_groups, states, strict=True)
            ]


class Lion(WithoutCompiler):
    """Lion (Chen et al., arXiv 2302.06675): every weight moves by the learning rate, in the momentum's sign.

    With momentum m and gradient g: w ← w (1 − lr·wd) − lr · sign(β₁ m + (1 − β₁) g), then
    m ← β₂ m + (1 − β₂) g.
    """

    def __init__(self, params: Iterable[Any], lr: float, betas: tuple[float, float], weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Makes one update of every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._step_group(parameters, group["lr"], group["betas"], group["weight_decay"])

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
