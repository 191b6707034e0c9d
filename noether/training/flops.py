"""Count the operations of an update, and compare the run's rate with the device's rate of matrix products."""

import time
from typing import Any

import torch

from noether.core.precision import restored_afterwards
from noether.launch.process_group.torch_internals import LightFlopCounter
from noether.training.build import Run
from noether.training.rehearsal import loss_of, rehearsal_batch

CEILING_S = 0.05
"""How long matrix products are timed, in seconds."""


def measure_arithmetic(run: Run, time_use: dict[str, Any]) -> dict[str, float] | None:
    """Count the operations of a sample's forward and backward pass, and time matrix products on this device.

    The run is not changed. `time_use`: how each rank's time in the loop was used.
    flops_per_sample: operations of both passes as torch counts them (matrix products, convolutions and attention).
    matmul_flops_per_second: the rate of square products in the precision of the run, on this rank's device.
    share: the fraction of that rate that the forward and backward passes reached.
    Return None if torch cannot count the model's operations, or if the task makes its own updates.
    """
    if run.problem.task.updates_itself:
        return None
    device = run.group.device
    batch = rehearsal_batch(run.problem, run.batch.micro, device, run.precision)
    try:
        with restored_afterwards(run.state.model, device), LightFlopCounter() as counter:
            loss_of(run.state.model, run.problem.task, run.precision, batch).backward()
    except RuntimeError:
        return None  # Some operations cannot be counted; a run must not fail for one number.
    finally:
        run.state.model.zero_grad()
    per_sample = counter.flops / run.batch.micro
    ceiling = matmul_ceiling(device, run.precision.matmul_type)
    ranks = time_use["ranks"]
    seconds = ranks[0]["forward"] + ranks[0]["backward"]
    made = per_sample * run.batch.effective / len(ranks) * time_use["updates"]
    return {
        "flops_per_sample": float(per_sample),
        "matmul_flops_per_second": ceiling,
        "share": made / seconds / ceiling if seconds else 0.0,
    }


def matmul_ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """Return the best rate of square matrix products measured in CEILING_S on a device, in operations per second."""
    size = 4096 if device.type == "cuda" else 512
    one = torch.randn(size, size, device=device).to(dtype)
    best, until = 0.0, time.perf_counter() + CEILING_S
    while time.perf_counter() < until or not best:
        started = time.perf_counter()
        torch.mm(one, one)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - started))
    return best
