"""Attention among a few physical states in place of all points: Transolver's slices."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noether.models.layers.attention import head_width

EPSILON = 1e-5
FIRST_TEMPERATURE = 0.5


class SliceAttention(nn.Module):
    """Points are dealt softly to slices, the slices' means attend to each other, and points read them back.

    With x_h a head's share of one projection and f_h of another: w = softmax(W·x_h / τ) over the slices,
    token_g = Σ w_g·f_h / (Σ w_g + 1e-5) over the points, attention among the tokens, and Σ_g w_g·token_g for
    each point. W and the tokens' projections are shared by the heads; each head has its own τ. The cost is
    linear in the points. Source: Transolver, Wu et al. 2024 (arXiv 2402.02366), section 3.2.

    Args:
        dim: channels of a point.
        heads: attention heads; must divide `dim`.
        slices: slices of a head.

    Raises:
        ValueError: `heads` does not divide `dim`.
    """

    def __init__(self, dim: int, heads: int, slices: int) -> None:
        super().__init__()
        head_dim = head_width(dim, heads)
        self.heads = heads
        self.assigned = nn.Linear(dim, dim)
        self.features = nn.Linear(dim, dim)
        self.slice = nn.Linear(head_dim, slices)
        self.temperature = nn.Parameter(torch.full((heads,), FIRST_TEMPERATURE))
        self.query = nn.Linear(head_dim, head_dim, bias=False)
        self.key = nn.Linear(head_dim, head_dim, bias=False)
        self.value = nn.Linear(head_dim, head_dim, bias=False)
        self.output = nn.Linear(dim, dim)

    def slice_weights(self, x: Tensor) -> Tensor:
        """How much of each point belongs to each slice: (batch, points, dim) to (batch, heads, points, slices)."""
        out: Tensor = (self.slice(self._by_head(self.assigned(x))) / self.temperature.view(-1, 1, 1)).softmax(dim=-1)
        return out

    def slice_tokens(self, x: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """The slices' tokens after attention: (batch, heads, slices, head_dim).

        Args:
            x: (batch, points, dim).
            weights: `slice_weights` of the same points.
            mask: (batch, points), False for padding, which counts nothing; None: no padding.
        """
        if mask is not None:
            weights = weights * mask[:, None, :, None]
        total = weights.sum(dim=2).unsqueeze(-1)
        tokens = weights.transpose(-1, -2) @ self._by_head(self.features(x)) / (total + EPSILON)
        return F.scaled_dot_product_attention(self.query(tokens), self.key(tokens), self.value(tokens))

    def scatter(self, weights: Tensor, tokens: Tensor) -> Tensor:
        """What each point reads of the slices' tokens: (batch, points, dim)."""
        out: Tensor = self.output((weights @ tokens).transpose(1, 2).flatten(2))
        return out

    def _by_head(self, x: Tensor) -> Tensor:
        out: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return out
