"""AB-UPT: the anchors of all sets of points exchange information, and any number of queries attend to the anchors.

The source is the Anchored-Branched Universal Physics Transformer, Alkin et al. 2025 (arXiv 2502.09692). `attend` passes
the anchors through geometry, physics and branch blocks; `decode` passes the queries through the same blocks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from noether.core.data.layout import CAR_FLOW, Layout
from noether.core.data.points import mask_of
from noether.physics.models.layers.blocks import MLP, KeysValues, PerceiverBlock, TransformerBlock
from noether.physics.models.points import (
    AnchoredModel,
    Batch,
    GeometryModel,
    Latent,
    Pooling,
    blocks_of,
    in_full_precision,
    joined_masks,
    mean_token,
    present,
    split_channels,
)

BySet = dict[str, KeysValues]


@dataclass(frozen=True)
class Attended:
    """The keys and values that queries attend to: of the geometry and, for each block and query set, of anchors."""

    geometry: KeysValues
    physics: list[BySet]
    branch: dict[str, list[KeysValues]]


class ABUPT(AnchoredModel, GeometryModel):
    """A model that predicts fields at points, and outputs of the case, from geometry and anchors.

    No point attends to a query, so the prediction at a query does not depend on the other queries. A query at the place
    of an anchor gets the anchor's prediction. If the batch has no `anchor_…` entries, all points are anchors. With the
    defaults, the model has 7,007,236 parameters.

    dim, heads, layout: as for PointModel with rotary positions; supernodes, radius, max_neighbours: as for Pooling.
    geometry_depth: number of transformer blocks over the supernodes.
    physics_depth: number of pairs of blocks that all sets share. In the first block of a pair, a set attends to its own
    anchors; in the second, to the anchors of the other sets, if any. One more block of the first kind follows.
    branch_depth: number of blocks with separate weights for each set.
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
        depths = {"geometry_depth": geometry_depth, "physics_depth": physics_depth, "branch_depth": branch_depth}
        super().__init__(layout, dim, heads, Pooling(supernodes, radius, max_neighbours), **depths)
        self.geometry = self._blocks(TransformerBlock, geometry_depth)
        self.point_mlp = nn.ModuleDict({points: MLP(dim, dim) for points in layout.outputs})
        self.read_geometry = PerceiverBlock(dim, heads, conditioned=self.conditioned)
        self.physics = self._blocks(TransformerBlock, 2 * physics_depth + 1)
        self.branch = nn.ModuleDict({points: self._blocks(TransformerBlock, branch_depth) for points in layout.outputs})
        self.head = nn.ModuleDict({points: nn.Linear(dim, layout.width(points)) for points in layout.outputs})
        self._initialise()

    def attend(self, context: Batch) -> tuple[Latent, Batch]:
        """Return the latent that queries read, and the fields at the anchors.

        context: `geometry_points` (B, Ng, 3), and the anchors of every set of the layout, such as `surface_points` (B,
        As, 3) and `volume_points` (B, Av, 3), each with a mask if some points are padding.
        ValueError: one of these entries is missing, or there are fewer geometry points than supernodes.
        """
        if absent := [name for name in ("geometry_points", *self.layout.outputs) if name not in context]:
            raise ValueError(
                f"AB-UPT attends to geometry and anchors of each set: the batch has no {', '.join(absent)}"
            )
        condition = self._condition(context)
        supernodes, table, mask = self._encode_geometry(context, self.geometry, condition)
        geometry = self.read_geometry.keys_values(supernodes, table, mask)
        tokens, tables = self._tokens(context, geometry, condition)
        masks = {name: mask_of(context, name) for name in tokens}
        physics: list[BySet] = []
        for number, block in enumerate(blocks_of(self.physics)):
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
            for block in blocks_of(blocks):
                tokens[name], here = block.with_keys_values(tokens[name], tables[name], masks[name], condition)
                branch[name].append(here)
        anchors = joined_masks(list(masks.values()), [x.shape[1] for x in tokens.values()])
        pooled = mean_token(supernodes, mask) + mean_token(torch.cat(list(tokens.values()), dim=1), anchors)
        return Latent(Attended(geometry, physics, branch), condition, pooled), self._fields(tokens)

    def decode(self, latent: Latent, queries: Batch) -> Batch:
        """Decode the latent: return the fields at the points (B, N, 3) of each set in `queries`."""
        read: Attended = latent.read
        tokens, tables = self._tokens(queries, read.geometry, latent.condition)
        for name, x in tokens.items():
            for block, physics in zip(blocks_of(self.physics), read.physics, strict=True):
                x = block.read(x, physics[name], tables[name], latent.condition)
            for block, own in zip(blocks_of(self.branch[name]), read.branch[name], strict=True):
                x = block.read(x, own, tables[name], latent.condition)
            tokens[name] = x
        return self._fields(tokens)

    def _tokens(self, batch: Batch, geometry: KeysValues, condition: Tensor | None) -> tuple[Batch, Batch]:
        """Return each set's tokens, which have read the geometry, and each set's rotary table."""
        tokens, tables = {}, {}
        for name in present(batch, self.layout):
            own, tables[name] = self._set_tokens(batch, name, self.point_mlp[name])
            tokens[name] = self.read_geometry.read(own, geometry, tables[name], condition)
        return tokens, tables

    def _fields(self, tokens: Batch) -> Batch:
        predictions: Batch = {}
        for name, x in tokens.items():
            predictions |= split_channels(in_full_precision(x, self.head[name]), self.layout.outputs[name])
        return predictions


def _of_others(made: BySet, name: str) -> KeysValues:
    """Return the keys and values of all sets except `name`, or of `name` if it is the only set."""
    others = [keys_values for other, keys_values in made.items() if other != name] or [made[name]]
    if len(others) == 1:
        return others[0]
    keys, values = (torch.cat(parts, 2) for parts in zip(*((o.keys, o.values) for o in others), strict=True))
    return KeysValues(keys, values, joined_masks([o.mask for o in others], [o.keys.shape[2] for o in others]))
