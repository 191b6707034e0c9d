"""Transformer: every point a token that attends to all others; the plain model to measure the others against.

Vaswani et al. 2017 (arXiv 1706.03762), pre-norm, with sine-cosine and rotary positions, on the points of
surface and volume as one sequence. There is no geometry branch: the surface points are the shape.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from noether.models.layers.attention import KeysValues
from noether.models.layers.blocks import MLP, TransformerBlock, initialise_linear
from noether.models.layers.positions import rotary_table
from noether.models.options import check_options
from noether.models.points import (
    OUTPUTS,
    AnchoredModel,
    in_full_precision,
    joined_masks,
    present,
    split_fields,
)


class Transformer(AnchoredModel):
    """Predict surface pressure and volume velocity by attention among all points.

    Where the batch has anchors, points attend to those only: the trained function, at any resolution.

    Args:
        dim: channels of a token.
        heads: attention heads. `dim / heads` must be even and at least 6, for RoPE on three axes.
        depth: transformer blocks.

    Raises:
        RequestError: options that do not fit each other, with the line to change.

    At the defaults 5,487,748 parameters.
    """

    def __init__(self, dim: int = 192, heads: int = 3, depth: int = 12) -> None:
        super().__init__()
        check_options(dim, heads, depth=depth)
        self.dim, self.head_dim = dim, dim // heads
        self.point_mlp = nn.ModuleDict({points: MLP(dim, dim) for points in OUTPUTS})
        self.blocks = nn.ModuleList(TransformerBlock(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 4)
        self.apply(initialise_linear)

    def attend(self, context: dict[str, Tensor]) -> tuple[list[KeysValues], dict[str, Tensor]]:
        """What queries read of each block, and the fields at `surface_points` and `volume_points` themselves."""
        tokens, table, sizes = self._tokens(context)
        mask, latent = joined_masks(context, list(sizes)), []
        for block in self._blocks():
            tokens, attended_to = block.with_keys_values(tokens, table, mask)
            latent.append(attended_to)
        return latent, self._fields(tokens, sizes)

    def decode(self, latent: list[KeysValues], queries: dict[str, Tensor]) -> dict[str, Tensor]:
        """The fields at `surface_points` (B, Ns, 3), `volume_points` (B, Nv, 3) or both, from the latent."""
        tokens, table, sizes = self._tokens(queries)
        for block, attended_to in zip(self._blocks(), latent, strict=True):
            tokens = block.read(tokens, attended_to, table)
        return self._fields(tokens, sizes)

    def _blocks(self) -> Iterable[TransformerBlock]:
        return cast(Iterable[TransformerBlock], self.blocks)

    def _tokens(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, int]]:
        """The points of both sets as one sequence: tokens, rotary table, and how many are of which set."""
        points = {name: self._in_position_precision(batch[name]) for name in present(batch)}
        embedded = [self.point_mlp[name](self._embed(x, self.dim)) for name, x in points.items()]
        tokens = self._in_parameter_precision(torch.cat(embedded, dim=1))
        table = rotary_table(torch.cat(list(points.values()), dim=1), self.head_dim)
        return tokens, table, {name: x.shape[1] for name, x in points.items()}

    def _fields(self, tokens: Tensor, sizes: dict[str, int]) -> dict[str, Tensor]:
        return split_fields(in_full_precision(tokens, self.norm, self.head), sizes)
