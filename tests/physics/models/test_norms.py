"""The eps of layer norms, as published; a block against torch's own."""

import pytest
import torch
from point_models import SMALL
from torch import nn

from noether.core.models.build import build_model
from noether.physics.models.layers.blocks import TransformerBlock, publish_norms

PUBLISHED = ("upt", "ab_upt", "transformer")


def eps_of(model):
    """The eps of all layer norms of a model."""
    return {module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)}


@pytest.mark.parametrize(("kind", "eps"), [*((kind, {1e-6}) for kind in PUBLISHED), ("transolver", {1e-5})])
def test_new_models_have_the_published_eps(kind, eps):
    assert eps_of(build_model(kind, **SMALL[kind])) == eps


@pytest.mark.parametrize("scale", [1.0, 1e-3], ids=["as-usual", "where-eps-matters"])
def test_a_block_is_torch_s_own_encoder_layer(scale):
    torch.manual_seed(0)
    reference = nn.TransformerEncoderLayer(
        24, 3, 96, 0.0, "gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True, dtype=torch.float64
    )
    block = TransformerBlock(24, 3).double()
    publish_norms(block)
    attention = reference.self_attn
    own = {"weight": attention.in_proj_weight, "bias": attention.in_proj_bias}
    block.attention.query_key_value.load_state_dict(own)
    block.attention.output.load_state_dict(attention.out_proj.state_dict())
    block.mlp.expand.load_state_dict(reference.linear1.state_dict())
    block.mlp.contract.load_state_dict(reference.linear2.state_dict())
    x = scale * torch.randn(2, 7, 24, dtype=torch.float64)
    torch.testing.assert_close(block(x), reference(x), rtol=0, atol=1e-12)
