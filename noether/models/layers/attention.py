"""Which tokens look at which: multi-head self-attention and cross-attention with rotary positions."""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from noether.models.layers.positions import rotate


class KeysValues(NamedTuple):
    """What queries attend to, each (batch, heads, tokens, head_dim); keys are already rotated."""

    keys: Tensor
    values: Tensor


class SelfAttention(nn.Module):
    """Every token attends to every token of its sample.

    The same function as `torch.nn.MultiheadAttention`, with RoPE on queries and keys.

    Args:
        dim: channels of a token.
        heads: attention heads; must divide `dim`.

    Raises:
        ValueError: `heads` does not divide `dim`.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_width(dim, heads)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, table: Tensor | None = None) -> Tensor:
        """Attend: (batch, tokens, dim) and the tokens' rotary table to (batch, tokens, dim)."""
        fused = self.query_key_value(x).unflatten(-1, (3, self.heads, self.head_dim))
        queries_keys, values = fused.split((2, 1), dim=2)
        if table is not None:
            queries_keys = rotate(queries_keys, table)
        queries, keys = queries_keys.unbind(2)
        attended_to = KeysValues(keys.transpose(1, 2), values.squeeze(2).transpose(1, 2))
        return self.output(_attend(queries, attended_to))


class CrossAttention(nn.Module):
    """Tokens attend to the tokens of another set and not to each other.

    Keys and values are made apart from the queries, so that many chunks of queries can share them.

    Args:
        dim: channels of a token, in both sets.
        heads: attention heads; must divide `dim`.

    Raises:
        ValueError: `heads` does not divide `dim`.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_width(dim, heads)
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)

    def keys_values(self, context: Tensor, table: Tensor | None = None) -> KeysValues:
        """Keys and values of the attended set: (batch, tokens, dim) and its rotary table."""
        keys, values = self.key_value(context).unflatten(-1, (2, self.heads, self.head_dim)).unbind(2)
        if table is not None:
            keys = rotate(keys, table)
        return KeysValues(keys.transpose(1, 2), values.transpose(1, 2))

    def forward(self, x: Tensor, attended_to: KeysValues, table: Tensor | None = None) -> Tensor:
        """Attend: (batch, queries, dim) and the queries' rotary table to (batch, queries, dim)."""
        queries = self.query(x).unflatten(-1, (self.heads, self.head_dim))
        if table is not None:
            queries = rotate(queries, table)
        return self.output(_attend(queries, attended_to))


def head_width(dim: int, heads: int) -> int:
    """Channels of one head.

    Raises:
        ValueError: `heads` does not divide `dim`.
    """
    if heads < 1 or dim % heads:
        raise ValueError(f"dim must be a multiple of heads: dim={dim}, heads={heads}")
    return dim // heads


def _attend(queries: Tensor, attended_to: KeysValues) -> Tensor:
    """softmax(q·k / √head_dim)·v: queries (batch, tokens, heads, head_dim) to (batch, tokens, dim)."""
    attended = F.scaled_dot_product_attention(queries.transpose(1, 2), *attended_to)
    return attended.transpose(1, 2).flatten(2)
