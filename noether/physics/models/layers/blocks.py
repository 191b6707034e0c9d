"""Transformer and perceiver blocks: attention with rotary positions, MLP, conditioning, and initial weights."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noether.core.models.build import Recomputable, recomputed
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
    dim: channels of a token; heads: attention heads, which must divide `dim`.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)

    def with_keys_values(self, x: Tensor, table: Tensor, mask: Tensor | None = None) -> tuple[Tensor, KeysValues]:
        """Attend: (batch, tokens, dim), their rotary table and mask to the same; and keys and values for others."""
        fused = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = rotate_first(fused, table, 2)
        attended_to = _by_head(keys, values, mask)
        return self.output(_attend(queries, attended_to)), attended_to

    def keys_values(self, context: Tensor, table: Tensor, mask: Tensor | None = None) -> KeysValues:
        """Keys and values of tokens (batch, tokens, dim) for others to read: the same weights, without queries."""
        dim = self.output.in_features
        weight, bias = self.query_key_value.weight[dim:], self.query_key_value.bias[dim:]
        return _split_keys_values(F.linear(context, weight, bias), self.heads, table, mask)

    def read(self, x: Tensor, attended_to: KeysValues, table: Tensor) -> Tensor:
        """Attend to what other tokens made, and not to each other: (batch, queries, dim) to (batch, queries, dim)."""
        dim = self.output.in_features
        queries = F.linear(x, self.query_key_value.weight[:dim], self.query_key_value.bias[:dim])
        out: Tensor = self.output(_attend(rotate(queries.unflatten(-1, (self.heads, -1)), table), attended_to))
        return out


class CrossAttention(nn.Module):
    """Tokens attend to the tokens of another set and not to each other.

    Keys and values are made apart from the queries, so that many chunks of queries can share them.
    dim: channels of a token, in both sets; heads: attention heads, which must divide `dim`.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)

    def keys_values(self, context: Tensor, table: Tensor, mask: Tensor | None = None) -> KeysValues:
        """Keys and values of the attended set: (batch, tokens, dim), its rotary table and mask (batch, tokens)."""
        return _split_keys_values(self.key_value(context), self.heads, table, mask)

    def read(self, x: Tensor, attended_to: KeysValues, table: Tensor) -> Tensor:
        """Attend: (batch, queries, dim) and the queries' rotary table to (batch, queries, dim)."""
        queries = self.query(x).unflatten(-1, (self.heads, -1))
        out: Tensor = self.output(_attend(rotate(queries, table), attended_to))
        return out


def _split_keys_values(fused: Tensor, heads: int, table: Tensor, mask: Tensor | None) -> KeysValues:
    keys, values = rotate_first(fused.unflatten(-1, (2, heads, -1)), table, 1)
    return _by_head(keys, values, mask)


def _by_head(keys: Tensor, values: Tensor, mask: Tensor | None) -> KeysValues:
    over_queries = None if mask is None else mask[:, None, None, :]
    return KeysValues(keys.transpose(1, 2), values.transpose(1, 2), over_queries)


def _attend(queries: Tensor, attended_to: KeysValues) -> Tensor:
    """softmax(q·k / √head_dim)·v: queries (batch, tokens, heads, head_dim) to (batch, tokens, dim)."""
    attended = F.scaled_dot_product_attention(queries.transpose(1, 2), *attended_to)
    return attended.transpose(1, 2).flatten(2)


MLP_RATIO = 4


class MLP(nn.Module):
    """Linear, GELU, Linear on the last axis: `dim` to `hidden` to `out` channels, `dim` where that is not given."""

    def __init__(self, dim: int, hidden: int, out: int | None = None) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden)
        self.activation = nn.GELU()
        self.contract = nn.Linear(hidden, out or dim)

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim) to (..., out)."""
        out: Tensor = self.contract(self.activation(self.expand(x)))
        return out


Modulations = tuple[tuple[Tensor, Tensor], ...]
"""Shift and scale, each (batch, 1, dim), for each norm of a block."""


class ParameterEmbedding(MLP):
    """Embeds the standardised parameters of a case, {key in the batch: components}: Linear, GELU, Linear."""

    def __init__(self, parameters: dict[str, int], dim: int) -> None:
        super().__init__(sum(parameters.values()), dim, dim)
        self.keys = tuple(parameters)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        """The embedding (batch, 1, dim) of parameters (batch,) or (batch, components). ValueError: one is absent."""
        if absent := [key for key in self.keys if key not in batch]:
            raise ValueError(f"the model reads the parameters {', '.join(self.keys)}: no {', '.join(absent)}")
        values = torch.cat([batch[key].flatten(1) if batch[key].ndim > 1 else batch[key][:, None]
                            for key in self.keys], dim=1)  # fmt: skip
        return super().forward(values.to(self.expand.weight.dtype)).unsqueeze(1)


class Modulation(nn.Linear):
    """Turns a case's embedding into a shift and a scale for each of a block's norms; it begins with none.

    Adaptive layer norm of DiT, Peebles and Xie 2022 (arXiv 2212.09748), without its gates.
    """

    def __init__(self, dim: int, norms: int) -> None:
        super().__init__(dim, 2 * norms * dim)
        self.norms = norms

    def forward(self, condition: Tensor) -> Modulations:  # type: ignore[override]
        """(batch, 1, dim) to shift and scale for each norm."""
        parts = super().forward(condition).chunk(2 * self.norms, dim=-1)
        return tuple(zip(parts[::2], parts[1::2], strict=True))


def modulated(norm: nn.Module, x: Tensor, modulations: Modulations | None, number: int = 0) -> Tensor:
    """LayerNorm(x), shifted and scaled by the block's norm of that number where the block is conditioned."""
    normed: Tensor = norm(x)
    if modulations is None:
        return normed
    shift, scale = modulations[number]
    return normed * (1 + scale) + shift


class AttentionBlock(Recomputable):
    """A pre-norm block: x += Attention(LN x); x += MLP(LN x).

    dim: channels of a token.
    attention: has `with_keys_values` and `read`, as SelfAttention has them; `keys_values` where it is asked for them.
    The `table` of every call is the tokens' rotary table, or None where positions turn nothing in it.
    mlp_ratio: hidden over outer width of the MLP.
    conditioned: whether the parameters of a case shift and scale the norms; then `condition` (batch, 1, dim) is given
    to every call.
    norms_context: whether what is read has a norm of its own.
    """

    def __init__(
        self, dim: int, attention: Any, mlp_ratio: int, *, conditioned: bool, norms_context: bool = False
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.context_norm = nn.LayerNorm(dim) if norms_context else None
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim, mlp_ratio * dim)
        self.modulation = Modulation(dim, 2) if conditioned else None

    def forward(self, x: Tensor, table: Any, mask: Tensor | None = None, condition: Tensor | None = None) -> Tensor:
        """(batch, tokens, dim), the tokens' rotary table and mask to (batch, tokens, dim)."""
        out: Tensor = self.with_keys_values(x, table, mask, condition)[0]
        return out

    @recomputed
    def with_keys_values(
        self, x: Tensor, table: Any, mask: Tensor | None = None, condition: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """`forward`, and what other tokens need to `read` these."""
        how = self._modulations(condition)
        attended, made = self.attention.with_keys_values(modulated(self.attention_norm, x, how), table, mask)
        return self._finish(x, attended, how), made

    @recomputed
    def read(self, x: Tensor, attended_to: Any, table: Any, condition: Tensor | None = None) -> Tensor:
        """The block with attention to other tokens in place of each other: (batch, queries, dim) to the same."""
        how = self._modulations(condition)
        return self._finish(x, self.attention.read(modulated(self.attention_norm, x, how), attended_to, table), how)

    @recomputed
    def keys_values(
        self, context: Tensor, table: Tensor, mask: Tensor | None = None, condition: Tensor | None = None
    ) -> KeysValues:
        """Return what other tokens need to `read` these: (batch, tokens, dim), their rotary table and mask."""
        if self.context_norm is None:
            normed = modulated(self.attention_norm, context, self._modulations(condition))
        else:
            normed = self.context_norm(context)
        made: KeysValues = self.attention.keys_values(normed, table, mask)
        return made

    def _finish(self, x: Tensor, attended: Tensor, how: Modulations | None) -> Tensor:
        x = x + attended
        out: Tensor = x + self.mlp(modulated(self.mlp_norm, x, how, 1))
        return out

    def _modulations(self, condition: Tensor | None) -> Modulations | None:
        return None if self.modulation is None else self.modulation(condition)


class TransformerBlock(AttentionBlock):
    """A block of self-attention.

    At dim 192 the 444,864 parameters of a ViT-tiny block (Dosovitskiy et al. 2020, arXiv 2010.11929).
    """

    def __init__(self, dim: int, heads: int, *, conditioned: bool = False) -> None:
        super().__init__(dim, SelfAttention(dim, heads), MLP_RATIO, conditioned=conditioned)


class PerceiverBlock(AttentionBlock):
    """Queries `read` a latent set: q += CrossAttention(LN q, LN z); q += MLP(LN q).

    Queries do not see each other, so each one's result is independent of which others are asked. 445,248 parameters at
    dim 192. Source: Jaegle et al. 2021 (arXiv 2103.03206), the decoding half.
    """

    def __init__(self, dim: int, heads: int, *, conditioned: bool = False) -> None:
        super().__init__(dim, CrossAttention(dim, heads), MLP_RATIO, conditioned=conditioned, norms_context=True)


def initialise_linear(module: nn.Module) -> None:
    """Truncated normal of standard deviation 0.02 and zero bias; for `nn.Module.apply`.

    Source: the ViT recipe (arXiv 2010.11929). Other modules are left as torch made them, and modulations start at 0:
    a network begins as if it had none.
    """
    if isinstance(module, nn.Linear):
        if isinstance(module, Modulation):
            nn.init.zeros_(module.weight)
        else:
            nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


DIGITS = "norm_eps_digits"


def publish_norms(model: nn.Module) -> None:
    """Give the layer norms of a new model the eps 1e-6, and its weights a buffer that says so."""
    model.register_buffer(DIGITS, torch.tensor(6))
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
