"""A user's model with one complex weight, data that need the weight's real and imaginary parts, and data on a grid."""

import torch
from torch import nn

from noether.core.tasks.base import Task

SIZE = 16


class Turned:
    """Samples of y, the real part of (2 + 3i) x, for random complex x, which two real numbers represent."""

    def __init__(self, split, root, count):
        self.x = torch.randn(count, 2, generator=torch.Generator().manual_seed(len(split)))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        return {"x": x, "y": (2 * x[0] - 3 * x[1])[None]}


class Diffusion:
    """Periodic temperatures (1, 16, 16) before and after diffusion: each wave k is damped by exp(-k²/20)."""

    def __init__(self, split, root, count):
        self.x = torch.randn(count, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(len(split)))
        waves = torch.fft.fftfreq(SIZE, 1 / SIZE)
        damping = torch.exp(-(waves[:, None] ** 2 + waves[: SIZE // 2 + 1] ** 2) / 20)
        self.y = torch.fft.irfft2(torch.fft.rfft2(self.x) * damping, s=(SIZE, SIZE))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.y[index]}


class OneWeight(nn.Module):
    """Predicts the real part of w x, with one complex weight w; has a complex buffer without effect."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.complex64))
        self.register_buffer("phase", torch.ones(1, dtype=torch.complex64) * (1 + 1j))

    def forward(self, batch):
        x = torch.view_as_complex(batch["x"].contiguous())
        return {"y": (self.w * x * self.phase / self.phase).real[:, None]}


class Regression(Task):
    def loss(self, predictions, batch):
        return (predictions["y"] - batch["y"]).square().mean()

    def metrics(self, predictions, batch):
        return {"loss": (predictions["y"] - batch["y"]).square().flatten(1).mean(1)}
