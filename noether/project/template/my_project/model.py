"""The model: predicts the later temperatures from the initial temperatures and the diffusivity."""

import torch
from torch import Tensor, nn

from my_project.data import POSITIONS


class Perceptron(nn.Module):
    """A network that predicts the change of temperature at each position. It maps a dictionary to a dictionary."""

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
        scaled = 2 * torch.log10(batch["diffusivity"]) + 9  # This is between -1 and 1.
        change = self.layers(torch.cat([batch["initial"], scaled], dim=1))
        return {"later": batch["initial"] + change}
