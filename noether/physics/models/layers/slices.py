"""Attention among a few physical states in place of all points: Transolver's slices."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPSILON = 1e-5
FIRST_TEMPERATURE = 0.5


class SliceAttention(nn.Module):
    """Points are assigned softly to slices, the slices' means attend to each other, and points read them back.

    With x_h a head's share of one projection and f_h of another: w = softmax(W·x_h / τ) over the slices,
    token_g = Σ w_g·f_h / (Σ w_g + 1e-5) over the points, attention among the tokens, and Σ_g w_g·token_g for
    each point. W and the tokens' projections are shared by the heads; each head has its own τ. The cost is
    linear in the points. Source: Transolver, Wu et al. 2024 (arXiv 2402.02366), section 3.2.

    Args:
        dim: channels of a point.
        heads: attention heads; must divide `dim`.
        slices: slices of a head.
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

    def slice_weights(self, x: Tensor) -> Tensor:
        """How much of each point belongs to each slice: (batch, points, dim) to (batch, heads, points, slices)."""
        temperature = self.temperature.view(-1, 1, 1)
        with torch.autocast(x.device.type, enabled=False):
            # The temperature divides weights in place of logits, of which there are as many as points.
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
        """The slices' tokens after attention, (batch, heads, slices, head_dim), of points and their `slice_weights`.

        x: (batch, points, dim). mask: (batch, points), False for padding, which counts nothing; None: no padding.
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
        """What each point reads of the slices' tokens: (batch, points, dim)."""
        if self._joined:
            output = self.output.weight.unflatten(1, (self.heads, -1)).permute(1, 2, 0)
            return torch.baddbmm(self.output.bias, self._of_points(weights), (tokens @ output).flatten(1, 2))
        read: Tensor = self.output((weights @ tokens).transpose(1, 2).flatten(2))
        return read

    @property
    def _joined(self) -> bool:
        """Whether a head's projections are joined with what follows them: then nothing is laid out by head.

        Σ_n w_n (F x_n) = F Σ_n w_n x_n, and likewise before and after it, so that each pass over the points is one
        matrix product of width heads · slices. That is less arithmetic where there are no more slices than channels.
        """
        return self.slice.out_features <= self.slice.in_features

    def _by_head(self, x: Tensor) -> Tensor:
        by_head: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return by_head

    @staticmethod
    def _of_points(weights: Tensor) -> Tensor:
        """(batch, heads, points, slices) to (batch, points, heads · slices): a view of what `slice_weights` made."""
        return weights.transpose(1, 2).flatten(2)
