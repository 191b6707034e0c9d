"""Forward and backward passes beside those of the updates, which leave no trace."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noether.data.loader import Batch, to_device, training_batches
from noether.data.order import GlobalOrder, RankOrder
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
def without_trace(model: nn.Module, device: torch.device, *, gradients: bool = False) -> Iterator[None]:
    """Puts back the model's buffers and every random number generator after the block.

    Gradients are dropped, unless `gradients` says that they were there before.
    """
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if not gradients:
            model.zero_grad()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
