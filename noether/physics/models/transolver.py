"""Transolver: points are grouped into a few slices of similar physical state, and the slices attend to each other.

The source is Wu et al. 2024 (arXiv 2402.02366), in the form for ShapeNet-Car: the points of surface and volume form one
cloud. The inputs at a point are its position, its distance to the surface, and the direction away from the surface.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noether.core.data.layout import CAR_FLOW, Layout
from noether.core.data.moments import Moments
from noether.physics.models.layers.blocks import AttentionBlock
from noether.physics.models.points import Batch, SequenceModel, blocks_of, present

EPSILON = 1e-5
FIRST_TEMPERATURE = 0.5


class SliceAttention(nn.Module):
    """Attention between slices: points are softly assigned to slices, and each point reads the slices' tokens.

    In each head h, let x_h and f_h be two projections of the points. Then w = softmax(W·x_h / τ) over the slices, and
    token_g = Σ w_g·f_h / (Σ w_g + 1e-5) over the points. The tokens attend to each other, and each point gets
    Σ_g w_g·token_g. The heads share W and the projections of the tokens, but each head has its own τ. The cost is
    linear in the number of points. Source: Transolver, Wu et al. 2024 (arXiv 2402.02366), section 3.2.
    dim, heads: as for PointModel; slices: number of slices per head.
    """

    def __init__(self, dim: int, heads: int, slices: int) -> None:
        super().__init__()
        head_dim = dim // heads
        self.heads = heads
        self.assigned = nn.Linear(dim, dim)
        self.features = nn.Linear(dim, dim)
        self.slice = nn.Linear(head_dim, slices)
        self.temperature = nn.Parameter(torch.full((heads,), FIRST_TEMPERATURE))
        self.query = nn.Linear(head_dim, head_dim, bias=False)
        self.key = nn.Linear(head_dim, head_dim, bias=False)
        self.value = nn.Linear(head_dim, head_dim, bias=False)
        self.output = nn.Linear(dim, dim)

    def with_keys_values(self, x: Tensor, table: None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the points' values (batch, points, dim) after attention, and the slices' tokens as input of `read`."""
        weights = self.slice_weights(x)
        tokens = self.slice_tokens(x, weights, mask)
        return self.scatter(weights, tokens), tokens

    def read(self, x: Tensor, tokens: Tensor, table: None) -> Tensor:
        """Return the values (batch, points, dim) that the points x read from the slices of other points."""
        return self.scatter(self.slice_weights(x), tokens)

    def slice_weights(self, x: Tensor) -> Tensor:
        """Return the weight of each point (batch, points, dim) in each slice, (batch, heads, points, slices)."""
        temperature = self.temperature.view(-1, 1, 1)
        with torch.autocast(x.device.type, enabled=False):
            # The temperature divides the layer's weights instead of the logits, because there are far more logits.
            assigned = self.assigned.weight.unflatten(0, (self.heads, -1))
            assigned_bias = self.assigned.bias.view(self.heads, 1, -1)
            weight = self.slice.weight / temperature
            bias = (assigned_bias @ weight.transpose(1, 2)).squeeze(1) + self.slice.bias / temperature.squeeze(-1)
            if self._joined:
                weight = weight @ assigned
        if self._joined:
            logits = F.linear(x, weight.flatten(0, 1), bias.flatten()).unflatten(-1, (self.heads, -1))
            joined: Tensor = logits.softmax(dim=-1).transpose(1, 2)
            return joined
        logits = self._by_head(F.linear(x, self.assigned.weight)) @ weight.transpose(1, 2)
        weights: Tensor = logits.add_(bias.unsqueeze(1)).softmax(dim=-1)
        return weights

    def slice_tokens(self, x: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the slices' tokens (batch, heads, slices, head_dim) after the slices have attended to each other.

        x: (batch, points, dim). weights: from `slice_weights`. mask: (batch, points), False for padding, or None.
        """
        if mask is not None:
            weights = weights * mask[:, None, :, None]
        total = weights.sum(dim=2).unsqueeze(-1)
        if self._joined:
            pooled = self._of_points(weights).transpose(1, 2) @ x
            features = self.features.weight.unflatten(0, (self.heads, -1)).transpose(1, 2)
            tokens = pooled.unflatten(1, (self.heads, -1)) @ features
            tokens = tokens + total * self.features.bias.view(self.heads, 1, -1)
        else:
            tokens = weights.transpose(-1, -2) @ self._by_head(self.features(x))
        tokens = tokens / (total + EPSILON)
        return F.scaled_dot_product_attention(self.query(tokens), self.key(tokens), self.value(tokens))

    def scatter(self, weights: Tensor, tokens: Tensor) -> Tensor:
        """Return the points' values (batch, points, dim): the mean of the slices' tokens with the points' weights."""
        if self._joined:
            output = self.output.weight.unflatten(1, (self.heads, -1)).permute(1, 2, 0)
            return torch.baddbmm(self.output.bias, self._of_points(weights), (tokens @ output).flatten(1, 2))
        read: Tensor = self.output((weights @ tokens).transpose(1, 2).flatten(2))
        return read

    @property
    def _joined(self) -> bool:
        """Return whether each pass over the points is computed as one matrix product of width heads · slices.

        This is possible because Σ_n w_n (F x_n) = F Σ_n w_n x_n, and likewise for the other projections. It is cheaper
        if a head has no more slices than channels.
        """
        return self.slice.out_features <= self.slice.in_features

    def _by_head(self, x: Tensor) -> Tensor:
        by_head: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return by_head

    @staticmethod
    def _of_points(weights: Tensor) -> Tensor:
        """View the slice weights (batch, heads, points, slices) as (batch, points, heads · slices)."""
        return weights.transpose(1, 2).flatten(2)


INPUTS = 7
UNFITTED = {"input_mean": (500.0,) * 3 + (0.0,) * 4, "input_deviation": (100.0,) * 3 + (1.0,) * 4}
"""The scaling of the inputs before `fit_inputs` is called: it maps positions of 0..1000 to −5..5."""


class Transolver(SequenceModel):
    """A model that predicts fields at points by attention between slices of all points.

    If the batch contains anchors, the slices are made of the anchors only. As in the authors' code, the seven inputs of
    a point are standardised over the training split; `fit_inputs` stores their mean and standard deviation as buffers.
    With the defaults, the model has 3,860,804 parameters.

    dim, heads, layout: as for PointModel; depth: number of blocks; slices: number of slices per head.
    mlp_ratio: hidden width of the MLPs divided by their outer width.
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
        how = {"conditioned": self.conditioned}
        self._build(AttentionBlock(dim, SliceAttention(dim, heads, slices), mlp_ratio, **how) for _ in range(depth))
        for block in blocks_of(self.blocks):
            # With weights as small as in other layers, all slices would be nearly equal at first.
            nn.init.orthogonal_(block.attention.slice.weight)

    @classmethod
    def needs(cls, layout: Layout) -> tuple[str, ...]:
        """Return the keys of each set's direction away from the surface and, off the surface, distance to it."""
        return tuple(key for points in layout.outputs for key in _known_of(points))

    @torch.no_grad()
    def fit_inputs(self, samples: Iterable[Batch]) -> None:
        """Compute mean and standard deviation of the inputs over the prepared training samples, in batches of size 1.

        Points of all sets have equal weight. A constant channel, such as a distance of 0, is not divided.
        """
        moments = Moments(INPUTS)
        for sample in samples:
            for name in present(sample, self.layout):
                moments.add(self._raw_inputs(sample, name).flatten(0, 1).double().cpu().numpy())
        self.input_mean.copy_(torch.from_numpy(moments.mean))
        self.input_deviation.copy_(torch.from_numpy(np.where(moments.spread == 0, 1.0, moments.spread)))

    def _tokens(self, batch: Batch) -> tuple[Tensor, None, dict[str, int]]:
        """Return a token for every point, made by the input MLP from its position, distance and direction.

        batch: at least one set of the layout, such as `surface_points` (B, Ns, 3) with `surface_normals` (B, Ns, 3), or
        `volume_points` (B, Nv, 3) with `volume_normals` (B, Nv, 3) and `volume_sdf` (B, Nv) in m; and a mask for each
        set with padding.
        ValueError: an entry is missing.
        """
        sizes = {name: batch[name].shape[1] for name in present(batch, self.layout)}
        inputs = torch.cat([self._point_inputs(batch, name) for name in sizes], dim=1)
        x = self.input_mlp(inputs.to(self._dtype)) + self.placeholder
        if self.features:
            parts = zip(sizes, x.split(list(sizes.values()), dim=1), strict=True)
            x = torch.cat([self._with_features(batch, name, part) for name, part in parts], dim=1)
        return self._in_parameter_precision(x), None, sizes

    def _point_inputs(self, batch: Batch, name: str) -> Tensor:
        """Return the standardised inputs (B, N, 7): position, distance to the surface, direction away from it."""
        raw = self._raw_inputs(batch, name)
        return (raw - self.input_mean.to(raw.dtype)) / self.input_deviation.to(raw.dtype)

    def _raw_inputs(self, batch: Batch, name: str) -> Tensor:
        prefix, needed = name.removesuffix("_points"), _known_of(name)
        if absent := [key for key in needed if key not in batch]:
            raise ValueError(f"Transolver reads {name} with {' and '.join(needed)}: no {', '.join(absent)}")
        points = self._in_position_precision(batch[name])
        # Until they are standardised, inputs need float32 or higher: bfloat16 would round 1000.4 to 1000.
        distance = points.new_zeros(*points.shape[:2], 1)  # For the surface's own points.
        if f"{prefix}_sdf" in needed:
            distance = batch[f"{prefix}_sdf"].to(points.dtype).reshape(distance.shape)
        return torch.cat((points, distance, batch[f"{prefix}_normals"].to(points.dtype)), dim=-1)


def _known_of(points: str) -> list[str]:
    """Return the keys of what must be known at a set's points: normals and, off the surface, the distance to it."""
    prefix = points.removesuffix("_points")
    return [f"{prefix}_normals"] + ([] if prefix == "surface" else [f"{prefix}_sdf"])
