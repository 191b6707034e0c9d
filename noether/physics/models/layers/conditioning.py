"""Conditions a network on a case's parameters: one embedding, and from it a shift and a scale for every norm."""

import torch
from torch import Tensor, nn

Modulations = tuple[tuple[Tensor, Tensor], ...]
"""Shift and scale, each (batch, 1, dim), for each norm of a block."""


class ParameterEmbedding(nn.Module):
    """Embeds the standardised parameters of a case, {key in the batch: components}: Linear, GELU, Linear."""

    def __init__(self, parameters: dict[str, int], dim: int) -> None:
        super().__init__()
        self.keys = tuple(parameters)
        self.expand = nn.Linear(sum(parameters.values()), dim)
        self.activation = nn.GELU()
        self.contract = nn.Linear(dim, dim)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The embedding (batch, 1, dim) of parameters (batch,) or (batch, components). ValueError: one is absent."""
        if absent := [key for key in self.keys if key not in batch]:
            raise ValueError(f"the model reads the parameters {', '.join(self.keys)}: no {', '.join(absent)}")
        values = torch.cat([batch[key].flatten(1) if batch[key].ndim > 1 else batch[key][:, None]
                            for key in self.keys], dim=1)  # fmt: skip
        out: Tensor = self.contract(self.activation(self.expand(values.to(self.expand.weight.dtype)))).unsqueeze(1)
        return out


class Modulation(nn.Linear):
    """Turns a case's embedding into a shift and a scale for each of a block's norms; it begins with none.

    Adaptive layer norm of DiT, Peebles and Xie 2022 (arXiv 2212.09748), without its gates.
    """

    def __init__(self, dim: int, norms: int) -> None:
        super().__init__(dim, 2 * norms * dim)
        self.norms = norms

    def forward(self, condition: Tensor) -> Modulations:  # type: ignore[override]
        """(batch, 1, dim) to shift and scale for each norm."""
        parts = super().forward(condition).chunk(2 * self.norms, dim=-1)
        return tuple(zip(parts[::2], parts[1::2], strict=True))


def modulated(norm: nn.Module, x: Tensor, modulations: Modulations | None, number: int = 0) -> Tensor:
    """LayerNorm(x), shifted and scaled by the block's norm of that number where the block is conditioned."""
    normed: Tensor = norm(x)
    if modulations is None:
        return normed
    shift, scale = modulations[number]
    return normed * (1 + scale) + shift
