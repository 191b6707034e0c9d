"""The norm of a gradient, and clipping by it, without what torch's own functions do for tensors of several kinds."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


class Clipping:
    """Norm and clipping of one model's gradients, in the arithmetic of `torch.nn.utils.clip_grad_norm_`.

    Where all parameters are of one real type on one device, they need not be sorted by kind in every update.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], largest: float | None) -> None:
        self._parameters, self._largest = parameters, largest
        kinds = {(parameter.device, parameter.dtype) for parameter in parameters}
        self._plain = len(kinds) == 1 and next(iter(kinds))[1].is_floating_point

    @torch.no_grad()
    def norm(self) -> Tensor:
        """Returns the norm of the whole gradient, a scalar on the device."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if not self._plain or not gradients:
            return get_total_norm(gradients)
        out: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        return out

    @torch.no_grad()
    def clip(self, norm: Tensor) -> None:
        """Scales the gradient so that its norm, which was `norm`, is at most the largest."""
        if self._largest is None:
            return
        # Where the norm is on the host, a gradient that is short enough need not be multiplied by one.
        if not norm.is_cuda and norm.item() < self._largest * (1 - 1e-5):
            return
        if not self._plain:
            clip_grads_with_norm_(self._parameters, self._largest, norm)
            return
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        torch._foreach_mul_(gradients, torch.clamp(self._largest / (norm + 1e-6), max=1.0))
