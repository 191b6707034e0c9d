"""The model: from the temperatures at the start to those later."""

import torch
from torch import Tensor, nn

from my_project.data import POSITIONS


class Perceptron(nn.Module):
    """Predicts how much each position cools. A batch in, predictions out, both dictionaries of tensors."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(len(POSITIONS) + 1, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, len(POSITIONS)),
        )

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return `later` (B, 65), in K, for `initial` (B, 65), in K, and `diffusivity` (B, 1), in m²/s."""
        scaled = 2 * torch.log10(batch["diffusivity"]) + 9  # From -1 to 1.
        change = self.layers(torch.cat([batch["initial"], scaled], dim=1))
        return {"later": batch["initial"] + change}
