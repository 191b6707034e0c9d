"""The eps of layer norms: as published in new models, their own in older weights; a block against torch's own."""

from pathlib import Path

import pytest
import torch
from point_models import SMALL, small_model
from safetensors.torch import load_file, save_file
from torch import nn

from noether.checkpoints.format import CheckpointFolder
from noether.checkpoints.initial import load_initial
from noether.checkpoints.named import named_weights
from noether.checkpoints.state import load_weights
from noether.config.compose import read_dumped
from noether.core.models.build import build_model
from noether.physics.models.layers.blocks import TransformerBlock
from noether.physics.models.layers.norms import DIGITS, publish_norms

OLD_RUNS = Path(__file__).parents[2] / "physics" / "predict" / "old_runs"
PUBLISHED = ("upt", "ab_upt", "transformer")


def eps_of(model):
    """The eps of all layer norms of a model."""
    return {module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)}


@pytest.mark.parametrize(("kind", "eps"), [*((kind, {1e-6}) for kind in PUBLISHED), ("transolver", {1e-5})])
def test_new_models_have_the_published_eps(kind, eps):
    assert eps_of(build_model(kind, **SMALL[kind])) == eps


@pytest.mark.parametrize("kind", PUBLISHED)
def test_weights_without_a_record_keep_torch_s_eps_and_say_so_from_then_on(kind, tmp_path):
    old = {name: value for name, value in small_model(kind).state_dict().items() if name != DIGITS}
    loaded, inside, begun, handed_on = (small_model(kind) for _ in range(4))
    loaded.load_state_dict(old)
    nn.ModuleDict({"own": inside}).load_state_dict({f"own.{name}": value for name, value in old.items()})
    save_file(old, tmp_path / "old.safetensors")
    load_initial(begun, named_weights(str(tmp_path / "old.safetensors")))
    handed_on.load_state_dict(loaded.state_dict())
    assert [eps_of(model) for model in (loaded, inside, begun, handed_on)] == [{1e-5}] * 4
    handed_on.load_state_dict(small_model(kind).state_dict())
    assert eps_of(handed_on) == {1e-6}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_checkpoints_of_format_2_keep_theirs(kind):
    checkpoint = CheckpointFolder(OLD_RUNS / kind / "checkpoints" / "update-000000002")
    model = build_model(kind, **read_dumped(OLD_RUNS / kind / "config.yaml").model.options())
    assert (checkpoint.meta()["format"], DIGITS in load_file(checkpoint.path / "ema.safetensors")) == (2, False)
    load_weights(model, checkpoint, "ema")
    assert eps_of(model) == {1e-5}


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
