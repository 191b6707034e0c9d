"""A model's precision and evaluation mode, and the error for full memory."""

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from noether.common.errors import RequestError, one_line
from noether.common.numbers import counted
from noether.config.trainer import TrainerConfig

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """A run's precision: float32 or float64 weights and arithmetic, or float32 weights with autocast (bf16, fp16)."""

    name: str
    device_type: str

    @property
    def weights(self) -> torch.dtype:
        """The type of weights and data."""
        return torch.float64 if self.name == "float64" else torch.float32

    @property
    def matmul_type(self) -> torch.dtype:
        """The type of the model's matrix products."""
        return AUTOCAST.get(self.name, self.weights)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which the model's forward pass runs."""
        if self.name not in AUTOCAST:
            return nullcontext()
        return torch.autocast(self.device_type, AUTOCAST[self.name])

    def scaler(self) -> torch.amp.GradScaler:
        """Return the loss scaler. The small gradients of fp16 need it; in other precisions it changes nothing."""
        return torch.amp.GradScaler(self.device_type, enabled=self.name == "fp16")


def choose_precision(trainer: TrainerConfig, device: torch.device) -> Precision:
    """Return the precision of a run on a device, and set how this process multiplies float32 matrices on GPUs.

    Only torch's attributes for CUDA are set: `set_float32_matmul_precision` would change sums on CPUs too, and once it
    was set, torch 2.13 refuses to read these attributes.
    """
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = trainer.tf32
        torch.backends.cudnn.allow_tf32 = trainer.tf32
    return Precision(trainer.precision, device.type)


@contextmanager
def restored_afterwards(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore the model's buffers and all random number generators after the block. Gradients are not touched."""
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


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and restore its previous mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


FULL = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""Texts of torch 2.13's plain RuntimeErrors for full memory, from the CPU's allocator and from libraries."""


def is_full(error: BaseException) -> bool:
    """Return whether an error means that a device or this machine is out of memory."""
    known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return known or (isinstance(error, RuntimeError) and any(text in str(error) for text in FULL))


@contextmanager
def smaller_when_full(what: str, setting: str, size: int, otherwise: str) -> Iterator[None]:
    """Turn an out-of-memory error in the block into a RequestError that suggests half the size.

    `what` needs the memory. `setting`, whose value is `size`, limits it. `otherwise` is the fix if `size` is 1.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_full(error):
            raise
        raise RequestError("out-of-memory", f"{what} does not fit into memory",
                           seen=f"{one_line(error)}; {counted(size, 'sample')} at once", expected="fewer samples",
                           fix=f"{setting}={size // 2}" if size > 1 else otherwise) from error  # fmt: skip
