"""The eps of a model's layer norms: 1e-6 as published, and torch's 1e-5 for weights trained before that was so."""

from typing import Any

import torch
from torch import Tensor, nn

DIGITS = "norm_eps_digits"
"""A buffer, so that weights say with which eps they were trained: 6 for 1e-6. It goes wherever they go."""
PUBLISHED, BEFORE = 6, 5


def publish_norms(model: nn.Module) -> None:
    """Gives the layer norms of a new model the eps 1e-6, and the model the buffer that says so."""
    model.register_buffer(DIGITS, torch.tensor(PUBLISHED))
    _give_eps(model, PUBLISHED)


def add_unrecorded(state_dict: dict[str, Tensor], prefix: str, model: nn.Module) -> None:
    """Adds what older weights were trained with and do not record: the eps of norms, and the model's `unrecorded`."""
    if not any(key.startswith(prefix) for key in state_dict):
        return
    known: dict[str, Any] = {**getattr(model, "unrecorded", {}), **({DIGITS: BEFORE} if hasattr(model, DIGITS) else {})}
    for name, values in known.items():
        state_dict.setdefault(prefix + name, torch.tensor(values))


def set_norms(model: nn.Module) -> None:
    """Gives the layer norms the eps that the model's buffer says; without one they stay as they are."""
    digits: Any = getattr(model, DIGITS, None)
    if digits is not None:
        _give_eps(model, int(digits))


def _give_eps(model: nn.Module, digits: int) -> None:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = float(f"1e-{digits}")
