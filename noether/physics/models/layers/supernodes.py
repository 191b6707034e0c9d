"""Radius search, and pooling of geometry points into supernodes; the edges between them are never all stored."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

MAX_DISTANCES = 2**24
"""The maximum number of distances that the radius search keeps in memory: 64 MiB in float32. The search processes the
centres in parts to stay below this limit, which does not change the result."""
MOST_PARTITIONED = 2048
"""The longest row of distances that NumPy's partition handles on a CPU; for longer rows, topk is faster (by a heap)."""


class Neighbours(NamedTuple):
    """The edges into each centre, from the nearest neighbour to the farthest; slots without an edge are padding."""

    indices: Tensor
    """(batch, centres, slots) int64, the index of each neighbour among the points of its sample."""
    found: Tensor
    """(batch, centres, slots) bool, False for padding. The index of padding is valid but arbitrary."""


def radius_neighbours(
    points: Tensor, centres: Tensor, radius: float, max_neighbours: int, mask: Tensor | None = None
) -> Neighbours:
    """Find the nearest `max_neighbours` points within `radius` (inclusive) of each centre, by brute force.

    The nearest points are taken, not the first by index, so that the result does not depend on the order of the points,
    except among points at exactly the same distance.

    The shapes of the result depend only on the shapes of the inputs, not on their values. Therefore the search can be
    compiled, and an update does not wait for the device to count edges.

    points, centres: (batch, points, axes) and (batch, centres, axes), both float32 or both float64.
    max_neighbours: number of slots per centre; if there are fewer points, it is the number of points.
    mask: (batch, points) bool, False for padding, which is never a neighbour; None: no padding.
    """
    batch, count, _ = points.shape
    slots = min(max_neighbours, count)
    parts: Sequence[Tensor] = (centres,)
    # A program exported for batches of any size cannot branch on the size.
    if not torch.compiler.is_exporting() and batch * count * centres.shape[1] > MAX_DISTANCES:
        parts = centres.split(max(1, MAX_DISTANCES // (batch * count)), dim=1)
    with torch.no_grad():
        nearest = [_smallest(_distances(part, points, mask), slots) for part in parts]
        indices = torch.cat([indices for _, indices in nearest], dim=1)
        found = torch.cat([values for values, _ in nearest], dim=1) <= radius
    return Neighbours(indices, found)


def _smallest(distances: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Return the `slots` smallest distances of each row, in ascending order, and their indices."""
    count = distances.shape[-1]
    tracing = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    if distances.device.type != "cpu" or distances.dtype != torch.float32 or count > MOST_PARTITIONED or tracing:
        values, indices = distances.topk(slots, largest=False)
        return values, indices
    # The bit patterns of positive floats have the order of the floats, so one integer can encode distance and index.
    # NumPy partitions such integers with vector instructions, in a third of topk's time.
    keys = distances.contiguous().view(torch.int32).to(torch.int64)
    array = keys.bitwise_left_shift_(32).bitwise_or_(torch.arange(count)).numpy()
    if slots < count:
        array.partition(slots - 1, axis=-1)
    chosen = torch.from_numpy(np.sort(array[..., :slots], axis=-1))
    return chosen.bitwise_right_shift(32).to(torch.int32).view(torch.float32), chosen.bitwise_and(0xFFFFFFFF)


def _distances(centres: Tensor, points: Tensor, mask: Tensor | None) -> Tensor:
    # A matrix product for |a - b|² would suffer from cancellation: in float32, the error is 0.7 at coordinates of 1000.
    if centres.device.type == "cpu":
        distances = torch.cdist(centres, points, compute_mode="donot_use_mm_for_euclid_dist")
    else:
        distances = _distances_by_axes(centres, points)
    return distances if mask is None else distances.masked_fill(~mask.unsqueeze(1), torch.inf)


def _distances_by_axes(centres: Tensor, points: Tensor) -> Tensor:
    """Compute the distances with a few elementwise operations, which need twice the memory of cdist.

    On CUDA, cdist starts a block of 256 threads for each pair of points, 13 million blocks for a car, but only three
    threads of a block have an axis to work on (torch's DistanceKernel.cu).
    """
    squares: Tensor | None = None
    for centre, point in zip(centres.unbind(-1), points.unbind(-1), strict=True):
        apart = centre.unsqueeze(-1) - point.unsqueeze(-2)
        squares = apart.square_() if squares is None else squares.addcmul_(apart, apart)
    assert squares is not None
    return squares.sqrt_()


class SupernodePooling(nn.Module):
    """Pooling of the geometry around each supernode into one token.

    The edges of a supernode come from the nearest `max_neighbours` points within `radius` (in the unit of the points),
    including itself. An edge's message is Linear(2d→d), GELU, Linear(d→d) of [e(source), e(supernode)]. A supernode's
    token is Linear(2d→d) of [mean of its messages, e(supernode)]. The layer has 184,896 parameters at dim 192.
    Source: UPT, Alkin et al. 2024 (arXiv 2402.12365), section 3.
    """

    def __init__(self, dim: int, radius: float, max_neighbours: int) -> None:
        super().__init__()
        self.radius, self.max_neighbours = radius, max_neighbours
        self.message_in = nn.Linear(2 * dim, dim)
        self.message_out = nn.Linear(dim, dim)
        self.combine = nn.Linear(2 * dim, dim)

    def forward(self, points: Tensor, embedding: Tensor, supernodes: int, mask: Tensor | None = None) -> Tensor:
        """Pool points (batch, points, axes), with their embedding (batch, points, dim), to (batch, supernodes, dim).

        The first `supernodes` points become supernodes. mask: (batch, points), False for padding; None: no padding.
        """
        indices, found = radius_neighbours(points, points[:, :supernodes], self.radius, self.max_neighbours, mask=mask)
        centres = embedding[:, :supernodes]
        # Because W·[s, t] + b = W_s·s + (W_t·t + b), each half is applied once per point instead of once per edge,
        # which saves a factor of max_neighbours; the results are then gathered. The second Linear is applied after
        # the mean, because the mean of Linear(g) is exactly Linear(mean of g).
        from_source, from_supernode = self.message_in.weight.chunk(2, dim=1)
        source_part = F.linear(embedding, from_source)
        supernode_part = F.linear(centres, from_supernode, self.message_in.bias)
        batch, count, _ = source_part.shape
        first_row = torch.arange(0, batch * count, count, device=source_part.device).view(batch, 1, 1)
        rows = (indices + first_row).flatten(0, 1)
        total = summed_activation(source_part.flatten(0, 1), supernode_part.flatten(0, 1), rows, found.flatten(0, 1))
        mean = self.message_out(total.view(supernode_part.shape) / found.sum(dim=-1, keepdim=True).clamp(min=1))
        out: Tensor = self.combine(torch.cat((mean, embedding[:, :supernodes].to(mean.dtype)), dim=-1))
        return out


NUMBERS_OF_A_BLOCK = 192 * 1024
"""Number of values in a thread's block of edges. Two such blocks in float32 fit the 2 MiB L2 cache of a server core."""


def summed_activation(sources: Tensor, centres: Tensor, rows: Tensor, found: Tensor) -> Tensor:
    """Return the sum of GELU(source + centre) over the edges into each centre, (centres, dim).

    sources: (points, dim), the part of an edge's message that depends on the source.
    centres: (centres, dim), the part that depends on the centre.
    rows: (centres, slots) int64, the source of each edge as a row of `sources`.
    found: (centres, slots) bool, False if a slot has no edge.
    """
    tracing = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    if sources.device.type == "cpu" and sources.dtype in (torch.float32, torch.float64) and not tracing:
        total: Tensor = _BlockedSum.apply(sources, centres, rows, found)  # type: ignore[no-untyped-call]
        return total
    # This is an embedding look-up, whose gradient on CUDA sorts and is reproducible. The gradient of index_select
    # adds atomically and differs from run to run.
    activation = F.gelu(F.embedding(rows, sources) + centres.unsqueeze(1))
    # A matrix product with ones and zeros sums the edges and drops padding in one pass; it is exact in bfloat16.
    return (found.to(activation.dtype).unsqueeze(-2) @ activation).squeeze(-2)


class _BlockedSum(torch.autograd.Function):
    """Sum over edges in blocks of centres that fit in the cache; the backward pass computes the edges again.

    There are many times more edges than points. If all edges were stored at once, they would need most of the memory
    of a pooling, and moving them would take most of its time.
    """

    @staticmethod
    def forward(ctx: Any, sources: Tensor, centres: Tensor, rows: Tensor, found: Tensor) -> Tensor:
        ctx.save_for_backward(sources, centres, rows, found)
        total = torch.empty_like(centres)
        for block, edges in _edges(sources, centres, rows, found):
            torch.ops.aten.gelu.out(edges, out=edges)
            torch.sum(edges, dim=1, out=total[block])
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        sources, centres, rows, found = ctx.saved_tensors
        of_sources, of_centres = torch.zeros_like(sources), torch.empty_like(centres)
        scratch: Tensor | None = None
        for block, edges in _edges(sources, centres, rows, found):
            scratch = torch.empty_like(edges) if scratch is None else scratch
            own = scratch[: len(edges)]
            own.copy_(gradient[block].unsqueeze(1).expand_as(own))
            torch.ops.aten.gelu_backward.grad_input(own, edges, grad_input=own)
            torch.sum(own, dim=1, out=of_centres[block])
            of_sources.index_add_(0, rows[block, : edges.shape[1]].reshape(-1), own.flatten(0, 1))
        return of_sources, of_centres, None, None


NOTHING = -1e4
"""A value at which GELU and its derivative are exactly 0."""


def _edges(sources: Tensor, centres: Tensor, rows: Tensor, found: Tensor) -> Any:
    """Yield slices of centres with the GELU inputs (centres, slots, dim) of their edges; all slices share memory."""
    # The neighbours of a centre fill its first slots, so slots that no centre needs are at the end.
    slots = max(1, int(found.sum(dim=1).max())) if found.numel() else rows.shape[1]
    rows, found = rows[:, :slots], found[:, :slots]
    complete = bool(found.all())
    count, dim = centres.shape
    size = max(1, min(count, NUMBERS_OF_A_BLOCK * torch.get_num_threads() // (slots * dim)))
    memory = sources.new_empty(size * slots, dim)
    for start in range(0, count, size):
        block = slice(start, min(start + size, count))
        flat = memory[: (block.stop - start) * slots]
        torch.index_select(sources, 0, rows[block].reshape(-1), out=flat)
        edges = flat.view(-1, slots, dim)
        edges.add_(centres[block].unsqueeze(1))
        if not complete:
            edges.masked_fill_(~found[block].unsqueeze(-1), NOTHING)
        yield block, edges
