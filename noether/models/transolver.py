"""Transolver: points gathered into a few slices of like physical state, attention among the slices.

Wu et al. 2024 (arXiv 2402.02366), in its ShapeNet-Car form: all points of surface and volume in one cloud,
each with its position, its distance to the surface and the direction away from it.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from noether.models.layers.blocks import MLP, initialise_linear
from noether.models.layers.slices import SliceAttention
from noether.models.options import check_options
from noether.models.points import (
    AnchoredModel,
    in_full_precision,
    joined_masks,
    present,
    split_fields,
)

INPUTS = 7
POSITION_CENTRE, POSITION_UNIT = 500.0, 100.0
"""Scaled positions of 0..1000 become about −5..5, of the size of the other inputs."""


class TransolverBlock(nn.Module):
    """x += SliceAttention(LN x); x += MLP(LN x)."""

    def __init__(self, dim: int, heads: int, slices: int, mlp_ratio: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = SliceAttention(dim, heads, slices)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim, mlp_ratio * dim)

    def attend(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """(batch, points, dim) after the block, and the slices' tokens for others to `read`."""
        normed = self.attention_norm(x)
        weights = self.attention.slice_weights(normed)
        tokens = self.attention.slice_tokens(normed, weights, mask)
        return self._finish(x, weights, tokens), tokens

    def read(self, x: Tensor, tokens: Tensor) -> Tensor:
        """The block for points that read the slices of others and add nothing to them."""
        return self._finish(x, self.attention.slice_weights(self.attention_norm(x)), tokens)

    def _finish(self, x: Tensor, weights: Tensor, tokens: Tensor) -> Tensor:
        x = x + self.attention.scatter(weights, tokens)
        return x + self.mlp(self.mlp_norm(x))


class Transolver(AnchoredModel):
    """Predict surface pressure and volume velocity by attention among slices of all points.

    Where the batch has anchors, the slices are made of those only.

    Args:
        dim: channels of a point.
        heads: attention heads; must divide `dim`.
        depth: blocks.
        slices: slices of a head.
        mlp_ratio: hidden over outer width of the MLPs.

    Raises:
        RequestError: options that do not fit each other, with the line to change.

    At the defaults 3,860,804 parameters.
    """

    def __init__(self, dim: int = 256, heads: int = 8, depth: int = 8, slices: int = 32, mlp_ratio: int = 2) -> None:
        super().__init__()
        check_options(dim, heads, rotary=False, depth=depth, slices=slices, mlp_ratio=mlp_ratio)
        self.input_mlp = nn.Sequential(nn.Linear(INPUTS, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.placeholder = nn.Parameter(torch.rand(dim) / dim)
        self.blocks = nn.ModuleList(TransolverBlock(dim, heads, slices, mlp_ratio) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 4)
        self.apply(initialise_linear)
        for block in self._blocks():
            # With weights as small as the others', all slices would begin alike and have to be told apart first.
            nn.init.orthogonal_(block.attention.slice.weight)

    def attend(self, context: dict[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The slices' tokens of each block, and the fields at the points of `context` themselves.

        Args:
            context: `surface_points` (B, Ns, 3) with `surface_normals` (B, Ns, 3), `volume_points` (B, Nv, 3)
                with `volume_normals` (B, Nv, 3) and `volume_sdf` (B, Nv) in m, or one set of the two, each
                with its mask where some are padding.

        Raises:
            ValueError: an entry is absent.
        """
        x, sizes = self._inputs(context)
        mask, latent = joined_masks(context, list(sizes)), []
        for block in self._blocks():
            x, tokens = block.attend(x, mask)
            latent.append(tokens)
        return latent, self._fields(x, sizes)

    def decode(self, latent: list[Tensor], queries: dict[str, Tensor]) -> dict[str, Tensor]:
        """The fields at the points of `queries`, which need the same entries as those of `attend`."""
        x, sizes = self._inputs(queries)
        for block, tokens in zip(self._blocks(), latent, strict=True):
            x = block.read(x, tokens)
        return self._fields(x, sizes)

    def _blocks(self) -> Iterable[TransolverBlock]:
        return cast(Iterable[TransolverBlock], self.blocks)

    def _inputs(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, int]]:
        """Position, distance and direction of every point through the input MLP, and how many are of which set."""
        names = present(batch)
        inputs = torch.cat([self._point_inputs(batch, name) for name in names], dim=1)
        x = self.input_mlp(inputs.to(self._dtype)) + self.placeholder
        return self._in_parameter_precision(x), {name: batch[name].shape[1] for name in names}

    def _point_inputs(self, batch: dict[str, Tensor], name: str) -> Tensor:
        """(B, N, 7): xyz, the distance to the surface, the direction away from it."""
        prefix = name.removesuffix("_points")
        needed = [f"{prefix}_normals"] + (["volume_sdf"] if prefix == "volume" else [])
        if absent := [key for key in needed if key not in batch]:
            raise ValueError(f"Transolver reads {name} with {' and '.join(needed)}: no {', '.join(absent)}")
        points = self._in_position_precision(batch[name])
        # In float32 or more until here: half precision does not tell 1000.0 from 1000.4.
        positions = (points - POSITION_CENTRE) / POSITION_UNIT
        distance = points.new_zeros(*points.shape[:2], 1)  # of the surface's own points
        if prefix == "volume":
            distance = batch["volume_sdf"].to(points.dtype).reshape(distance.shape)
        return torch.cat((positions, distance, batch[f"{prefix}_normals"].to(points.dtype)), dim=-1)

    def _fields(self, x: Tensor, sizes: dict[str, int]) -> dict[str, Tensor]:
        return split_fields(in_full_precision(x, self.norm, self.head), sizes)
