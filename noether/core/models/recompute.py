"""Activation recomputation: a block keeps only its input, and recomputes the rest in the backward pass."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from noether.common.errors import RequestError

Method = TypeVar("Method", bound=Callable[..., Any])


class Recomputable(nn.Module):
    """A block whose methods marked `recomputed` can be recomputed; `recomputes` says whether they are."""

    recomputes = False


def recomputed(method: Method) -> Method:
    """Marks a method of a `Recomputable` whose activations need not be kept.

    Random numbers and autocast are the first pass's, so that the gradients are the same bit for bit.
    """

    @wraps(method)
    def wrapper(self: Recomputable, *args: Any, **kwargs: Any) -> Any:
        if self.recomputes and self.training and torch.is_grad_enabled():
            return checkpoint(method, self, *args, use_reentrant=False, **kwargs)
        return method(self, *args, **kwargs)

    return cast(Method, wrapper)


def recompute_blocks(model: nn.Module) -> int:
    """Has every block of a model recompute its activations; returns how many there are.

    RequestError: the model has no such block.
    """
    blocks = [module for module in model.modules() if isinstance(module, Recomputable)]
    if not blocks:
        raise RequestError(
            "nothing-to-recompute",
            "the model has no blocks whose activations could be recomputed",
            seen=f"trainer.recompute=true, model {type(model).__name__}",
            expected="upt, ab_upt, transformer or transolver, or blocks that are noether.core.models.recompute."
            "Recomputable with methods marked `recomputed`",
            fix="trainer.recompute=false",
        )
    for block in blocks:
        block.recomputes = True
    return len(blocks)
