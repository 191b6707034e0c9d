"""Optimisers: those of torch, those that torch does not have, and the user's own."""

import copy
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from noether.checkpoints.state import group_settings
from noether.common.errors import RequestError
from noether.config.optimizer import AdamWConfig, CustomOptimizerConfig, LionConfig, MuonConfig, OptimizerConfig
from noether.core.components import Component
from noether.launch.process_group.torch_internals import LightAdamW, LightSGD, WithoutCompiler, foreach


def build_optimizer(
    config: OptimizerConfig, model: nn.Module, parts: Mapping[str, nn.Module] | None = None
) -> Optimizer:
    """Build the optimiser of a model's trainable parameters; if `parts` are given, join one optimiser for each part.

    Unless `decay_all` is true, biases, norms and other parameters of fewer than two axes get no weight decay.
    RequestError: the user's own class is not an optimiser, or a run cannot use or resume it.
    """
    if parts:
        return JoinedOptimizer({name: build_optimizer(config, part) for name, part in parts.items()})
    groups = parameter_groups(model, config.weight_decay, decay_all=config.decay_all)
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in model.parameters())
    if isinstance(config, CustomOptimizerConfig):
        return build_own(config, groups)
    if isinstance(config, AdamWConfig):
        return LightAdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=fused)
    if isinstance(config, LionConfig):
        return Lion(groups, {"lr": config.learning_rate, "betas": config.betas})
    if isinstance(config, MuonConfig):
        return muon_for_matrices(groups, config, fused=fused)
    return LightSGD(groups, lr=config.learning_rate, momentum=config.momentum, nesterov=config.nesterov, fused=fused)


def parameter_groups(model: nn.Module, weight_decay: float, *, decay_all: bool = False) -> list[dict[str, Any]]:
    """Divide the trainable parameters into a group with weight decay and a group without it."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trainable if decay_all or parameter.ndim >= 2]
    others = [parameter for parameter in trainable if not (decay_all or parameter.ndim >= 2)]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


class Lion(WithoutCompiler):
    """Lion (Chen et al., arXiv 2302.06675): every weight moves by the learning rate, along the momentum's sign.

    With momentum m and gradient g: w ← w (1 − lr·wd) − lr · sign(β₁ m + (1 − β₁) g), then m ← β₂ m + (1 − β₂) g.
    """

    needed = ("exp_avg",)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            lr, (beta1, beta2) = group["lr"], group["betas"]
            # A complex weight counts as two real ones.
            weights, gradients, momenta = (
                [torch.view_as_real(one) if one.is_complex() else one for one in tensors]
                for tensors in (parameters, [one.grad for one in parameters], _momenta(self, parameters, "exp_avg"))
            )
            directions = foreach.lerp(momenta, gradients, 1 - beta1)
            foreach.sign_(directions)
            if group["weight_decay"]:
                foreach.mul_(weights, 1 - lr * group["weight_decay"])
            foreach.add_(weights, directions, alpha=-lr)
            foreach.lerp_(momenta, gradients, 1 - beta2)


def _momenta(optimizer: Optimizer, parameters: list[Tensor], name: str) -> list[Tensor]:
    """Return each parameter's momentum from the optimiser's state under `name`; create it as zero if missing."""
    for parameter in parameters:
        if name not in optimizer.state[parameter]:
            optimizer.state[parameter][name] = torch.zeros_like(parameter)
    return [optimizer.state[parameter][name] for parameter in parameters]


class Muon(WithoutCompiler):
    """Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon/): steps along the orthogonalised momentum.

    The result equals that of `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")` within the rounding of bfloat16, which
    torch uses to orthogonalise. Matrices of one shape are stacked, which halves the time for small matrices.
    """

    needed = ("momentum_buffer",)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for parameters in by_shape.values():
                self._step_alike(parameters, group)

    def _step_alike(self, weights: list[Tensor], group: Mapping[str, Any]) -> None:
        lr, momentum = group["lr"], group["momentum"]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        momenta = _momenta(self, weights, "momentum_buffer")
        foreach.lerp_(momenta, gradients, 1 - momentum)
        ahead = foreach.lerp(gradients, momenta, momentum)  # Nesterov's form
        directions = orthogonal(torch.stack(ahead), group["steps"]).to(weights[0].dtype)
        if group["weight_decay"]:
            foreach.mul_(weights, 1 - lr * group["weight_decay"])
        # An orthogonal matrix has entries of about 1/√(larger side); AdamW's step has about 0.2 (arXiv 2502.16982).
        foreach.add_(weights, list(directions), alpha=-lr * 0.2 * max(weights[0].shape) ** 0.5)


def orthogonal(matrices: Tensor, steps: int) -> Tensor:
    """Bring the singular values of matrices (n, rows, columns) near one, by Newton-Schulz steps.

    A GPU uses bfloat16, which is as good and faster; a CPU uses the matrices' own precision, because without bfloat16
    units it multiplies bfloat16 at a seventh of float32's rate (192 × 768, torch 2.13, an AMD EPYC). The polynomial is
    Jordan's: it raises small singular values fast, and ends with all of them between about 0.7 and 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x if x.device.type == "cpu" else x.bfloat16()
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class JoinedOptimizer(WithoutCompiler):
    """Several optimisers of disjoint parameters, joined into one, whose state and groups they share."""

    def __init__(self, parts: Mapping[str, Optimizer]) -> None:
        super().__init__([group for part in parts.values() for group in part.param_groups], {})
        self.parts = parts
        self._part_of = {one: part for part in parts.values() for group in part.param_groups for one in group["params"]}
        for part in parts.values():
            self.defaults |= part.defaults
            self.state.update(part.state)
        of_own = [part.built_groups for part in parts.values() if hasattr(part, "built_groups")]
        if of_own:  # The user's own class itself checks the state that it loads.
            self.built_groups = [group for groups in of_own for group in groups]
            self.needed_state = None  # type: ignore[assignment]
        self._deal(iter(self.param_groups), self.state)

    def _deal(self, groups: Iterator[dict[str, Any]], state: Any) -> None:
        """Give each part's optimiser its parameter groups and the shared state."""
        for part in self.parts.values():
            part.param_groups, part.state = [next(groups) for _ in part.param_groups], state
            if isinstance(part, JoinedOptimizer):
                part._deal(iter(part.param_groups), state)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for part in self.parts.values():
            part.step()

    def needed_state(self, parameter: Tensor) -> tuple[str, ...]:
        """Return the names of the state entries that the optimiser of this parameter needs."""
        part: Any = self._part_of[parameter]
        return tuple(part.needed_state(parameter))

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a state, and give each part's optimiser its groups."""
        super().load_state_dict(state_dict)
        self._deal(iter(self.param_groups), self.state)


def muon_for_matrices(groups: Iterable[dict[str, Any]], config: MuonConfig, *, fused: bool) -> Optimizer:
    """Build Muon for real matrices and AdamW for every other parameter, and join the two optimisers.

    Muon's steps have the size of AdamW's, so that one learning rate and one weight decay suit both.
    """
    split: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for group in groups:
        for is_matrix, chosen in split.items():
            own = [one for one in group["params"] if (one.ndim == 2 and not one.is_complex()) == is_matrix]
            chosen.extend([{**group, "params": own}] if own else [])
    parts: dict[str, Optimizer] = {}
    if matrices := split[True]:
        given = {"lr": config.learning_rate, "momentum": config.momentum, "steps": config.steps}
        parts["matrices"] = Muon(matrices, given)
    if others := split[False]:
        parts["others"] = LightAdamW(others, config.learning_rate, config.betas, config.eps, fused=fused)
    return JoinedOptimizer(parts)


def build_own(config: CustomOptimizerConfig, groups: list[dict[str, Any]]) -> Optimizer:
    """Try the user's own optimiser on copies of the weights, then build it. Errors are those of `build_optimizer`."""
    few = [{**group, "params": [nn.Parameter(one.detach().clone()) for one in group["params"][:1]]} for group in groups]
    trial = _own(config, few)
    step = inspect.signature(trial.step).parameters.values()
    if needed := [one.name for one in step if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]:
        raise _unusable(config, f"step({', '.join(needed)})", "a step that needs no argument: gradients are in .grad")
    weights = [one for group in few for one in group["params"]]
    before = [one.detach().clone() for one in weights]
    for group in trial.param_groups:
        group["lr"] = config.learning_rate
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    numbers = _numbers_of(trial)
    trial.step()
    after_it = _numbers_of(trial)
    if counted := [name for name, value in numbers.items() if after_it.get(name, value) != value]:
        name = counted[0]
        seen = f"self.{name}: {numbers[name]:g} before a step, and {after_it[name]:g} after it"
        raise _unusable(config, seen, "counters in self.state or self.param_groups, which a checkpoint keeps")
    if all(torch.equal(one, other) for one, other in zip(before, weights, strict=True)):
        raise _unusable(config, "a step that changes no weight", "a step that follows .grad, at the rate group['lr']")
    for parameter, state in trial.state.items():
        for name, value in state.items():
            if not isinstance(value, (Tensor, int, float, type(None))):
                seen = f"state {name!r} of a parameter {tuple(parameter.shape)}: {type(value).__name__}"
                raise _unusable(config, seen, "tensors and numbers, which a checkpoint can keep")
    try:
        json.dumps(group_settings(trial))
    except TypeError as error:
        expected = "numbers, texts and lists, which a checkpoint can keep"
        raise _unusable(config, f"in param_groups: {error}", expected) from None
    own = _own(config, groups)
    own.built_groups = copy.deepcopy(group_settings(own))  # type: ignore[attr-defined]
    return own


def _numbers_of(optimizer: Optimizer) -> dict[str, float]:
    """Return the attributes of an optimiser that are numbers, or tensors with a single number."""

    def is_number(value: Any) -> bool:
        one = isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
        return one or type(value) in (int, float)

    return {name: float(value) for name, value in vars(optimizer).items() if is_number(value)}


def optimizer_component(config: CustomOptimizerConfig, groups: list[dict[str, Any]]) -> Component:
    """Return the user's own optimiser for these groups of parameters, as a component that is not built yet."""
    given, offered = {"params": groups, "lr": config.learning_rate}, {"weight_decay": config.weight_decay}
    return Component("optimizer", config.kind, config.options(), base=Optimizer, given=given, offered=offered)


def _own(config: CustomOptimizerConfig, groups: list[dict[str, Any]]) -> Optimizer:
    try:
        own: Optimizer = optimizer_component(config, groups).build()
    except (ValueError, TypeError) as error:
        raise _unusable(config, str(error), "options that the optimiser accepts") from None
    return own


def _unusable(config: CustomOptimizerConfig, seen: str, expected: str) -> RequestError:
    return RequestError("optimizer-unusable", f"no run can use {config.kind}", seen=seen, expected=expected,
                        fix="optimizer=adamw      (or change that class)")  # fmt: skip
