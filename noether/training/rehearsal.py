"""Forward and backward passes that leave no trace: running statistics and random numbers are put back after them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


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
