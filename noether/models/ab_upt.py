"""AB-UPT: the anchors of each set of points exchange what they know, and any number of queries read them.

Anchored-Branched Universal Physics Transformer, Alkin et al. 2025 (arXiv 2502.09692). Read top to bottom:
`attend` takes the anchors through geometry, physics and their own branch, `decode` takes queries along.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from noether.data.layout import CAR_FLOW, Layout
from noether.data.padding import mask_of
from noether.models.layers.attention import KeysValues
from noether.models.layers.blocks import MLP, PerceiverBlock, TransformerBlock, initialise_linear
from noether.models.layers.positions import rotary_table
from noether.models.layers.supernodes import SupernodePooling
from noether.models.options import check_options
from noether.models.points import (
    AnchoredModel,
    Latent,
    count_supernodes,
    in_full_precision,
    joined_masks,
    mean_token,
    present,
    split_channels,
)

BySet = dict[str, KeysValues]


@dataclass(frozen=True)
class Attended:
    """What queries read: the geometry, then block by block the keys and values of anchors, by the reading set."""

    geometry: KeysValues
    physics: list[BySet]
    branch: dict[str, list[KeysValues]]


class ABUPT(AnchoredModel):
    """Predict fields at points, and outputs of the case, from geometry and anchors.

    Keys and values come from anchors alone and queries are never attended to, so each query's prediction is
    independent of which others are asked. A query at an anchor's place is predicted as the anchor is.
    Without `anchor_…` entries in the batch all points are anchors.

    Args:
        dim: channels of a token.
        heads: attention heads. `dim / heads` must be even and at least 6, for RoPE on three axes.
        geometry_depth: transformer blocks among the supernodes.
        physics_depth: pairs of blocks whose weights all sets share: among a set's own anchors, then from the
            other sets (where there is no other, its own again). One more among the own follows.
        branch_depth: blocks that each set has for itself.
        supernodes: how many geometry points become supernodes, the *first* so many; None: all of them.
        radius: a supernode gathers the geometry points within it, in the unit of the scaled positions.
        max_neighbours: and only the nearest so many.
        layout: the fields, features, parameters and outputs of a case; the published model's where not given.

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
        *,
        radius: float = 9.0,
        max_neighbours: int = 32,
        layout: Layout = CAR_FLOW,
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
        self._build_shared(layout, dim)
        more = {"conditioned": self.conditioned}
        self.pooling = SupernodePooling(dim, radius, max_neighbours)
        self.geometry = nn.ModuleList(TransformerBlock(dim, heads, **more) for _ in range(geometry_depth))
        self.point_mlp = nn.ModuleDict({points: MLP(dim, dim) for points in layout.outputs})
        self.read_geometry = PerceiverBlock(dim, heads, **more)
        self.physics = nn.ModuleList(TransformerBlock(dim, heads, **more) for _ in range(2 * physics_depth + 1))
        self.branch = nn.ModuleDict(
            {
                points: nn.ModuleList(TransformerBlock(dim, heads, **more) for _ in range(branch_depth))
                for points in layout.outputs
            }
        )
        self.head = nn.ModuleDict({points: nn.Linear(dim, layout.width(points)) for points in layout.outputs})
        self.apply(initialise_linear)

    @classmethod
    def needs(cls, layout: Layout) -> tuple[str, ...]:
        """The points that show the shape: of the geometry itself, else of the surface."""
        return ("geometry_points",)

    def attend(self, context: dict[str, Tensor]) -> tuple[Latent, dict[str, Tensor]]:
        """What queries read, and the fields at the anchors themselves.

        Args:
            context: `geometry_points` (B, Ng, 3), and the anchors of every set of the layout, such as
                `surface_points` (B, As, 3) and `volume_points` (B, Av, 3), each with its mask where some are
                padding.

        Raises:
            ValueError: one of them is absent, or there are fewer geometry points than supernodes.
        """
        if absent := [name for name in ("geometry_points", *self.layout.outputs) if name not in context]:
            raise ValueError(
                f"AB-UPT attends to geometry and anchors of each set: the batch has no {', '.join(absent)}"
            )
        condition = self._condition(context)
        geometry, shape = self._encode_geometry(context["geometry_points"], context.get("geometry_mask"), condition)
        tokens, tables = self._tokens(context, geometry, condition)
        masks = {name: mask_of(context, name) for name in tokens}
        physics: list[BySet] = []
        for number, block in enumerate(_blocks(self.physics)):
            if number % 2 == 0:
                passed = {
                    name: block.with_keys_values(x, tables[name], masks[name], condition) for name, x in tokens.items()
                }
                tokens = {name: x for name, (x, _) in passed.items()}
                physics.append({name: own for name, (_, own) in passed.items()})
                continue
            made = {name: block.keys_values(x, tables[name], masks[name], condition) for name, x in tokens.items()}
            physics.append({name: _of_others(made, name) for name in tokens})
            tokens = {name: block.read(x, physics[-1][name], tables[name], condition) for name, x in tokens.items()}
        branch: dict[str, list[KeysValues]] = {name: [] for name in tokens}
        for name, blocks in self.branch.items():
            for block in _blocks(blocks):
                tokens[name], here = block.with_keys_values(tokens[name], tables[name], masks[name], condition)
                branch[name].append(here)
        pooled = shape + mean_token(torch.cat(list(tokens.values()), dim=1), joined_masks(context, list(tokens)))
        return Latent(Attended(geometry, physics, branch), condition, pooled), self._fields(tokens)

    def decode(self, latent: Latent, queries: dict[str, Tensor]) -> dict[str, Tensor]:
        """The fields at each set of the layout that `queries` has, (B, N, 3) points each, from the latent."""
        read: Attended = latent.read
        tokens, tables = self._tokens(queries, read.geometry, latent.condition)
        for name, x in tokens.items():
            for block, physics in zip(_blocks(self.physics), read.physics, strict=True):
                x = block.read(x, physics[name], tables[name], latent.condition)
            for block, own in zip(_blocks(self.branch[name]), read.branch[name], strict=True):
                x = block.read(x, own, tables[name], latent.condition)
            tokens[name] = x
        return self._fields(tokens)

    def _encode_geometry(
        self, points: Tensor, mask: Tensor | None, condition: Tensor | None
    ) -> tuple[KeysValues, Tensor]:
        """What the anchors read of the geometry, and its mean token (B, dim)."""
        points = self._in_position_precision(points)
        supernodes = count_supernodes(self.supernodes, points.shape[1])
        tokens = self.pooling(points, self._embed(points, self.dim), supernodes, mask)
        tokens = self._in_parameter_precision(tokens)
        table = rotary_table(points[:, :supernodes], self.head_dim)
        mask = None if mask is None else mask[:, :supernodes]
        for block in self.geometry:
            tokens = block(tokens, table, mask, condition)
        return self.read_geometry.keys_values(tokens, table, mask), mean_token(tokens, mask)

    def _tokens(
        self, batch: dict[str, Tensor], geometry: KeysValues, condition: Tensor | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Each set's tokens once they have read the geometry, and their rotary tables."""
        tokens, tables = {}, {}
        for name in present(batch, self.layout):
            points = self._in_position_precision(batch[name])
            tables[name] = rotary_table(points, self.head_dim)
            embedded = self.point_mlp[name](self._with_features(batch, name, self._embed(points, self.dim)))
            embedded = self._in_parameter_precision(embedded)
            tokens[name] = self.read_geometry(embedded, geometry, tables[name], condition)
        return tokens, tables

    def _fields(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        predictions: dict[str, Tensor] = {}
        for name, x in tokens.items():
            predictions |= split_channels(in_full_precision(x, self.head[name]), name, self.layout)
        return predictions


def _of_others(made: BySet, name: str) -> KeysValues:
    """The keys and values of all sets but one; of that one where there is no other."""
    others = [keys_values for other, keys_values in made.items() if other != name] or [made[name]]
    if len(others) == 1:
        return others[0]
    masks = [other.mask for other in others]
    mask = None
    if any(one is not None for one in masks):
        like = next(one for one in masks if one is not None)
        sizes = [(like.shape[0], 1, 1, other.keys.shape[2]) for other in others]
        mask = torch.cat(
            [like.new_ones(size) if one is None else one for one, size in zip(masks, sizes, strict=True)], 3
        )
    return KeysValues(torch.cat([o.keys for o in others], 2), torch.cat([o.values for o in others], 2), mask)


def _blocks(modules: nn.Module) -> Iterable[TransformerBlock]:
    return cast(Iterable[TransformerBlock], modules)
