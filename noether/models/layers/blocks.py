"""What a network is stacked from: the MLP, the transformer and perceiver blocks, and their first weights."""

from torch import Tensor, nn

from noether.models.layers.attention import CrossAttention, KeysValues, SelfAttention

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
        return self.contract(self.activation(self.expand(x)))


class TransformerBlock(nn.Module):
    """A pre-norm block: x += SelfAttention(LN x); x += MLP(LN x).

    At dim 192 the 444,864 parameters of a ViT-tiny block (Dosovitskiy et al. 2020, arXiv 2010.11929).
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim, MLP_RATIO * dim)

    def forward(self, x: Tensor, table: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """(batch, tokens, dim), the tokens' rotary table and mask to (batch, tokens, dim)."""
        return self.with_keys_values(x, table, mask)[0]

    def with_keys_values(
        self, x: Tensor, table: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, KeysValues]:
        """`forward`, and what other tokens need to `read` these."""
        attended, keys_values = self.attention.with_keys_values(self.attention_norm(x), table, mask)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), keys_values

    def keys_values(self, context: Tensor, table: Tensor | None = None, mask: Tensor | None = None) -> KeysValues:
        """What other tokens need to `read` these: (batch, tokens, dim), their rotary table and mask."""
        return self.attention.keys_values(self.attention_norm(context), table, mask)

    def read(self, x: Tensor, attended_to: KeysValues, table: Tensor | None = None) -> Tensor:
        """The block with attention to other tokens in place of each other: (batch, queries, dim) to the same."""
        x = x + self.attention.read(self.attention_norm(x), attended_to, table)
        return x + self.mlp(self.mlp_norm(x))


class PerceiverBlock(nn.Module):
    """Queries read a latent set: q += CrossAttention(LN q, LN z); q += MLP(LN q).

    Queries do not see each other, so each one's result is independent of which others are asked.
    445,248 parameters at dim 192. Source: Jaegle et al. 2021 (arXiv 2103.03206), the decoding half.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.context_norm = nn.LayerNorm(dim)
        self.attention = CrossAttention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim, MLP_RATIO * dim)

    def keys_values(self, context: Tensor, table: Tensor | None = None, mask: Tensor | None = None) -> KeysValues:
        """What the queries attend to, from the latent (batch, tokens, dim), its rotary table and mask."""
        return self.attention.keys_values(self.context_norm(context), table, mask)

    def forward(self, x: Tensor, attended_to: KeysValues, table: Tensor | None = None) -> Tensor:
        """(batch, queries, dim), `keys_values` and the queries' rotary table to (batch, queries, dim)."""
        x = x + self.attention(self.attention_norm(x), attended_to, table)
        return x + self.mlp(self.mlp_norm(x))


def initialise_linear(module: nn.Module) -> None:
    """Truncated normal of standard deviation 0.02 and zero bias; for `nn.Module.apply`.

    Source: the ViT recipe (arXiv 2010.11929). Other modules are left as torch made them.
    """
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
