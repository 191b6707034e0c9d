"""How a model computes: its precision, and evaluation mode."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from noether.config.trainer import TrainerConfig

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """float32 and float64 hold weights and arithmetic; bf16 and fp16 are autocast over float32 weights."""

    name: str
    device_type: str

    @property
    def weights(self) -> torch.dtype:
        """Type of weights and data."""
        return torch.float64 if self.name == "float64" else torch.float32

    @property
    def matmul_type(self) -> torch.dtype:
        """Type of the model's matrix products."""
        return AUTOCAST.get(self.name, self.weights)

    def autocast(self) -> AbstractContextManager[object]:
        """Returns the context in which the model's forward pass runs."""
        if self.name not in AUTOCAST:
            return nullcontext()
        return torch.autocast(self.device_type, AUTOCAST[self.name])

    def scaler(self) -> torch.amp.GradScaler:
        """Returns the loss scaler: fp16's small gradients need one, the others pass through it unchanged."""
        return torch.amp.GradScaler(self.device_type, enabled=self.name == "fp16")


def choose_precision(trainer: TrainerConfig, device: torch.device) -> Precision:
    """Returns the precision of a run on a device, and sets how this process multiplies float32 matrices on GPUs.

    The attribute is torch's own of CUDA alone: `set_float32_matmul_precision` would change sums on CPUs too, and torch
    refuses to read the one after the other was set (2.13).
    """
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = trainer.tf32
        torch.backends.cudnn.allow_tf32 = trainer.tf32
    return Precision(trainer.precision, device.type)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode, and afterwards back into the mode it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
