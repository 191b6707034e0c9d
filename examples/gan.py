"""A generative adversarial network, whose task makes its own updates, with two optimisers."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from noether.core.tasks.base import Task


class Ring:
    """The data set: `point` (2,), on the unit circle plus noise of 0.05; `noise` (2,), the generator's test input."""

    def __init__(self, split: str, root: object, points: int = 2000) -> None:
        random = torch.Generator().manual_seed(len(split))
        angle, blur, self.noise = (torch.randn(points, 2, generator=random) for _ in range(3))
        self.points = angle / angle.norm(dim=1, keepdim=True) + 0.05 * blur

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"point": self.points[index], "noise": self.noise[index]}


def perceptron(outputs: int, width: int) -> nn.Module:
    """Return a network with two inputs and two hidden layers."""
    layers = (nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs))
    return nn.Sequential(*layers)


class Gan(nn.Module):
    """The model: a generator and a critic. `forward` is called only for evaluation, and only generates."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.generator, self.critic = perceptron(2, width), perceptron(1, width)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"point": self.generator(batch["noise"])}


class Duel(Task):
    """The task: an update makes a step of the critic, then one of the generator (Goodfellow 2014, non-saturating)."""

    def update(self, batch: dict[str, Tensor], model: Gan, optimizers) -> dict[str, Tensor]:
        fake = model.generator(torch.randn_like(batch["noise"]))
        critic = softplus(-model.critic(batch["point"])).mean() + softplus(model.critic(fake.detach())).mean()
        optimizers["critic"].step(critic)
        generator = softplus(-model.critic(fake)).mean()
        optimizers["generator"].step(generator, rate=0.5)
        return {"critic": critic, "generator": generator}

    def metrics(self, predictions: dict[str, Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"loss": (predictions["point"].norm(dim=1) - 1).abs()}
