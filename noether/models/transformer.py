"""Transformer: every point a token that attends to all others; the plain model to measure the others against.

Vaswani et al. 2017 (arXiv 1706.03762), pre-norm, with sine-cosine and rotary positions, on the points of
surface and volume as one sequence. There is no geometry branch: the surface points are the shape.
"""

from torch import Tensor, nn

from noether.data.layout import CAR_FLOW, Layout
from noether.models.layers.blocks import MLP, TransformerBlock, initialise_linear
from noether.models.points import (
    AnchoredModel,
    Latent,
    blocks_of,
    in_full_precision,
    mask_of_sequence,
    mean_token,
    split_fields,
)


class Transformer(AnchoredModel):
    """Predict fields at points by attention among all points.

    Where the batch has anchors, points attend to those only: the trained function, at any resolution.

    Args:
        dim: channels of a token.
        heads: attention heads. `dim / heads` must be even and at least 6, for RoPE on three axes.
        depth: transformer blocks.
        layout: the fields, features, parameters and outputs of a case; the published model's where not given.

    At the defaults 5,487,748 parameters.
    """

    def __init__(self, dim: int = 192, heads: int = 3, depth: int = 12, layout: Layout = CAR_FLOW) -> None:
        super().__init__(layout, dim, heads, depth=depth)
        self.point_mlp = nn.ModuleDict({points: MLP(dim, dim) for points in layout.outputs})
        self.blocks = nn.ModuleList(TransformerBlock(dim, heads, conditioned=self.conditioned) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, sum(layout.width(points) for points in layout.outputs))
        self.apply(initialise_linear)

    def attend(self, context: dict[str, Tensor]) -> tuple[Latent, dict[str, Tensor]]:
        """What queries read of each block, and the fields at the points of `context` themselves."""
        tokens, table, sizes = self._sequence(context, self.point_mlp)
        mask, condition, read = mask_of_sequence(context, sizes), self._condition(context), []
        for block in blocks_of(self.blocks):
            tokens, attended_to = block.with_keys_values(tokens, table, mask, condition)
            read.append(attended_to)
        return Latent(read, condition, mean_token(tokens, mask)), self._fields(tokens, sizes)

    def decode(self, latent: Latent, queries: dict[str, Tensor]) -> dict[str, Tensor]:
        """The fields at each set of the layout that `queries` has, (B, N, 3) points each, from the latent."""
        tokens, table, sizes = self._sequence(queries, self.point_mlp)
        for block, attended_to in zip(blocks_of(self.blocks), latent.read, strict=True):
            tokens = block.read(tokens, attended_to, table, latent.condition)
        return self._fields(tokens, sizes)

    def _fields(self, tokens: Tensor, sizes: dict[str, int]) -> dict[str, Tensor]:
        return split_fields(in_full_precision(tokens, self.norm, self.head), sizes, self.layout)
