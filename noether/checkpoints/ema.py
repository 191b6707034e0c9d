"""Averaged weights: smoother than the last update's, and usually better."""

import copy

import torch
from torch import nn


class AveragedWeights:
    """An exponential moving average of a model's weights, in a model of its own.

    Early averages forget faster, min(decay, (1 + n) / (10 + n)) at the n-th update, so that the random
    initial weights are gone after a few hundred updates whatever the decay.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._pairs: _Pairs | None = None

    @torch.no_grad()
    def update(self, model: nn.Module, updates: int) -> None:
        """Moves the average towards `model`, which has made `updates` updates."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        pairs = self._pairs if self._pairs is not None and self._pairs.of is model else _Pairs(self.model, model)
        self._pairs = pairs
        torch._foreach_lerp_(pairs.averages, pairs.weights, 1 - decay)
        if pairs.buffers:
            torch._foreach_copy_(pairs.own_buffers, pairs.buffers)


class _Pairs:
    """The tensors of an average and of the model it follows, found once: walking through modules takes as long as
    averaging a small model."""

    def __init__(self, average: nn.Module, model: nn.Module) -> None:
        self.of = model
        self.averages = [parameter.detach() for parameter in average.parameters()]
        self.weights = [parameter.detach() for parameter in model.parameters()]
        self.own_buffers, self.buffers = list(average.buffers()), list(model.buffers())
