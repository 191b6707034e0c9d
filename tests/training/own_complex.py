"""A user's own model with one complex weight, and data that only both of its parts explain."""

import torch
from torch import nn

from noether.core.tasks.base import Task


class Turned:
    """y = the real part of (2 + 3i) x, at random complex x given as two real numbers."""

    def __init__(self, split, root, count):
        self.x = torch.randn(count, 2, generator=torch.Generator().manual_seed(len(split)))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        return {"x": x, "y": 2 * x[0] - 3 * x[1]}


class OneWeight(nn.Module):
    """The real part of w x, and a complex buffer that does nothing."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.complex64))
        self.register_buffer("phase", torch.ones(1, dtype=torch.complex64) * (1 + 1j))

    def forward(self, batch):
        x = torch.view_as_complex(batch["x"].contiguous())
        return {"y": (self.w * x * self.phase / self.phase).real}


class Regression(Task):
    """Squared error."""

    def loss(self, predictions, batch):
        return (predictions["y"] - batch["y"]).square().mean()

    def metrics(self, predictions, batch):
        return {"loss": (predictions["y"] - batch["y"]).square()}
