"""Transolver: points are grouped into a few slices of similar physical state, and the slices attend to each other.

Wu et al. 2024 (arXiv 2402.02366), in its ShapeNet-Car form: all points of surface and volume in one cloud,
each with its position, its distance to the surface and the direction away from it.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from noether.core.data.layout import CAR_FLOW, Layout
from noether.core.data.moments import Moments
from noether.core.models.recompute import Recomputable, recomputed
from noether.physics.models.layers.blocks import MLP
from noether.physics.models.layers.conditioning import Modulation, Modulations, modulated
from noether.physics.models.layers.slices import SliceAttention
from noether.physics.models.points import SequenceModel, blocks_of, present

INPUTS = 7
UNFITTED = {"input_mean": (500.0,) * 3 + (0.0,) * 4, "input_deviation": (100.0,) * 3 + (1.0,) * 4}
"""The inputs' scaling where nothing was fitted: positions of 0..1000 become about −5..5."""


class TransolverBlock(Recomputable):
    """x += SliceAttention(LN x); x += MLP(LN x); `conditioned` as of TransformerBlock."""

    def __init__(self, dim: int, heads: int, slices: int, mlp_ratio: int, *, conditioned: bool = False) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = SliceAttention(dim, heads, slices)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim, mlp_ratio * dim)
        self.modulation = Modulation(dim, 2) if conditioned else None

    @recomputed
    def with_keys_values(
        self, x: Tensor, table: None, mask: Tensor | None, condition: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(batch, points, dim) after the block, and the slices' tokens for others to `read`; no position turns them."""
        how = self._modulations(condition)
        normed = modulated(self.attention_norm, x, how)
        weights = self.attention.slice_weights(normed)
        tokens = self.attention.slice_tokens(normed, weights, mask)
        return self._finish(x, weights, tokens, how), tokens

    @recomputed
    def read(self, x: Tensor, tokens: Tensor, table: None, condition: Tensor | None = None) -> Tensor:
        """The block for points that read the slices of others and add nothing to them."""
        how = self._modulations(condition)
        return self._finish(x, self.attention.slice_weights(modulated(self.attention_norm, x, how)), tokens, how)

    def _finish(self, x: Tensor, weights: Tensor, tokens: Tensor, how: Modulations | None) -> Tensor:
        x = x + self.attention.scatter(weights, tokens)
        out: Tensor = x + self.mlp(modulated(self.mlp_norm, x, how, 1))
        return out

    def _modulations(self, condition: Tensor | None) -> Modulations | None:
        return None if self.modulation is None else self.modulation(condition)


class Transolver(SequenceModel):
    """Predict fields at points by attention among slices of all points.

    Where the batch has anchors, the slices are made of those only. The seven inputs of a point are standardised over
    the training split, as the authors' code does it: `fit_inputs` stores their mean and standard deviation as buffers.

    Args:
        dim: channels of a point.
        heads: attention heads; must divide `dim`.
        depth: blocks.
        slices: slices of a head.
        mlp_ratio: hidden over outer width of the MLPs.
        layout: the fields, features, parameters and outputs of a case; the published model's where not given.

    At the defaults 3,860,804 parameters.
    """

    def __init__(
        self,
        dim: int = 256,
        heads: int = 8,
        depth: int = 8,
        slices: int = 32,
        mlp_ratio: int = 2,
        layout: Layout = CAR_FLOW,
    ) -> None:
        super().__init__(layout, dim, heads, rotary=False, depth=depth, slices=slices, mlp_ratio=mlp_ratio)
        self.input_mlp = nn.Sequential(nn.Linear(INPUTS, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.placeholder = nn.Parameter(torch.rand(dim) / dim)
        self.input_mean: Tensor
        self.input_deviation: Tensor
        for name, values in UNFITTED.items():
            self.register_buffer(name, torch.tensor(values))
        self._build(TransolverBlock(dim, heads, slices, mlp_ratio, conditioned=self.conditioned) for _ in range(depth))
        for block in blocks_of(self.blocks):
            # With weights as small as the others', all slices would begin alike and have to be told apart first.
            nn.init.orthogonal_(block.attention.slice.weight)

    @classmethod
    def needs(cls, layout: Layout) -> tuple[str, ...]:
        """The direction away from the surface at every point, and off the surface the distance to it."""
        return tuple(key for points in layout.outputs for key in _known_of(points))

    @torch.no_grad()
    def fit_inputs(self, samples: Iterable[dict[str, Tensor]]) -> None:
        """Takes mean and standard deviation of the inputs from prepared training samples, each a batch of one.

        Points of all sets count alike. A channel that never changes, such as a distance of 0, keeps its scale.
        """
        moments = Moments(INPUTS)
        for sample in samples:
            for name in present(sample, self.layout):
                moments.add(self._raw_inputs(sample, name).flatten(0, 1).double().cpu().numpy())
        self.input_mean.copy_(torch.from_numpy(moments.mean))
        self.input_deviation.copy_(torch.from_numpy(np.where(moments.spread == 0, 1.0, moments.spread)))

    def _tokens(self, batch: dict[str, Tensor]) -> tuple[Tensor, None, dict[str, int]]:
        """Position, distance and direction of every point through the input MLP.

        Args:
            batch: `surface_points` (B, Ns, 3) with `surface_normals` (B, Ns, 3), any other set such as
                `volume_points` (B, Nv, 3) with `volume_normals` (B, Nv, 3) and `volume_sdf` (B, Nv) in m, each
                with its mask where some are padding; one set of the layout or several.

        Raises:
            ValueError: an entry is absent.
        """
        sizes = {name: batch[name].shape[1] for name in present(batch, self.layout)}
        inputs = torch.cat([self._point_inputs(batch, name) for name in sizes], dim=1)
        x = self.input_mlp(inputs.to(self._dtype)) + self.placeholder
        if self.features:
            parts = zip(sizes, x.split(list(sizes.values()), dim=1), strict=True)
            x = torch.cat([self._with_features(batch, name, part) for name, part in parts], dim=1)
        return self._in_parameter_precision(x), None, sizes

    def _point_inputs(self, batch: dict[str, Tensor], name: str) -> Tensor:
        """(B, N, 7), standardised: xyz, the distance to the surface, the direction away from it."""
        raw = self._raw_inputs(batch, name)
        return (raw - self.input_mean.to(raw.dtype)) / self.input_deviation.to(raw.dtype)

    def _raw_inputs(self, batch: dict[str, Tensor], name: str) -> Tensor:
        prefix, needed = name.removesuffix("_points"), _known_of(name)
        if absent := [key for key in needed if key not in batch]:
            raise ValueError(f"Transolver reads {name} with {' and '.join(needed)}: no {', '.join(absent)}")
        points = self._in_position_precision(batch[name])
        # In float32 or more until they are standardised: half precision does not tell 1000.0 from 1000.4.
        distance = points.new_zeros(*points.shape[:2], 1)  # of the surface's own points
        if f"{prefix}_sdf" in needed:
            distance = batch[f"{prefix}_sdf"].to(points.dtype).reshape(distance.shape)
        return torch.cat((points, distance, batch[f"{prefix}_normals"].to(points.dtype)), dim=-1)


def _known_of(points: str) -> list[str]:
    """The keys that a set's points come with: the surface's own points are at no distance from it."""
    prefix = points.removesuffix("_points")
    return [f"{prefix}_normals"] + ([] if prefix == "surface" else [f"{prefix}_sdf"])
