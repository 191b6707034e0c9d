"""UPT: `encode` makes a latent of supernodes from the geometry, and `decode` predicts the fields at any point from it.

The source is the Universal Physics Transformer, Alkin et al. 2024 (arXiv 2402.12365), in the form for ShapeNet-Car.
"""

from torch import nn

from noether.core.data.layout import CAR_FLOW, Layout
from noether.physics.models.layers.blocks import MLP, PerceiverBlock, TransformerBlock
from noether.physics.models.points import Batch, GeometryModel, Latent, Pooling, blocks_of, mean_token


class UPT(GeometryModel):
    """A model that predicts fields at points, and outputs of the case, from the geometry's points.

    With the defaults, the model has 11,015,620 parameters. If the batch lacks a set, the set's MLP gets no gradient.
    dim, heads, layout: as for PointModel with rotary positions; supernodes, radius, max_neighbours: as for Pooling.
    encoder_depth: number of transformer blocks, in which supernodes attend to each other.
    decoder_depth: number of perceiver blocks, in which queries attend to supernodes.
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
        pooling = Pooling(supernodes, radius, max_neighbours)
        super().__init__(layout, dim, heads, pooling, encoder_depth=encoder_depth, decoder_depth=decoder_depth)
        self.encoder = self._blocks(TransformerBlock, encoder_depth)
        self.query_mlp = nn.ModuleDict({points: MLP(dim, dim) for points in layout.outputs})
        fields = sum(layout.width(points) for points in layout.outputs)
        self.decoder = self._blocks(PerceiverBlock, decoder_depth if fields else 0)
        if fields:
            self.norm = nn.LayerNorm(dim)
            self.head = nn.Linear(dim, fields)
        self._initialise()

    def encode(self, batch: Batch) -> Latent:
        """Encode the geometry as the keys and values to which queries attend in each decoder block.

        batch: `geometry_points` (B, Ng, 3), `geometry_mask` (B, Ng) if some points are padding, and the layout's
        parameters; other entries are ignored.
        ValueError: there are fewer geometry points than supernodes, or a parameter is missing.
        """
        condition = self._condition(batch)
        tokens, table, mask = self._encode_geometry(batch, self.encoder, condition)
        read = [block.keys_values(tokens, table, mask) for block in blocks_of(self.decoder)]
        return Latent(read, condition, mean_token(tokens, mask))

    def decode(self, latent: Latent, queries: Batch) -> Batch:
        """Decode the latent: return the fields at the points (B, N, 3) of each set in `queries`."""
        # Queries do not attend to each other, so all sets can pass through the blocks as one sequence.
        tokens, table, sizes = self._sequence(queries, self.query_mlp)
        for block, attended_to in zip(blocks_of(self.decoder), latent.read, strict=True):
            tokens = block.read(tokens, attended_to, table, latent.condition)
        return self._by_shared_layers(tokens, sizes, self.norm, self.head)
