"""A small convolutional network for images: two convolutions, pooling, two linear layers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ConvNet(nn.Module):
    """Classifier of images with the architecture of LeNet-5 (LeCun et al., 1998).

    Two 3 × 3 convolutions, 2 × 2 max pooling, a hidden linear layer, with dropout before each linear layer. It has
    1,199,882 parameters by default. `ConvNetConfig` describes the arguments.
    """

    def __init__(
        self, classes: int = 10, channels: int = 1, side: int = 28, width: int = 32, hidden: int = 128,
        dropout: float = 0.25,
    ) -> None:  # fmt: skip
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3)
        self.second = nn.Conv2d(width, 2 * width, 3)
        self.hidden = nn.Linear(2 * width * ((side - 4) // 2) ** 2, hidden)
        self.head = nn.Linear(hidden, classes)
        self.dropout = dropout

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return {"logits": (B, classes)} for `image` (B, channels, side, side)."""
        x = F.relu(self.first(batch["image"]))
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        x = F.dropout(torch.flatten(x, 1), self.dropout, self.training)
        x = F.dropout(F.relu(self.hidden(x)), 2 * self.dropout, self.training)
        return {"logits": self.head(x)}
