"""Multi-head self-attention and cross-attention with rotary positions."""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from noether.physics.models.layers.positions import rotate, rotate_first


class KeysValues(NamedTuple):
    """What queries attend to, each (batch, heads, tokens, head_dim); keys are already rotated."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None = None
    """(batch, 1, 1, tokens) bool, False for padding, which nothing attends to; None: no padding."""


class SelfAttention(nn.Module):
    """Every token attends to every token of its sample.

    The same function as `torch.nn.MultiheadAttention`, with RoPE on queries and keys.

    Args:
        dim: channels of a token.
        heads: attention heads; must divide `dim`.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, table: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Attend: (batch, tokens, dim), the tokens' rotary table and mask to (batch, tokens, dim)."""
        return self.with_keys_values(x, table, mask)[0]

    def with_keys_values(
        self, x: Tensor, table: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, KeysValues]:
        """`forward`, and the keys and values that the tokens made, for others to read."""
        fused = self.query_key_value(x).unflatten(-1, (3, self.heads, self.head_dim))
        queries, keys, values = fused.unbind(2) if table is None else rotate_first(fused, table, 2)
        attended_to = _by_head(keys, values, mask)
        return self.output(_attend(queries, attended_to)), attended_to

    def keys_values(self, context: Tensor, table: Tensor | None = None, mask: Tensor | None = None) -> KeysValues:
        """Keys and values of tokens (batch, tokens, dim) for others to read: the same weights, without queries."""
        dim = self.heads * self.head_dim
        weight, bias = self.query_key_value.weight[dim:], self.query_key_value.bias[dim:]
        return _split_keys_values(F.linear(context, weight, bias), self.heads, table, mask)

    def read(self, x: Tensor, attended_to: KeysValues, table: Tensor | None = None) -> Tensor:
        """Attend to what other tokens made, and not to each other: (batch, queries, dim) to (batch, queries, dim)."""
        dim = self.heads * self.head_dim
        queries = F.linear(x, self.query_key_value.weight[:dim], self.query_key_value.bias[:dim])
        out: Tensor = self.output(_read(queries, self.heads, attended_to, table))
        return out


class CrossAttention(nn.Module):
    """Tokens attend to the tokens of another set and not to each other.

    Keys and values are made apart from the queries, so that many chunks of queries can share them.

    Args:
        dim: channels of a token, in both sets.
        heads: attention heads; must divide `dim`.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)

    def keys_values(self, context: Tensor, table: Tensor | None = None, mask: Tensor | None = None) -> KeysValues:
        """Keys and values of the attended set: (batch, tokens, dim), its rotary table and mask (batch, tokens)."""
        return _split_keys_values(self.key_value(context), self.heads, table, mask)

    def forward(self, x: Tensor, attended_to: KeysValues, table: Tensor | None = None) -> Tensor:
        """Attend: (batch, queries, dim) and the queries' rotary table to (batch, queries, dim)."""
        out: Tensor = self.output(_read(self.query(x), self.heads, attended_to, table))
        return out


def _split_keys_values(fused: Tensor, heads: int, table: Tensor | None, mask: Tensor | None) -> KeysValues:
    fused = fused.unflatten(-1, (2, heads, -1))
    keys, values = fused.unbind(2) if table is None else rotate_first(fused, table, 1)
    return _by_head(keys, values, mask)


def _by_head(keys: Tensor, values: Tensor, mask: Tensor | None) -> KeysValues:
    over_queries = None if mask is None else mask[:, None, None, :]
    return KeysValues(keys.transpose(1, 2), values.transpose(1, 2), over_queries)


def _read(queries: Tensor, heads: int, attended_to: KeysValues, table: Tensor | None) -> Tensor:
    queries = queries.unflatten(-1, (heads, -1))
    return _attend(queries if table is None else rotate(queries, table), attended_to)


def _attend(queries: Tensor, attended_to: KeysValues) -> Tensor:
    """softmax(q·k / √head_dim)·v: queries (batch, tokens, heads, head_dim) to (batch, tokens, dim)."""
    attended = F.scaled_dot_product_attention(queries.transpose(1, 2), *attended_to)
    return attended.transpose(1, 2).flatten(2)
