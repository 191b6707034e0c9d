"""Transformer blocks and perceiver blocks, and their parts: attention, MLP, conditioning, initial weights."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noether.core.models.build import Recomputable, recomputed
from noether.physics.models.layers.positions import rotate, rotate_first


class KeysValues(NamedTuple):
    """The keys and values that queries attend to, each (batch, heads, tokens, head_dim). The keys are rotated."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None = None
    """(batch, 1, 1, tokens) bool, False for padding, to which no query attends; None: no padding."""


class SelfAttention(nn.Module):
    """Attention of every token to every token of the same sample.

    It computes the same as `torch.nn.MultiheadAttention`, but with RoPE on queries and keys.
    dim: channels of a token; heads: number of attention heads, which must divide `dim`.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)

    def with_keys_values(self, x: Tensor, table: Tensor, mask: Tensor | None = None) -> tuple[Tensor, KeysValues]:
        """Return the tokens (batch, tokens, dim) after attention, and the keys and values that `read` takes."""
        fused = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = rotate_first(fused, table, 2)
        attended_to = _by_head(keys, values, mask)
        return self.output(_attend(queries, attended_to)), attended_to

    def keys_values(self, context: Tensor, table: Tensor, mask: Tensor | None = None) -> KeysValues:
        """Return the keys and values that `read` takes, from tokens (batch, tokens, dim)."""
        dim = self.output.in_features
        weight, bias = self.query_key_value.weight[dim:], self.query_key_value.bias[dim:]
        return _split_keys_values(F.linear(context, weight, bias), self.heads, table, mask)

    def read(self, x: Tensor, attended_to: KeysValues, table: Tensor) -> Tensor:
        """Return the queries (batch, queries, dim) after attention to keys and values, but not to each other."""
        dim = self.output.in_features
        queries = F.linear(x, self.query_key_value.weight[:dim], self.query_key_value.bias[:dim])
        out: Tensor = self.output(_attend(rotate(queries.unflatten(-1, (self.heads, -1)), table), attended_to))
        return out


class CrossAttention(nn.Module):
    """Attention of queries to the tokens of another set, but not to each other.

    Keys and values are computed separately from the queries, so that many chunks of queries can share them.
    dim: channels of a token and of a query; heads: number of attention heads, which must divide `dim`.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)

    def keys_values(self, context: Tensor, table: Tensor, mask: Tensor | None = None) -> KeysValues:
        """Return the keys and values of tokens (batch, tokens, dim), given their table and mask (batch, tokens)."""
        return _split_keys_values(self.key_value(context), self.heads, table, mask)

    def read(self, x: Tensor, attended_to: KeysValues, table: Tensor) -> Tensor:
        """Return the queries (batch, queries, dim) after attention, given their rotary table."""
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
    """Return softmax(q·k / √head_dim)·v, (batch, tokens, dim), for queries (batch, tokens, heads, head_dim)."""
    attended = F.scaled_dot_product_attention(queries.transpose(1, 2), *attended_to)
    return attended.transpose(1, 2).flatten(2)


MLP_RATIO = 4


class MLP(nn.Module):
    """Linear, GELU, Linear on the last axis: `dim` to `hidden` to `out` channels (default: `dim`)."""

    def __init__(self, dim: int, hidden: int, out: int | None = None) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden)
        self.activation = nn.GELU()
        self.contract = nn.Linear(hidden, out or dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., dim) to (..., out)."""
        out: Tensor = self.contract(self.activation(self.expand(x)))
        return out


Modulations = tuple[tuple[Tensor, Tensor], ...]
"""The shift and scale of each norm of a block, each (batch, 1, dim)."""


class ParameterEmbedding(MLP):
    """Embedding of a case's standardised parameters by Linear, GELU, Linear. Its argument maps keys to components."""

    def __init__(self, parameters: dict[str, int], dim: int) -> None:
        super().__init__(sum(parameters.values()), dim, dim)
        self.keys = tuple(parameters)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        """Embed parameters, each (batch,) or (batch, components), as (batch, 1, dim). ValueError: one is missing."""
        if absent := [key for key in self.keys if key not in batch]:
            raise ValueError(f"the model reads the parameters {', '.join(self.keys)}: no {', '.join(absent)}")
        values = torch.cat([batch[key].flatten(1) if batch[key].ndim > 1 else batch[key][:, None]
                            for key in self.keys], dim=1)  # fmt: skip
        return super().forward(values.to(self.expand.weight.dtype)).unsqueeze(1)


class Modulation(nn.Linear):
    """Map from the embedding of a case to a shift and a scale, both initially 0, for each norm of a block.

    This is the adaptive layer norm of DiT, Peebles and Xie 2022 (arXiv 2212.09748), without its gates.
    """

    def __init__(self, dim: int, norms: int) -> None:
        super().__init__(dim, 2 * norms * dim)
        self.norms = norms

    def forward(self, condition: Tensor) -> Modulations:  # type: ignore[override]
        """Map a condition (batch, 1, dim) to a shift and a scale for each norm."""
        parts = super().forward(condition).chunk(2 * self.norms, dim=-1)
        return tuple(zip(parts[::2], parts[1::2], strict=True))


def modulated(norm: nn.Module, x: Tensor, modulations: Modulations | None, number: int = 0) -> Tensor:
    """Return LayerNorm(x); if there are modulations, shift and scale it by the modulation with index `number`."""
    normed: Tensor = norm(x)
    if modulations is None:
        return normed
    shift, scale = modulations[number]
    return normed * (1 + scale) + shift


class AttentionBlock(Recomputable):
    """A pre-norm block: x += Attention(LN x); x += MLP(LN x).

    dim: channels of a token.
    attention: a module with methods as in SelfAttention; `keys_values` is needed only by the block's `keys_values`.
    mlp_ratio: hidden width of the MLP divided by its outer width.
    conditioned: whether the parameters of a case shift and scale the norms.
    norms_context: whether the tokens to which queries attend have a separate norm.
    The methods take the tokens' rotary `table`, or None if the attention does not use rotary positions, and
    `condition` (batch, 1, dim), which a conditioned block needs.
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
        """Apply the block to tokens (batch, tokens, dim), given their rotary table and mask."""
        out: Tensor = self.with_keys_values(x, table, mask, condition)[0]
        return out

    @recomputed
    def with_keys_values(
        self, x: Tensor, table: Any, mask: Tensor | None = None, condition: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Return the output of `forward`, and the keys and values with which queries can `read` the tokens x."""
        how = self._modulations(condition)
        attended, made = self.attention.with_keys_values(modulated(self.attention_norm, x, how), table, mask)
        return self._finish(x, attended, how), made

    @recomputed
    def read(self, x: Tensor, attended_to: Any, table: Any, condition: Tensor | None = None) -> Tensor:
        """Apply the block to queries (batch, queries, dim), which attend to other tokens but not to each other."""
        how = self._modulations(condition)
        return self._finish(x, self.attention.read(modulated(self.attention_norm, x, how), attended_to, table), how)

    @recomputed
    def keys_values(
        self, context: Tensor, table: Tensor, mask: Tensor | None = None, condition: Tensor | None = None
    ) -> KeysValues:
        """Return the keys and values with which queries can `read` the tokens `context` (batch, tokens, dim)."""
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

    At dim 192, it has 444,864 parameters, like a block of ViT-tiny (Dosovitskiy et al. 2020, arXiv 2010.11929).
    """

    def __init__(self, dim: int, heads: int, *, conditioned: bool = False) -> None:
        super().__init__(dim, SelfAttention(dim, heads), MLP_RATIO, conditioned=conditioned)


class PerceiverBlock(AttentionBlock):
    """A block in which queries q attend to a latent z: q += CrossAttention(LN q, LN z); q += MLP(LN q).

    Queries do not attend to each other, so the result of a query does not depend on the other queries. The block has
    445,248 parameters at dim 192. Source: the decoder of Jaegle et al. 2021 (arXiv 2103.03206).
    """

    def __init__(self, dim: int, heads: int, *, conditioned: bool = False) -> None:
        super().__init__(dim, CrossAttention(dim, heads), MLP_RATIO, conditioned=conditioned, norms_context=True)


def initialise_linear(module: nn.Module) -> None:
    """Initialise a module, in `nn.Module.apply`: a Linear gets a truncated normal of deviation 0.02 and zero bias.

    Source: the ViT recipe (arXiv 2010.11929). A Modulation gets zeros, so that it has no effect at first. Modules of
    other types keep torch's initialisation.
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
    """Set the eps of a new model's layer norms to 1e-6, and record this value in a buffer of the model."""
    model.register_buffer(DIGITS, torch.tensor(6))
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
