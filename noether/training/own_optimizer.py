"""Builds the user's own optimiser, and tries it before the first update."""

import copy
import inspect
import json
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from noether.checkpoints.state import group_settings
from noether.common.errors import RequestError
from noether.config.optimizer import CustomOptimizerConfig
from noether.core.components import Component


def build_own(config: CustomOptimizerConfig, groups: list[dict[str, Any]]) -> Optimizer:
    """Builds the user's own optimiser, after it has made an update of copies of some parameters.

    Raises:
        RequestError: it is no optimiser, does not take its options, or makes no update; or a checkpoint could not keep
            its state.
    """
    few = [{**group, "params": [nn.Parameter(one.detach().clone()) for one in group["params"][:1]]} for group in groups]
    trial = _own(config, few)
    step = inspect.signature(trial.step).parameters.values()
    if needed := [one.name for one in step if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]:
        raise _unusable(config, f"step({', '.join(needed)})", "a step that needs no argument: gradients are in .grad")
    before = [one.detach().clone() for group in few for one in group["params"]]
    for group in trial.param_groups:
        group["lr"] = config.learning_rate
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    numbers = {name: float(value) for name, value in vars(trial).items() if _is_number(value)}
    trial.step()
    after_it = {name: float(value) for name, value in vars(trial).items() if _is_number(value)}
    if counted := [name for name, value in numbers.items() if after_it.get(name, value) != value]:
        name = counted[0]
        seen = f"self.{name}: {numbers[name]:g} before a step, and {after_it[name]:g} after it"
        raise _unusable(config, seen, "counters in self.state or self.param_groups, which a checkpoint keeps")
    after = [one for group in few for one in group["params"]]
    if all(torch.equal(one, other) for one, other in zip(before, after, strict=True)):
        raise _unusable(config, "a step that changes no weight", "a step that follows .grad, at the rate group['lr']")
    for parameter, state in trial.state.items():
        for name, value in state.items():
            if not isinstance(value, (Tensor, int, float, type(None))):
                seen = f"state {name!r} of a parameter {tuple(parameter.shape)}: {type(value).__name__}"
                raise _unusable(config, seen, "tensors and numbers, which a checkpoint can keep")
    try:
        json.dumps(group_settings(trial))
    except TypeError as error:
        refused = _unusable(
            config, f"in param_groups: {error}", "numbers, texts and lists, which a checkpoint can keep"
        )
        raise refused from None
    own = _own(config, groups)
    own.built_groups = copy.deepcopy(group_settings(own))  # type: ignore[attr-defined]
    return own


def _is_number(value: Any) -> bool:
    return value.numel() == 1 and not value.is_complex() if isinstance(value, Tensor) else type(value) in (int, float)


def _own(config: CustomOptimizerConfig, groups: list[dict[str, Any]]) -> Optimizer:
    given = {"params": groups, "lr": config.learning_rate}
    offered = {"weight_decay": config.weight_decay}
    component = Component("optimizer", config.kind, config.options(), base=Optimizer, given=given, offered=offered)
    try:
        own: Optimizer = component.build()
    except (ValueError, TypeError) as error:
        raise _unusable(config, str(error), "options that it takes") from None
    return own


def _unusable(config: CustomOptimizerConfig, seen: str, expected: str) -> RequestError:
    return RequestError(
        "optimizer-unusable",
        f"no run can use {config.kind}",
        seen=seen,
        expected=expected,
        fix="optimizer=adamw      (or change that class)",
    )
