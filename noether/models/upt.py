"""UPT: geometry to a latent of supernodes, and the fields at any point from that latent.

Universal Physics Transformer, Alkin et al. 2024 (arXiv 2402.12365), in its ShapeNet-Car form. Read top to bottom:
`encode` makes the latent, `decode` asks it.
"""

from typing import cast

import torch
from torch import Tensor, nn

from noether.data.layout import CAR_FLOW, Layout
from noether.models.layers.blocks import MLP, PerceiverBlock, TransformerBlock, initialise_linear
from noether.models.layers.positions import rotary_table
from noether.models.layers.supernodes import SupernodePooling
from noether.models.options import check_options
from noether.models.points import (
    Latent,
    PointModel,
    count_supernodes,
    in_full_precision,
    mean_token,
    present,
    split_fields,
)


class UPT(PointModel):
    """Predict fields at points, and outputs of the case, from the geometry's points.

    Positions arrive scaled isotropically to about 0..1000; `radius` is in that unit.

    Args:
        dim: channels of a token.
        heads: attention heads. `dim / heads` must be even and at least 6, for RoPE on three axes.
        encoder_depth: transformer blocks among the supernodes.
        decoder_depth: perceiver blocks from queries to supernodes.
        supernodes: how many geometry points become supernodes: the *first* so many, which is a random
            choice because data sets give geometry points in random order. None: all of them.
        radius: a supernode gathers the geometry points within it.
        max_neighbours: and only the nearest so many.
        layout: the fields, features, parameters and outputs of a case; the published model's where not given.

    Raises:
        RequestError: options that do not fit each other, with the line to change.

    At the defaults 11,015,620 parameters. Every one gets a gradient when both query sets are asked for;
    with one absent, the other's query MLP gets none.
    """

    def __init__(
        self,
        dim: int = 192,
        heads: int = 3,
        encoder_depth: int = 12,
        decoder_depth: int = 12,
        supernodes: int | None = None,
        radius: float = 9.0,
        *,
        max_neighbours: int = 32,
        layout: Layout = CAR_FLOW,
    ) -> None:
        super().__init__()
        check_options(
            dim,
            heads,
            radius=radius,
            encoder_depth=encoder_depth,
            decoder_depth=decoder_depth,
            supernodes=supernodes,
            max_neighbours=max_neighbours,
        )
        self.dim, self.head_dim, self.supernodes = dim, dim // heads, supernodes
        self._build_shared(layout, dim)
        more = {"conditioned": self.conditioned}
        self.pooling = SupernodePooling(dim, radius, max_neighbours)
        self.encoder = nn.ModuleList(TransformerBlock(dim, heads, **more) for _ in range(encoder_depth))
        self.query_mlp = nn.ModuleDict({points: MLP(dim, dim) for points in layout.outputs})
        fields = sum(layout.width(points) for points in layout.outputs)
        if fields:
            self.decoder = nn.ModuleList(PerceiverBlock(dim, heads, **more) for _ in range(decoder_depth))
            self.norm = nn.LayerNorm(dim)
            self.head = nn.Linear(dim, fields)
        else:
            self.decoder = nn.ModuleList()
        self.apply(initialise_linear)

    @classmethod
    def needs(cls, layout: Layout) -> tuple[str, ...]:
        """The points that show the shape: of the geometry itself, else of the surface."""
        return ("geometry_points",)

    def encode(self, batch: dict[str, Tensor]) -> Latent:
        """The geometry as what each decoder block attends to.

        Args:
            batch: `geometry_points` (B, Ng, 3), and `geometry_mask` (B, Ng) where some are padding; the layout's
                parameters. Nothing else of it is read.

        Raises:
            ValueError: fewer geometry points than supernodes, or no parameters.
        """
        points, mask = self._in_position_precision(batch["geometry_points"]), batch.get("geometry_mask")
        supernodes = count_supernodes(self.supernodes, points.shape[1])
        tokens = self.pooling(points, self._embed(points, self.dim), supernodes, mask)
        tokens = self._in_parameter_precision(tokens)
        table, condition = rotary_table(points[:, :supernodes], self.head_dim), self._condition(batch)
        mask = None if mask is None else mask[:, :supernodes]
        for block in self.encoder:
            tokens = block(tokens, table, mask, condition)
        read = [cast(PerceiverBlock, block).keys_values(tokens, table, mask) for block in self.decoder]
        return Latent(read, condition, mean_token(tokens, mask))

    def decode(self, latent: Latent, queries: dict[str, Tensor]) -> dict[str, Tensor]:
        """The fields at each set of the layout that `queries` has, (B, N, 3) points each, from the latent."""
        points = {name: self._in_position_precision(queries[name]) for name in present(queries, self.layout)}
        embedded = [
            self.query_mlp[name](self._with_features(queries, name, self._embed(x, self.dim)))
            for name, x in points.items()
        ]
        # Queries do not see each other, so all sets go through the blocks as one sequence.
        tokens = self._in_parameter_precision(torch.cat(embedded, dim=1))
        table = rotary_table(torch.cat(list(points.values()), dim=1), self.head_dim)
        for block, attended_to in zip(self.decoder, latent.read, strict=True):
            tokens = block(tokens, attended_to, table, latent.condition)
        fields = in_full_precision(tokens, self.norm, self.head)
        return split_fields(fields, {name: x.shape[1] for name, x in points.items()}, self.layout)
