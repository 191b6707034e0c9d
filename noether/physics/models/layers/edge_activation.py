"""The activation on the edges of a graph, summed at each centre, without keeping the edges."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

NUMBERS_OF_A_BLOCK = 192 * 1024
"""For each thread: two such blocks of float32 fit the 2 MiB second-level cache of a server's core."""


def summed_activation(sources: Tensor, centres: Tensor, rows: Tensor, found: Tensor) -> Tensor:
    """Sums GELU(source + centre) over the edges into each centre.

    Args:
        sources: (points, dim), what an edge takes from its source.
        centres: (centres, dim), what it takes from its centre.
        rows: (centres, slots) int64, the source of each edge, a row of `sources`.
        found: (centres, slots) bool, False where a slot has no edge.

    Returns:
        (centres, dim).
    """
    tracing = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    if sources.device.type == "cpu" and sources.dtype in (torch.float32, torch.float64) and not tracing:
        total: Tensor = _BlockedSum.apply(sources, centres, rows, found)  # type: ignore[no-untyped-call]
        return total
    # An embedding look-up, for its gradient on CUDA: it sorts, where that of index_select adds atomically
    # and differs from run to run.
    activation = F.gelu(F.embedding(rows, sources) + centres.unsqueeze(1))
    # A product with ones and zeros: sums what was found and drops padding in one pass, exact in bfloat16.
    return (found.to(activation.dtype).unsqueeze(-2) @ activation).squeeze(-2)


class _BlockedSum(torch.autograd.Function):
    """Makes the edges of some centres at a time, in memory that stays in the cache, and again in the backward pass.

    There are many times as many edges as points: kept as a whole, they are most of a pooling's memory, and moving
    them most of its time.
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
"""GELU and its derivative are exactly 0 there."""


def _edges(sources: Tensor, centres: Tensor, rows: Tensor, found: Tensor) -> Any:
    """Yields centres (a slice) and what goes into their edges' GELU (centres, slots, dim), in the same memory."""
    # Slots are filled from the first on, so that those which no centre needs are the last ones.
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
