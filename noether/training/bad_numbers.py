"""Which sample, or which weight, brought a number that is not finite."""

from collections.abc import Sequence

import torch
from torch import Tensor

from noether.checkpoints.state import TrainingState
from noether.data.loader import Batch
from noether.errors import NoetherError
from noether.learning.precision import Precision


class NonFiniteError(NoetherError):
    """The gradient was not finite, and the policy says to stop."""


class LateLook:
    """Reads whether a gradient was finite one update after it was made, when the answer has long arrived."""

    def __init__(self) -> None:
        self._pending: tuple[Tensor, torch.cuda.Event | None, Sequence[Batch]] | None = None

    def at(self, norm: Tensor, batches: Sequence[Batch]) -> Sequence[Batch] | None:
        """Notes this update's gradient norm; returns the batches of the one before, where that was not finite."""
        bad = self.settle()
        answer = torch.empty((), dtype=norm.dtype, pin_memory=norm.is_cuda)
        answer.copy_(norm.detach(), non_blocking=True)
        event = None
        if norm.is_cuda:
            event = torch.cuda.Event()
            event.record()
        self._pending = (answer, event, batches)
        return bad

    def settle(self) -> Sequence[Batch] | None:
        """Returns the batches of the last update noted, where its gradient was not finite; waits for the answer."""
        if self._pending is None:
            return None
        answer, event, batches = self._pending
        self._pending = None
        if event is not None:
            event.synchronize()
        return None if bool(torch.isfinite(answer)) else batches


@torch.no_grad()
def find_bad_numbers(state: TrainingState, precision: Precision, batches: Sequence[Batch], rank: int) -> list[str]:
    """Looks for what brought a gradient that is not finite, on one rank; it may cost a forward pass per sample.

    Args:
        state: weights and task.
        precision: in which the model computes.
        batches: the micro-batches of the update.
        rank: named in what is found.

    Returns:
        What is wrong with each sample whose own numbers, or whose loss, are not finite; weights that are not, where
        no sample explains them.
    """
    found, suspects = [], []
    for batch in batches:
        for position, index in enumerate(batch["index"].tolist()):
            alone = {key: value[position : position + 1] for key, value in batch.items()}
            keys = [key for key, value in alone.items() if _is_bad(value)]
            if keys:
                found.append(f"rank {rank}: sample {index}, {', '.join(keys)}")
            else:
                suspects.append((index, alone))
    weights = [name for name, value in state.model.state_dict().items() if _is_bad(value)]
    if weights and not found:
        more = f" and {len(weights) - 1} more" if len(weights) > 1 else ""
        return [f"rank {rank}: the weights themselves, {weights[0]}{more}"]
    for index, alone in suspects if not weights else ():
        prepared = state.task.prepare(alone)
        with precision.autocast():
            loss = state.task.loss(state.model(prepared), prepared)
        if _is_bad(loss):
            found.append(f"rank {rank}: sample {index}, loss {float(loss):.4g}")
    return found


def _is_bad(value: Tensor) -> bool:
    return value.is_floating_point() and not bool(torch.isfinite(value).all())
