"""UPT: geometry to a latent of supernodes, and the flow at any point from that latent.

Universal Physics Transformer, Alkin et al. 2024 (arXiv 2402.12365), in its ShapeNet-Car form with surface
pressure and volume velocity. Read top to bottom: `encode` makes the latent, `decode` asks it.
"""

from typing import cast

import torch
from torch import Tensor, nn

from noether.errors import RequestError
from noether.models.layers.attention import KeysValues
from noether.models.layers.blocks import MLP, PerceiverBlock, TransformerBlock, initialise_linear
from noether.models.layers.positions import rotary_table, sincos_embedding
from noether.models.layers.supernodes import SupernodePooling

AXES = 3
OUTPUTS = {
    "surface_points": ("surface_pressure", slice(0, 1)),
    "volume_points": ("volume_velocity", slice(1, 4)),
}
"""For each set of query points: the prediction's name and its channels of the shared head."""


class UPT(nn.Module):
    """Predict surface pressure and volume velocity from the geometry's points.

    Positions arrive scaled isotropically to about 0..1000; `radius` is in that unit. Predictions are in
    whatever unit the targets are given in, normally standardised.

    Args:
        dim: channels of a token.
        heads: attention heads. `dim / heads` must be even and at least 6, for RoPE on three axes.
        encoder_depth: transformer blocks among the supernodes.
        decoder_depth: perceiver blocks from queries to supernodes.
        supernodes: how many geometry points become supernodes: the *first* so many, which is a random
            choice because data sets give geometry points in random order. None: all of them.
        radius: a supernode gathers the geometry points within it.
        max_neighbours: and only the nearest so many.

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
        max_neighbours: int = 32,
    ) -> None:
        super().__init__()
        _check_options(dim, heads, encoder_depth, decoder_depth, supernodes, radius, max_neighbours)
        self.dim, self.head_dim, self.supernodes = dim, dim // heads, supernodes
        self.pooling = SupernodePooling(dim, radius, max_neighbours)
        self.encoder = nn.ModuleList(TransformerBlock(dim, heads) for _ in range(encoder_depth))
        self.query_mlp = nn.ModuleDict({points: MLP(dim, dim) for points in OUTPUTS})
        self.decoder = nn.ModuleList(PerceiverBlock(dim, heads) for _ in range(decoder_depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 4)
        self.apply(initialise_linear)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Predict the fields at the query points.

        Args:
            batch: `geometry_points` (B, Ng, 3), and `surface_points` (B, Ns, 3) or `volume_points`
                (B, Nv, 3) or both. Other entries are ignored.

        Returns:
            `surface_pressure` (B, Ns, 1) and `volume_velocity` (B, Nv, 3), each where its points are given.

        Raises:
            ValueError: no query points, or fewer geometry points than supernodes.
        """
        return self.decode(self.encode(batch["geometry_points"]), batch)

    def forward_in_chunks(self, batch: dict[str, Tensor], chunk_size: int) -> dict[str, Tensor]:
        """`forward` with at most `chunk_size` queries at a time, to bound memory; the result is the same."""
        latent = self.encode(batch["geometry_points"])
        predictions = {}
        for points in _present(batch):
            parts = [self.decode(latent, {points: part}) for part in batch[points].split(chunk_size, dim=1)]
            name, _ = OUTPUTS[points]
            predictions[name] = torch.cat([part[name] for part in parts], dim=1)
        return predictions

    def encode(self, geometry_points: Tensor) -> list[KeysValues]:
        """The geometry (B, Ng, 3) as what each decoder block attends to; it does not depend on queries."""
        points = self._in_position_precision(geometry_points)
        available = points.shape[1]
        supernodes = available if self.supernodes is None else self.supernodes
        if available < supernodes:
            raise ValueError(
                f"{supernodes} supernodes cannot be taken from {available} geometry points: "
                f"set model.supernodes to {available} at most, or dataset.geometry_points to {supernodes} or more"
            )
        tokens = self._in_parameter_precision(self.pooling(points, self._embed(points), supernodes))
        table = rotary_table(points[:, :supernodes], self.head_dim)
        for block in self.encoder:
            tokens = block(tokens, table)
        return [cast(PerceiverBlock, block).keys_values(tokens, table) for block in self.decoder]

    def decode(self, latent: list[KeysValues], queries: dict[str, Tensor]) -> dict[str, Tensor]:
        """The fields at the query points of `queries`, from what `encode` returned."""
        names = _present(queries)
        points = [self._in_position_precision(queries[name]) for name in names]
        embedded = [self.query_mlp[name](self._embed(x)) for name, x in zip(names, points, strict=True)]
        # Queries do not see each other, so surface and volume go through the blocks as one sequence.
        tokens = self._in_parameter_precision(torch.cat(embedded, dim=1))
        table = rotary_table(torch.cat(points, dim=1), self.head_dim)
        for block, attended_to in zip(self.decoder, latent, strict=True):
            tokens = block(tokens, attended_to, table)
        # Outside autocast: a bfloat16 result would put a rounding error of 0.2 % on every prediction.
        with torch.autocast(tokens.device.type, enabled=False):
            fields = self.head(self.norm(tokens))
        predictions = {}
        for name, part in zip(names, fields.split([x.shape[1] for x in points], dim=1), strict=True):
            output, channels = OUTPUTS[name]
            predictions[output] = part[..., channels]
        return predictions

    def _embed(self, points: Tensor) -> Tensor:
        return sincos_embedding(points, self.dim).to(self.head.weight.dtype)

    def _in_position_precision(self, points: Tensor) -> Tensor:
        # At least float32, which positions of 0..1000 need; float64 in a float64 model, so that all of it is.
        return points.to(torch.promote_types(self.head.weight.dtype, torch.float32))

    def _in_parameter_precision(self, tokens: Tensor) -> Tensor:
        # Under autocast a Linear returns bfloat16; summed up over 24 blocks, its 8 bits would lose the
        # small updates. The residual stream stays in the parameters' precision, the matrix products do not.
        return tokens.to(self.head.weight.dtype)


def _present(batch: dict[str, Tensor]) -> list[str]:
    names = [points for points in OUTPUTS if points in batch]
    if not names:
        raise ValueError(f"nothing to predict: expected any of {list(OUTPUTS)}, got {sorted(batch)}")
    return names


def _check_options(
    dim: int,
    heads: int,
    encoder_depth: int,
    decoder_depth: int,
    supernodes: int | None,
    radius: float,
    max_neighbours: int,
) -> None:
    at_least_one = {
        "heads": heads,
        "encoder_depth": encoder_depth,
        "decoder_depth": decoder_depth,
        "supernodes": 1 if supernodes is None else supernodes,
        "max_neighbours": max_neighbours,
    }
    for name, value in at_least_one.items():
        if value < 1:
            raise RequestError(
                f"model.{name} is below 1",
                seen=f"model.{name}={value}",
                expected="a whole number of at least 1",
                fix=f"model.{name}=1",
            )
    if radius <= 0:
        raise RequestError(
            "model.radius is not positive",
            seen=f"model.radius={radius}",
            expected="a length in the unit of the scaled positions, which span about 0..1000",
            fix="model.radius=9.0",
        )
    step, smallest = 2 * heads, 2 * AXES * heads
    if dim % step or dim < smallest:
        nearest = max(smallest, round(dim / step) * step)
        raise RequestError(
            "model.dim does not fit model.heads",
            seen=f"model.dim={dim}, model.heads={heads}",
            expected=f"a multiple of {step} (2 × heads: RoPE rotates pairs of channels), at least {smallest}",
            fix=f"model.dim={nearest}",
        )
