"""Trial forward and backward passes, which leave the state unchanged, and the search for the largest micro-batch."""

from bisect import bisect_left
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from noether.core.data.loader import Batch, to_device, training_batches, training_order
from noether.core.data.order import RankOrder
from noether.core.precision import Precision, is_full, restored_afterwards, smaller_when_full
from noether.core.problem import Problem
from noether.core.tasks.base import Task
from noether.launch.process_group.group import Group

NCCL_BYTES = 512 * 2**20
"""The memory in bytes that NCCL allocates for channels and connections at the first collective call."""


def rehearsal_batch(problem: Problem, samples: int, device: torch.device, precision: Precision) -> Batch:
    """Return a micro-batch of `samples` training samples, on the device."""
    train, indices = problem.splits.train, problem.train_indices
    order = RankOrder(training_order(train, indices, samples, 0), (samples,), 0, 0, 1)
    (batch,) = training_batches(train, indices, order, problem.draw)
    return to_device(batch, device, precision.weights)


def loss_of(model: Callable[[Any], Any], task: Task, precision: Precision, batch: Batch) -> Tensor:
    """Return the loss of a batch, a scalar, as an update computes it."""
    prepared = task.prepare(batch)
    with precision.autocast():
        predictions = model(prepared)
    return task.loss(predictions, prepared)


def updates_that_fit(micro: int) -> AbstractContextManager[None]:
    """Raise RequestError, which suggests a setting, if an update of `micro` samples runs out of memory in the block."""
    otherwise = "trainer.recompute=true      (or fewer points: dataset.points_per_update)"
    return smaller_when_full("an update", "trainer.max_batch_size", micro, otherwise)


def still_to_come(model: nn.Module, group: Group) -> int:
    """Return the bytes of GPU memory that updates take in addition to a forward and backward pass.

    Each trained weight counts as two numbers in the optimiser's state (as for Adam; other optimisers keep fewer) and,
    with several ranks, as one number in DDP's buckets. NCCL's own buffers are added.
    """
    if group.device.type != "cuda":
        return 0
    trained = sum(weight.numel() * weight.element_size() for weight in model.parameters() if weight.requires_grad)
    return 2 * trained + (trained + NCCL_BYTES if group.world_size > 1 else 0)


def largest_micro_batch(problem: Problem, precision: Precision, group: Group, most: int) -> int:
    """Return the maximum number of samples whose forward and backward pass fit on each device. Every rank calls this.

    The memory that `still_to_come` returns is kept free. Weights, running statistics and random numbers do not change.
    RequestError: a single sample does not fit.
    """

    def fits(size: int) -> bool:
        fitted, kept = True, None
        try:
            kept = torch.empty(still_to_come(problem.model, group), dtype=torch.uint8, device=group.device)
            batch = rehearsal_batch(problem, size, group.device, precision)
            loss_of(problem.model, problem.task, precision, batch).backward()
        except (MemoryError, RuntimeError) as error:
            if size == 1 or not is_full(error):
                raise
            fitted = False
        finally:
            del kept
            problem.model.zero_grad()
            if group.device.type == "cuda":
                torch.cuda.empty_cache()
        # The smallest device decides, so that every rank tries the same sizes.
        return bool(group.sum(torch.tensor(int(not fitted), device=group.device)).item() == 0)

    with restored_afterwards(problem.model, group.device), updates_that_fit(1):
        return most if fits(most) else bisect_left(range(1, most), True, key=lambda size: not fits(size))
