"""How many samples fit on a device at once: found by trying."""

from bisect import bisect_left

import torch

from noether.distributed.group import Group
from noether.learning.precision import Precision
from noether.learning.setup import Problem
from noether.training.rehearsal import loss_of, rehearsal_batch, without_trace


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
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if size == 1 or not _is_out_of_memory(error):
                raise
            fitted = False
        finally:
            problem.model.zero_grad()
            if group.device.type == "cuda":
                torch.cuda.empty_cache()
        # The smallest device decides, so that every rank tries the same sizes.
        return bool(group.sum(torch.tensor(int(not fitted), device=group.device)).item() == 0)

    with without_trace(problem.model, group.device):
        return most if fits(most) else bisect_left(range(1, most), True, key=lambda size: not fits(size))


def _is_out_of_memory(error: Exception) -> bool:
    # The CPU's allocator raises a plain RuntimeError.
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
