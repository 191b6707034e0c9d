"""The MLP, the transformer and perceiver blocks, and their initial weights."""

from torch import Tensor, nn

from noether.core.models.recompute import Recomputable, recomputed
from noether.physics.models.layers.attention import CrossAttention, KeysValues, SelfAttention
from noether.physics.models.layers.conditioning import Modulation, Modulations, modulated

MLP_RATIO = 4


class MLP(nn.Module):
    """Linear, GELU, Linear on the last axis: `dim` to `hidden` to `dim` channels."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden)
        self.activation = nn.GELU()
        self.contract = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim) to (..., dim)."""
        out: Tensor = self.contract(self.activation(self.expand(x)))
        return out


class TransformerBlock(Recomputable):
    """A pre-norm block: x += SelfAttention(LN x); x += MLP(LN x).

    At dim 192 the 444,864 parameters of a ViT-tiny block (Dosovitskiy et al. 2020, arXiv 2010.11929).

    Args:
        dim: channels of a token.
        heads: attention heads.
        conditioned: whether the parameters of a case shift and scale the norms; then `condition` (batch, 1, dim) is
            given to every call.
    """

    def __init__(self, dim: int, heads: int, *, conditioned: bool = False) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim, MLP_RATIO * dim)
        self.modulation = Modulation(dim, 2) if conditioned else None

    def forward(
        self, x: Tensor, table: Tensor | None = None, mask: Tensor | None = None, condition: Tensor | None = None
    ) -> Tensor:
        """(batch, tokens, dim), the tokens' rotary table and mask to (batch, tokens, dim)."""
        return self.with_keys_values(x, table, mask, condition)[0]

    @recomputed
    def with_keys_values(
        self, x: Tensor, table: Tensor | None = None, mask: Tensor | None = None, condition: Tensor | None = None
    ) -> tuple[Tensor, KeysValues]:
        """`forward`, and what other tokens need to `read` these."""
        how = self._modulations(condition)
        attended, keys_values = self.attention.with_keys_values(modulated(self.attention_norm, x, how), table, mask)
        x = x + attended
        return x + self.mlp(modulated(self.mlp_norm, x, how, 1)), keys_values

    @recomputed
    def keys_values(
        self, context: Tensor, table: Tensor | None = None, mask: Tensor | None = None, condition: Tensor | None = None
    ) -> KeysValues:
        """What other tokens need to `read` these: (batch, tokens, dim), their rotary table and mask."""
        normed = modulated(self.attention_norm, context, self._modulations(condition))
        return self.attention.keys_values(normed, table, mask)

    @recomputed
    def read(
        self, x: Tensor, attended_to: KeysValues, table: Tensor | None = None, condition: Tensor | None = None
    ) -> Tensor:
        """The block with attention to other tokens in place of each other: (batch, queries, dim) to the same."""
        how = self._modulations(condition)
        x = x + self.attention.read(modulated(self.attention_norm, x, how), attended_to, table)
        out: Tensor = x + self.mlp(modulated(self.mlp_norm, x, how, 1))
        return out

    def _modulations(self, condition: Tensor | None) -> Modulations | None:
        return None if self.modulation is None else self.modulation(condition)


class PerceiverBlock(Recomputable):
    """Queries read a latent set: q += CrossAttention(LN q, LN z); q += MLP(LN q).

    Queries do not see each other, so each one's result is independent of which others are asked.
    445,248 parameters at dim 192. Source: Jaegle et al. 2021 (arXiv 2103.03206), the decoding half.
    `conditioned` as of TransformerBlock.
    """

    def __init__(self, dim: int, heads: int, *, conditioned: bool = False) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.context_norm = nn.LayerNorm(dim)
        self.attention = CrossAttention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim, MLP_RATIO * dim)
        self.modulation = Modulation(dim, 2) if conditioned else None

    @recomputed
    def keys_values(self, context: Tensor, table: Tensor | None = None, mask: Tensor | None = None) -> KeysValues:
        """What the queries attend to, from the latent (batch, tokens, dim), its rotary table and mask."""
        return self.attention.keys_values(self.context_norm(context), table, mask)

    @recomputed
    def forward(
        self, x: Tensor, attended_to: KeysValues, table: Tensor | None = None, condition: Tensor | None = None
    ) -> Tensor:
        """(batch, queries, dim), `keys_values` and the queries' rotary table to (batch, queries, dim)."""
        how = None if self.modulation is None else self.modulation(condition)
        x = x + self.attention(modulated(self.attention_norm, x, how), attended_to, table)
        out: Tensor = x + self.mlp(modulated(self.mlp_norm, x, how, 1))
        return out


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
