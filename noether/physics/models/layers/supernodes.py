"""Radius search, and pooling of geometry points into supernodes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noether.physics.models.layers.edge_activation import summed_activation

MAX_DISTANCES = 2**24
"""Distances held in memory at once by the radius search: 64 MiB in float32."""
MOST_PARTITIONED = 2048
"""Distances of a row from which on topk, which then keeps a heap, is the faster way on a CPU."""


class Neighbours(NamedTuple):
    """Edges into each centre, nearest first; slots without a neighbour are padding."""

    indices: Tensor
    """(batch, centres, slots) int64, into the points of the same sample."""
    found: Tensor
    """(batch, centres, slots) bool: False marks padding, whose index is valid but means nothing."""


def radius_neighbours(
    points: Tensor,
    centres: Tensor,
    radius: float,
    max_neighbours: int,
    max_distances: int = MAX_DISTANCES,
    mask: Tensor | None = None,
) -> Neighbours:
    """The nearest `max_neighbours` points within `radius` (inclusive) of each centre, by brute force.

    Nearest, not first in index order: then the result does not depend on the order of the points. Only
    points at exactly the same distance, at the cut, are told apart by their order.

    Shapes depend on the inputs' shapes alone, never on their values, so that the search can be compiled
    and a step never waits for the device to count edges.

    Args:
        points: (batch, points, axes), float32 or float64.
        centres: (batch, centres, axes), the same dtype.
        radius: in the unit of the points.
        max_neighbours: the slots per centre, fewer where there are fewer points.
        max_distances: bounds memory: as many centres are searched at a time as stay below it. It changes
            nothing in the result.
        mask: (batch, points) bool, False for padding, which is nobody's neighbour; None: no padding.
    """
    batch, count, _ = points.shape
    slots = min(max_neighbours, count)
    parts: Sequence[Tensor] = (centres,)
    # A program that is written for batches of any size cannot branch on the size.
    if not torch.compiler.is_exporting() and batch * count * centres.shape[1] > max_distances:
        parts = centres.split(max(1, max_distances // (batch * count)), dim=1)
    with torch.no_grad():
        nearest = [_smallest(_distances(part, points, mask), slots) for part in parts]
        indices = torch.cat([indices for _, indices in nearest], dim=1)
        found = torch.cat([values for values, _ in nearest], dim=1) <= radius
    return Neighbours(indices, found)


def _smallest(distances: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """The smallest distances of each row, from the smallest on, and their indices."""
    count = distances.shape[-1]
    tracing = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    if distances.device.type != "cpu" or distances.dtype != torch.float32 or count > MOST_PARTITIONED or tracing:
        values, indices = distances.topk(slots, largest=False)
        return values, indices
    # The bits of positive floats are in the floats' order, so that one integer holds distance and index. NumPy
    # partitions those with vector instructions: a third of topk's time.
    keys = distances.contiguous().view(torch.int32).to(torch.int64)
    array = keys.bitwise_left_shift_(32).bitwise_or_(torch.arange(count)).numpy()
    if slots < count:
        array.partition(slots - 1, axis=-1)
    chosen = torch.from_numpy(np.sort(array[..., :slots], axis=-1))
    return chosen.bitwise_right_shift(32).to(torch.int32).view(torch.float32), chosen.bitwise_and(0xFFFFFFFF)


def _distances(centres: Tensor, points: Tensor, mask: Tensor | None) -> Tensor:
    # The matrix-product form of |a - b|² cancels: at coordinates of 1000 it is off by 0.7 in float32.
    if centres.device.type == "cpu":
        distances = torch.cdist(centres, points, compute_mode="donot_use_mm_for_euclid_dist")
    else:
        distances = _distances_by_axes(centres, points)
    return distances if mask is None else distances.masked_fill(~mask.unsqueeze(1), torch.inf)


def _distances_by_axes(centres: Tensor, points: Tensor) -> Tensor:
    """The same in a few elementwise passes, with twice the memory.

    On CUDA, cdist starts a block of 256 threads for each pair of points, of which three have an axis to work on
    (torch's DistanceKernel.cu): 13 million blocks for a car.
    """
    squares: Tensor | None = None
    for centre, point in zip(centres.unbind(-1), points.unbind(-1), strict=True):
        apart = centre.unsqueeze(-1) - point.unsqueeze(-2)
        squares = apart.square_() if squares is None else squares.addcmul_(apart, apart)
    assert squares is not None
    return squares.sqrt_()


class SupernodePooling(nn.Module):
    """Gather the geometry around each supernode into one token.

    The message of an edge is Linear(2d→d), GELU, Linear(d→d) on [e(source), e(supernode)]; a supernode
    takes the mean of its messages, its own among them, and Linear(2d→d) of [mean, e(supernode)].
    184,896 parameters at dim 192. Source: UPT, Alkin et al. 2024 (arXiv 2402.12365), section 3.

    Args:
        dim: channels of an embedding and of a token.
        radius: edges come from points within it, in the unit of the points.
        max_neighbours: and only from the nearest so many.
    """

    def __init__(self, dim: int, radius: float, max_neighbours: int) -> None:
        super().__init__()
        self.radius, self.max_neighbours = radius, max_neighbours
        self.message_in = nn.Linear(2 * dim, dim)
        self.message_out = nn.Linear(dim, dim)
        self.combine = nn.Linear(2 * dim, dim)

    def forward(self, points: Tensor, embedding: Tensor, supernodes: int, mask: Tensor | None = None) -> Tensor:
        """Pool points (batch, points, axes) with their e(x) (batch, points, dim) into (batch, supernodes, dim).

        The first `supernodes` points become supernodes. mask: (batch, points), False for padding; None: no padding.
        """
        centres = points[:, :supernodes]
        neighbours = radius_neighbours(points, centres, self.radius, self.max_neighbours, mask=mask)
        mean = self.message_out(self._mean_activation(embedding, embedding[:, :supernodes], neighbours))
        out: Tensor = self.combine(torch.cat((mean, embedding[:, :supernodes].to(mean.dtype)), dim=-1))
        return out

    def _mean_activation(self, sources: Tensor, supernodes: Tensor, neighbours: Neighbours) -> Tensor:
        """Mean over the edges of GELU(Linear([e(source), e(supernode)])): (batch, supernodes, dim)."""
        # W·[s, t] + b = W_s·s + (W_t·t + b): each half is applied once per point and then gathered, in place
        # of once per edge, which saves a factor of max_neighbours. The second Linear comes after the mean,
        # of which it is a linear function: the mean of Linear(g) is Linear(mean of g), exactly.
        from_source, from_supernode = self.message_in.weight.chunk(2, dim=1)
        source_part = F.linear(sources, from_source)
        supernode_part = F.linear(supernodes, from_supernode, self.message_in.bias)

        batch, count, dim = source_part.shape
        first_row = torch.arange(0, batch * count, count, device=source_part.device).view(batch, 1, 1)
        rows, found = neighbours.indices + first_row, neighbours.found
        total = summed_activation(
            source_part.reshape(batch * count, dim),
            supernode_part.reshape(-1, dim),
            rows.flatten(0, 1),
            found.flatten(0, 1),
        )
        return total.view(supernode_part.shape) / found.sum(dim=-1, keepdim=True).clamp(min=1)
