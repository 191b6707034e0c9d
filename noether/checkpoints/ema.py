"""EMA weights: smoother than the last update's, and usually better."""

import copy

import torch
from torch import nn

from noether.launch.process_group.torch_internals import foreach


class EmaWeights:
    """An exponential moving average of a model's weights, in a model of its own.

    They forget faster early on, min(decay, (1 + n) / (10 + n)) at the n-th update, so that the random
    initial weights are gone after a few hundred updates whatever the decay.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._followed: nn.Module | None = None

    @torch.no_grad()
    def update(self, model: nn.Module, updates: int) -> None:
        """Moves the average towards `model`, which has made `updates` updates."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        if self._followed is not model:
            # Found once: walking through modules takes as long as an update of a small model.
            self._followed = model
            self._ema = [parameter.detach() for parameter in self.model.parameters()]
            self._weights = [parameter.detach() for parameter in model.parameters()]
            self._own_buffers, self._buffers = list(self.model.buffers()), list(model.buffers())
        foreach.lerp_(self._ema, self._weights, 1 - decay)
        if self._buffers:
            foreach.copy_(self._own_buffers, self._buffers)
