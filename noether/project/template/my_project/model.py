"""The model: predicts the later temperatures from the initial ones."""

import torch
from torch import Tensor, nn

from my_project.data import POSITIONS


class Perceptron(nn.Module):
    """A network for the temperature change at each position. Batch and predictions are dictionaries of tensors."""

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
        scaled = 2 * torch.log10(batch["diffusivity"]) + 9  # Now from -1 to 1.
        change = self.layers(torch.cat([batch["initial"], scaled], dim=1))
        return {"later": batch["initial"] + change}
