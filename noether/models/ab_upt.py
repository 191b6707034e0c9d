"""AB-UPT: anchors of surface and volume exchange what they know, and any number of queries read them.

Anchored-Branched Universal Physics Transformer, Alkin et al. 2025 (arXiv 2502.09692). Read top to bottom:
`attend` takes the anchors through geometry, physics and their own branch, `decode` takes queries along.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from noether.data.padding import mask_of
from noether.models.layers.attention import KeysValues
from noether.models.layers.blocks import MLP, PerceiverBlock, TransformerBlock, initialise_linear
from noether.models.layers.positions import rotary_table
from noether.models.layers.supernodes import SupernodePooling
from noether.models.options import check_options
from noether.models.points import (
    OUTPUTS,
    AnchoredModel,
    count_supernodes,
    in_full_precision,
    present,
)

OTHER = dict(zip(OUTPUTS, reversed(OUTPUTS), strict=True))
"""For each set of points the one that it reads in a cross block."""
WIDTHS = {"surface_points": 1, "volume_points": 3}
"""Channels of each set's own head: pressure, and velocity."""

BySet = dict[str, KeysValues]


@dataclass(frozen=True)
class Latent:
    """What queries read: the geometry, then block by block the keys and values of anchors, by the reading set."""

    geometry: KeysValues
    physics: list[BySet]
    branch: dict[str, list[KeysValues]]


class ABUPT(AnchoredModel):
    """Predict surface pressure and volume velocity from geometry and anchors.

    Keys and values come from anchors alone and queries are never attended to, so each query's prediction is
    independent of which others are asked. A query at an anchor's place is predicted as the anchor is.
    Without `anchor_…` entries in the batch all points are anchors.

    Args:
        dim: channels of a token.
        heads: attention heads. `dim / heads` must be even and at least 6, for RoPE on three axes.
        geometry_depth: transformer blocks among the supernodes.
        physics_depth: pairs of blocks whose weights both sets share: among a set's own anchors, then from one
            set to the other. One more among the own follows.
        branch_depth: blocks that each set has for itself.
        supernodes: how many geometry points become supernodes, the *first* so many; None: all of them.
        radius: a supernode gathers the geometry points within it, in the unit of the scaled positions.
        max_neighbours: and only the nearest so many.

    Raises:
        RequestError: options that do not fit each other, with the line to change.

    At the defaults 7,007,236 parameters.
    """

    def __init__(
        self,
        dim: int = 192,
        heads: int = 3,
        geometry_depth: int = 1,
        physics_depth: int = 4,
        branch_depth: int = 2,
        supernodes: int | None = None,
        radius: float = 9.0,
        max_neighbours: int = 32,
    ) -> None:
        super().__init__()
        check_options(
            dim,
            heads,
            radius=radius,
            geometry_depth=geometry_depth,
            physics_depth=physics_depth,
            branch_depth=branch_depth,
            supernodes=supernodes,
            max_neighbours=max_neighbours,
        )
        self.dim, self.head_dim, self.supernodes = dim, dim // heads, supernodes
        self.pooling = SupernodePooling(dim, radius, max_neighbours)
        self.geometry = nn.ModuleList(TransformerBlock(dim, heads) for _ in range(geometry_depth))
        self.point_mlp = nn.ModuleDict({points: MLP(dim, dim) for points in OUTPUTS})
        self.read_geometry = PerceiverBlock(dim, heads)
        self.physics = nn.ModuleList(TransformerBlock(dim, heads) for _ in range(2 * physics_depth + 1))
        self.branch = nn.ModuleDict(
            {points: nn.ModuleList(TransformerBlock(dim, heads) for _ in range(branch_depth)) for points in OUTPUTS}
        )
        self.head = nn.ModuleDict({points: nn.Linear(dim, width) for points, width in WIDTHS.items()})
        self.apply(initialise_linear)

    def attend(self, context: dict[str, Tensor]) -> tuple[Latent, dict[str, Tensor]]:
        """What queries read, and the fields at the anchors themselves.

        Args:
            context: `geometry_points` (B, Ng, 3), and the anchors as `surface_points` (B, As, 3) and
                `volume_points` (B, Av, 3), each with its mask where some are padding.

        Raises:
            ValueError: one of the three is absent, or there are fewer geometry points than supernodes.
        """
        if absent := [name for name in ("geometry_points", *OUTPUTS) if name not in context]:
            raise ValueError(f"AB-UPT attends to geometry, surface and volume: the batch has no {', '.join(absent)}")
        geometry = self._encode_geometry(context["geometry_points"], context.get("geometry_mask"))
        tokens, tables = self._tokens(context, geometry)
        masks = {name: mask_of(context, name) for name in tokens}
        physics: list[BySet] = []
        for number, block in enumerate(_blocks(self.physics)):
            made = {name: block.keys_values(x, tables[name], masks[name]) for name, x in tokens.items()}
            crosses = number % 2 == 1
            physics.append({name: made[OTHER[name] if crosses else name] for name in tokens})
            tokens = {name: block.read(x, physics[-1][name], tables[name]) for name, x in tokens.items()}
        branch: dict[str, list[KeysValues]] = {name: [] for name in tokens}
        for name, blocks in self.branch.items():
            for block in _blocks(blocks):
                tokens[name], made_here = block.with_keys_values(tokens[name], tables[name], masks[name])
                branch[name].append(made_here)
        return Latent(geometry, physics, branch), self._fields(tokens)

    def decode(self, latent: Latent, queries: dict[str, Tensor]) -> dict[str, Tensor]:
        """The fields at `surface_points` (B, Ns, 3), `volume_points` (B, Nv, 3) or both, from the latent."""
        tokens, tables = self._tokens(queries, latent.geometry)
        for name, x in tokens.items():
            for block, read in zip(_blocks(self.physics), latent.physics, strict=True):
                x = block.read(x, read[name], tables[name])
            for block, own in zip(_blocks(self.branch[name]), latent.branch[name], strict=True):
                x = block.read(x, own, tables[name])
            tokens[name] = x
        return self._fields(tokens)

    def _encode_geometry(self, points: Tensor, mask: Tensor | None) -> KeysValues:
        points = self._in_position_precision(points)
        supernodes = count_supernodes(self.supernodes, points.shape[1])
        tokens = self.pooling(points, self._embed(points, self.dim), supernodes, mask)
        tokens = self._in_parameter_precision(tokens)
        table = rotary_table(points[:, :supernodes], self.head_dim)
        mask = None if mask is None else mask[:, :supernodes]
        for block in self.geometry:
            tokens = block(tokens, table, mask)
        return self.read_geometry.keys_values(tokens, table, mask)

    def _tokens(self, batch: dict[str, Tensor], geometry: KeysValues) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Each set's tokens once they have read the geometry, and their rotary tables."""
        tokens, tables = {}, {}
        for name in present(batch):
            points = self._in_position_precision(batch[name])
            tables[name] = rotary_table(points, self.head_dim)
            embedded = self._in_parameter_precision(self.point_mlp[name](self._embed(points, self.dim)))
            tokens[name] = self.read_geometry(embedded, geometry, tables[name])
        return tokens, tables

    def _fields(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        return {OUTPUTS[name][0]: in_full_precision(x, self.head[name]) for name, x in tokens.items()}


def _blocks(modules: nn.Module) -> Iterable[TransformerBlock]:
    return cast(Iterable[TransformerBlock], modules)
