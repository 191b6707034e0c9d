"""A user's own data on a grid: temperature after a while of diffusion, which one complex weight per wave explains."""

import torch

from noether.core.tasks.base import Task

SIZE = 16


class Diffusion:
    """Periodic temperatures (1, 16, 16) before and after: each wave k is damped by exp(-k²/20)."""

    def __init__(self, split, root, count):
        self.before = torch.randn(count, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(len(split)))
        waves = torch.fft.fftfreq(SIZE, 1 / SIZE)
        damping = torch.exp(-(waves[:, None] ** 2 + waves[: SIZE // 2 + 1] ** 2) / 20)
        self.after = torch.fft.irfft2(torch.fft.rfft2(self.before) * damping, s=(SIZE, SIZE))

    def __len__(self):
        return len(self.before)

    def __getitem__(self, index):
        return {"before": self.before[index], "after": self.after[index]}


class Regression(Task):
    """Squared error."""

    def loss(self, predictions, batch):
        return (predictions["after"] - batch["after"]).square().mean()

    def metrics(self, predictions, batch):
        return {"loss": (predictions["after"] - batch["after"]).square().mean((1, 2, 3))}
