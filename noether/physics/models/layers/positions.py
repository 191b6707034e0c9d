"""The sine-cosine embedding of positions, and rotary position embedding (RoPE)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

FREQUENCY_BASE = 10_000.0


def sincos_embedding(points: Tensor, dim: int) -> Tensor:
    """Embed positions as sines and cosines of fixed frequencies.

    An axis becomes [sin(x·ω), cos(x·ω)] with ω_k = 10000^(−2k/m) for k < m/2, where m is the largest even number
    ≤ dim/axes. The axes are concatenated and zero-padded to `dim`.

    points: (..., axes), positions of about 0..1000, which these frequencies can distinguish.
    Returned is (..., dim), in float64 if `points` are float64, else in float32.
    ValueError: `dim` is too small for one sine and one cosine per axis.
    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.5, applied to each axis.
    """
    phases = _phases(points, dim)
    waves = torch.cat((phases.sin(), phases.cos()), dim=-1).flatten(-2)
    return F.pad(waves, (0, dim - waves.shape[-1]))


def rotary_table(points: Tensor, head_dim: int) -> Tensor:
    """Return the cosine and sine of the angle by which RoPE rotates each pair of a head's channels at each position.

    The angles are the phases x·ω of `sincos_embedding` for a width of `head_dim`, axis after axis. Pairs that are left
    over have the angle 0. For example, head_dim 64 and three axes give m = 20, so 30 angles and 2 zeros.
    A table depends only on the positions, so compute it once per forward pass and share it between all blocks.

    points: (..., axes) positions; head_dim: channels of one attention head.
    Returned is (..., head_dim/2, 2): cosine and sine, in float64 if `points` are float64, else in float32.
    ValueError: `head_dim` is odd, or too small for one angle per axis.
    Source: Su et al. 2021 (arXiv 2104.09864), with one group of angles per axis.
    """
    if head_dim % 2:
        raise ValueError(f"RoPE rotates pairs of channels: head_dim must be even, not {head_dim}")
    angles = _phases(points, head_dim).flatten(-2)
    angles = F.pad(angles, (0, head_dim // 2 - angles.shape[-1]))
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate each adjacent pair of channels (0, 1), (2, 3), … of `x` by its point's angle, in the table's precision.

    x: (batch, points, ..., head_dim), typically (batch, points, heads, head_dim). The result has its shape and dtype.
    table: (batch, points, head_dim/2, 2) from `rotary_table`.
    """
    between = (1,) * (x.dim() - table.dim() + 1)
    table = table.reshape(*table.shape[:-2], *between, *table.shape[-2:])
    # Both forms compute the same product. In eager mode, the complex form is a single pass over memory, which is five
    # times as fast as the real form on a CPU. The compiler cannot generate complex code, but it fuses the real form.
    rotated = _rotate_real(x, table) if torch.compiler.is_compiling() else _rotate_complex(x, table)
    return rotated.to(x.dtype)


def rotate_first(fused: Tensor, table: Tensor, rotated: int) -> tuple[Tensor, ...]:
    """Split a fused projection into its parts, and rotate the first `rotated` parts as `rotate` does.

    fused: (batch, points, parts, heads, head_dim), with parts such as queries, keys and values.
    table: (batch, points, head_dim/2, 2) from `rotary_table`.
    """
    if fused.dtype == table.dtype and not table.requires_grad and not torch.compiler.is_compiling():
        parts: tuple[Tensor, ...] = _RotateFirst.apply(fused, table, rotated)  # type: ignore[no-untyped-call]
        return parts
    turned, others = fused.split((rotated, fused.shape[2] - rotated), dim=2)
    return (*rotate(turned, table).unbind(2), *others.unbind(2))


class _RotateFirst(torch.autograd.Function):
    """The function of `rotate_first`; its backward pass writes all gradients to one tensor instead of two copies."""

    @staticmethod
    def forward(ctx: Any, fused: Tensor, table: Tensor, rotated: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(table)
        ctx.shape, ctx.rotated = fused.shape, rotated
        turned = _rotate_complex(fused[:, :, :rotated], table[:, :, None, None])
        return (*turned.unbind(2), *fused[:, :, rotated:].unbind(2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (table,) = ctx.saved_tensors
        back = torch.view_as_complex(table).conj().resolve_conj()[:, :, None]
        together = table.new_empty(ctx.shape)
        for part, gradient in enumerate(gradients):
            into = together[:, :, part]
            if part < ctx.rotated:
                pairs = torch.view_as_complex(gradient.unflatten(-1, (-1, 2)))
                torch.mul(pairs, back, out=torch.view_as_complex(into.unflatten(-1, (-1, 2))))
            else:
                into.copy_(gradient)
        return together, None, None


def _rotate_real(x: Tensor, table: Tensor) -> Tensor:
    cosine, sine = table.unbind(-1)
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    pairs = (first * cosine - second * sine, first * sine + second * cosine)
    return torch.stack(pairs, dim=-1).flatten(-2)


def _rotate_complex(x: Tensor, table: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.to(table.dtype).unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.view_as_complex(table)).flatten(-2)


def _phases(points: Tensor, width: int) -> Tensor:
    """Return x·ω, (..., axes, m/2), for points x (..., axes), where m is the largest even number ≤ width/axes."""
    axes = points.shape[-1]
    m = width // (2 * axes) * 2
    if m == 0:
        raise ValueError(f"a width of {width} has no room for {axes} axes: at least {2 * axes} is needed")
    # Half precision can represent neither 1000.3 nor a frequency's phase. The product is elementwise, because autocast
    # would lower the precision of a matrix product.
    points = points.to(torch.promote_types(points.dtype, torch.float32))
    k = torch.arange(m // 2, dtype=points.dtype, device=points.device)
    return points.unsqueeze(-1) * FREQUENCY_BASE ** (-2 * k / m)
