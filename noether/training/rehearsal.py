"""Forward and backward passes beside those of the updates, which leave no trace; the largest batch that fits."""

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noether.data.loader import Batch, to_device, training_batches
from noether.data.order import GlobalOrder, RankOrder
from noether.distributed.group import Group
from noether.learning.precision import Precision
from noether.learning.setup import Problem
from noether.tasks.base import Task


def rehearsal_batch(problem: Problem, samples: int, device: torch.device, precision: Precision) -> Batch:
    """Returns a micro-batch of so many training samples, on the device."""
    order = RankOrder(GlobalOrder(len(problem.train_indices), samples, 0), (samples,), 0, 0, 1)
    (batch,) = training_batches(problem.splits.train, problem.train_indices, order, problem.draw)
    return to_device(batch, device, precision.weights)


def loss_of(model: Callable[[Any], Any], task: Task, precision: Precision, batch: Batch) -> Tensor:
    """Returns the loss of a batch, a scalar, as an update computes it."""
    prepared = task.prepare(batch)
    with precision.autocast():
        predictions = model(prepared)
    return task.loss(predictions, prepared)


@contextmanager
def restored_afterwards(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Puts back the model's buffers and every random number generator after the block. Gradients stay as they are."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def largest_micro_batch(problem: Problem, precision: Precision, group: Group, most: int) -> int:
    """Returns the most samples whose forward and backward pass fit on every rank's device. Every rank calls it.

    Weights, running statistics and random numbers stay as they are.

    Raises:
        torch.OutOfMemoryError: where a single sample does not fit.
    """

    def fits(size: int) -> bool:
        fitted = True
        try:
            batch = rehearsal_batch(problem, size, group.device, precision)
            loss_of(problem.model, problem.task, precision, batch).backward()
        except (MemoryError, RuntimeError) as error:
            # The CPU's allocator raises a plain RuntimeError.
            is_full = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
            if size == 1 or not is_full:
                raise
            fitted = False
        finally:
            problem.model.zero_grad()
            if group.device.type == "cuda":
                torch.cuda.empty_cache()
        # The smallest device decides, so that every rank tries the same sizes.
        return bool(group.sum(torch.tensor(int(not fitted), device=group.device)).item() == 0)

    with restored_afterwards(problem.model, group.device):
        return most if fits(most) else bisect_left(range(1, most), True, key=lambda size: not fits(size))
