"""Build the model that `model.kind` names, with its options."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from noether.common.dotted_path import load_object
from noether.common.errors import RequestError
from noether.core.components import Component
from noether.core.data.layout import Layout
from noether.registry import code_of

REGISTRY = code_of("model")
"""{short name for `model.kind`: dotted path} of the built-in models."""


def build_model(kind: str, layout: Layout | None = None, **options: Any) -> nn.Module:
    """Build the model that `model.kind` names, with new random weights (from torch's global generator).

    kind: a name in `REGISTRY`, or the dotted path of a user's model: an `nn.Module` class, or a function that returns
        one. Its `forward` takes a batch (dict of tensors) and returns predictions (dict of tensors).
    layout: the task's inputs and outputs, passed to every model with an argument `layout`.
    options: the keyword arguments of the model, which are the other entries of the `model` section.

    If a user's model does not work on dictionaries, its options `input` (one key or several) and `output` name the
    tensors that it takes and returns.

    RequestError: there is no such model, the result is not a model, or an option is unknown or missing.
    """
    component, inputs, output = model_component(kind, options, {"layout": layout} if layout is not None else {})
    model: nn.Module = component.build()
    return TensorModel(model, inputs, output) if inputs or output else model


def model_component(
    kind: str, options: Mapping[str, Any], offered: Mapping[str, Any]
) -> tuple[Component, tuple[str, ...], str]:
    """Return the component of `model.kind`, the keys of its input tensors, and the name of its output tensor."""
    named = {} if kind in REGISTRY else {name: options[name] for name in ("input", "output") if name in options}
    asked = named.get("input") or ()
    inputs = (asked,) if isinstance(asked, str) else tuple(asked)
    own = {name: value for name, value in options.items() if name not in named}
    calls, needed = {"forward": inputs or ("batch",)}, {"forward": ("the predictions for a batch, by name",)}
    component = Component("model", kind, own, REGISTRY, nn.Module, offered=offered, calls=calls, needed=needed)
    return component, inputs, named.get("output") or ""


def model_class(kind: str) -> Any:
    """Return the class or function that `model.kind` names. RequestError: it does not exist."""
    return load_object(kind, "model.kind", REGISTRY)


def count_parameters(model: nn.Module) -> int:
    """Return the number of trained and frozen scalars in the model's parameters, without buffers."""
    return sum(parameter.numel() for parameter in model.parameters())


class TensorModel(nn.Module):
    """Adapts a model that takes and returns tensors to batches and predictions, which are dictionaries.

    model: the model; it takes one tensor (B, …) for each key in `inputs`, or the whole batch if there are no keys.
    inputs: the keys of the tensors that the model takes, in this order.
    output: the name of the model's result; "" if the model itself returns a dictionary.
    """

    def __init__(self, model: nn.Module, inputs: tuple[str, ...], output: str) -> None:
        super().__init__()
        self.model, self.inputs, self.output = model, inputs, output

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return {output: (B, …)}. KeyError: the batch has no such input."""
        result = self.model(*(batch[key] for key in self.inputs)) if self.inputs else self.model(batch)
        return {self.output: result} if self.output else result


Method = TypeVar("Method", bound=Callable[..., Any])


class Recomputable(nn.Module):
    """A block whose attribute `recomputes` decides if the backward pass recomputes the methods marked `recomputed`."""

    recomputes = False


def recomputed(method: Method) -> Method:
    """Mark a method of a `Recomputable` whose activations need not be kept.

    Recomputing reuses the random state and autocast of the first pass, so the gradients are bit-identical.
    """

    @wraps(method)
    def wrapper(self: Recomputable, *args: Any, **kwargs: Any) -> Any:
        if self.recomputes and self.training and torch.is_grad_enabled():
            return checkpoint(method, self, *args, use_reentrant=False, **kwargs)
        return method(self, *args, **kwargs)

    return cast(Method, wrapper)


def recompute_blocks(model: nn.Module) -> int:
    """Make every `Recomputable` block of a model recompute its activations; return the number of blocks.

    RequestError: the model has no such block.
    """
    blocks = [module for module in model.modules() if isinstance(module, Recomputable)]
    if not blocks:
        raise RequestError(
            "nothing-to-recompute", "the model has no blocks whose activations could be recomputed",
            seen=f"trainer.recompute=true, model {type(model).__name__}",
            expected="upt, ab_upt, transformer or transolver, or blocks that are noether.core.models.build."
            "Recomputable with methods marked `recomputed`",
            fix="trainer.recompute=false",
        )  # fmt: skip
    for block in blocks:
        block.recomputes = True
    return len(blocks)
