"""Shared by models that read the shape itself: pools its points into supernodes."""

from collections.abc import Mapping

from torch import Tensor, nn

from noether.common.errors import RequestError
from noether.core.data.layout import Layout
from noether.physics.models.layers.positions import rotary_table
from noether.physics.models.layers.supernodes import SupernodePooling
from noether.physics.models.points import Batch, PointModel


class GeometryModel(PointModel):
    """A model that reads the shape itself: points of the geometry, pooled into supernodes.

    Args:
        layout, dim, heads: as of PointModel.
        supernodes: how many geometry points become supernodes: the *first* so many, which is a random
            choice because data sets give geometry points in random order. None: all of them.
        radius: a supernode gathers the geometry points within it, in the unit of the scaled positions.
        max_neighbours: and only the nearest so many.
        depths: numbers of blocks, by the option's name.
    """

    def __init__(
        self,
        layout: Layout,
        dim: int,
        heads: int,
        *,
        supernodes: int | None,
        radius: float,
        max_neighbours: int,
        depths: Mapping[str, int],
    ) -> None:
        if radius <= 0:
            raise RequestError(
                "radius-not-positive",
                "model.radius is not positive",
                seen=f"model.radius={radius}",
                expected="a length in the unit of the scaled positions, which span about 0..1000",
                fix="model.radius=9.0",
            )
        super().__init__(
            layout, dim, heads, rotary=True, supernodes=supernodes, max_neighbours=max_neighbours, **depths
        )
        self.supernodes = supernodes
        self.pooling = SupernodePooling(dim, radius, max_neighbours)

    @classmethod
    def needs(cls, layout: Layout) -> tuple[str, ...]:
        """The points that show the shape: of the geometry itself, else of the surface."""
        return ("geometry_points",)

    def _encode_geometry(
        self, batch: Batch, blocks: nn.ModuleList, condition: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The supernodes' tokens (B, supernodes, dim) after some blocks, their rotary table and mask."""
        points, mask = self._in_position_precision(batch["geometry_points"]), batch.get("geometry_mask")
        supernodes = count_supernodes(self.supernodes, points.shape[1])
        tokens = self._in_parameter_precision(self.pooling(points, self._embed(points), supernodes, mask))
        table = rotary_table(points[:, :supernodes], self.head_dim)
        mask = None if mask is None else mask[:, :supernodes]
        for block in blocks:
            tokens = block(tokens, table, mask, condition)
        return tokens, table, mask


def count_supernodes(wanted: int | None, available: int) -> int:
    """The number of supernodes to take from so many geometry points. ValueError: there are fewer."""
    if wanted is not None and available < wanted:
        raise ValueError(
            f"{wanted} supernodes cannot be taken from {available} geometry points: "
            f"set model.supernodes to {available} at most, or dataset.geometry_points to {wanted} or more"
        )
    return available if wanted is None else wanted
