"""Finds the sample or the weight that caused a number that is not finite."""

from collections.abc import Iterator, Sequence
from math import isfinite

import torch
from torch import Tensor

from noether.checkpoints.state import TrainingState
from noether.common.errors import NoetherError
from noether.common.numbers import first_of
from noether.core.data.loader import Batch
from noether.core.precision import Precision, evaluation_mode
from noether.training.rehearsal import loss_of, restored_afterwards


class NonFiniteError(NoetherError):
    """The gradient was not finite, and the policy says to stop."""


class DeferredFiniteCheck:
    """Reads whether a gradient was finite one update later, when reading it no longer waits for the device."""

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
def find_bad_numbers(
    state: TrainingState, precision: Precision, batches: Sequence[Batch], rank: int, *, late: bool = False
) -> list[str]:
    """Looks for what brought a gradient that is not finite, on one rank; it may cost a forward pass per sample.

    Samples are tried one at a time in evaluation mode, since layers that mix samples (BatchNorm) cannot train on one
    and would let one sample spoil the others' losses. Where that shows nothing, the micro-batches are tried as they
    were. What the passes change (running statistics, random numbers) is put back.

    `late`: the weights have taken the gradient already, and cannot say any more whether a sample was at fault.

    Returns:
        The first that there is of: samples whose own numbers are not finite; weights that are not; samples whose loss
        is not; micro-batches whose loss is not.
    """
    found = [
        f"rank {rank}: sample {index}, {', '.join(keys)}"
        for index, alone in _single_samples(batches)
        if (keys := [key for key, value in alone.items() if not all_finite(value)])
    ]
    if found:
        return found
    weights = [name for name, value in state.model.named_parameters() if not all_finite(value)]
    if weights and late:
        samples = ", ".join(str(index) for batch in batches for index in batch["index"].tolist())
        return [f"rank {rank}: the weights, or one of samples {samples}: the update was made before this was seen"]
    if weights:
        return [f"rank {rank}: the weights themselves, {first_of(weights, 1)}"]

    def loss(batch: Batch) -> float:
        return float(loss_of(state.model, state.task, precision, batch))

    device = next((value.device for value in batches[0].values()), torch.device("cpu"))
    with restored_afterwards(state.model, device):
        with evaluation_mode(state.model):
            losses = [(index, loss(alone)) for index, alone in _single_samples(batches)]
        found = [f"rank {rank}: sample {index}, loss {value:.4g}" for index, value in losses if not isfinite(value)]
        for batch in () if found else batches:
            if not isfinite(together := loss(batch)):
                samples = ", ".join(map(str, batch["index"].tolist()))
                found.append(f"rank {rank}: samples {samples} together, loss {together:.4g}")
    return found


def _single_samples(batches: Sequence[Batch]) -> Iterator[tuple[int, Batch]]:
    for batch in batches:
        for position, index in enumerate(batch["index"].tolist()):
            yield index, {key: value[position : position + 1] for key, value in batch.items()}


def all_finite(value: Tensor) -> bool:
    """Returns whether a tensor holds no NaN and no infinity; integers never do."""
    return not (value.is_floating_point() or value.is_complex()) or bool(torch.isfinite(value).all())
