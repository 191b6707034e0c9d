"""How many samples fit on a device at once: found by trying."""

from collections.abc import Callable

import torch

from noether.data.loader import to_device, training_batches
from noether.data.order import GlobalOrder, RankOrder
from noether.distributed.group import Group
from noether.learning.precision import Precision
from noether.learning.setup import Problem
from noether.training.rehearsal import without_trace


def largest_that_fits(fits: Callable[[int], bool], most: int) -> int:
    """Returns the largest size up to `most` for which `fits` holds, by bisection; 0 where not even 1 fits.

    `fits` must hold for every size below one for which it holds.
    """
    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_micro_batch(problem: Problem, precision: Precision, group: Group, most: int) -> int:
    """Returns the most samples whose forward and backward pass fit on every rank's device. Every rank calls it.

    Weights, running statistics and random numbers stay as they are.

    Raises:
        torch.OutOfMemoryError: where a single sample does not fit.
    """

    def fits(size: int) -> bool:
        order = RankOrder(GlobalOrder(len(problem.train_indices), size, 0), (size,), 0, 0, 1)
        (batch,) = training_batches(problem.splits.train, problem.train_indices, order, problem.draw)
        try:
            _forward_backward(problem, to_device(batch, group.device, precision.weights), precision)
            fitted = 1
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if size == 1 or not _is_out_of_memory(error):
                raise
            fitted = 0
        finally:
            problem.model.zero_grad()
            if group.device.type == "cuda":
                torch.cuda.empty_cache()
        # The smallest device decides, so that every rank tries the same sizes.
        return bool(group.sum(torch.tensor(1 - fitted, device=group.device)).item() == 0)

    with without_trace(problem.model, group.device):
        return largest_that_fits(fits, most)


def _forward_backward(problem: Problem, batch: dict[str, torch.Tensor], precision: Precision) -> None:
    prepared = problem.task.prepare(batch)
    with precision.autocast():
        predictions = problem.model(prepared)
    problem.task.loss(predictions, prepared).backward()


def _is_out_of_memory(error: Exception) -> bool:
    # The CPU's allocator raises a plain RuntimeError.
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
