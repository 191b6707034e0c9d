"""The eps of layer norms: as published in new models, and their own in weights of before, wherever these are loaded."""

from dataclasses import replace
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
from noether.data.layout import CAR_FLOW
from noether.evaluation.exported import load_exported
from noether.models.build import build_model
from noether.models.layers.blocks import TransformerBlock
from noether.models.layers.norms import DIGITS, publish_norms
from tests.refusal import refusal

RELEASED = Path(__file__).parents[1] / "checkpoints" / "released" / "0.1.0"
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


def test_checkpoints_and_exports_of_before_keep_theirs():
    checkpoint = RELEASED / "run" / "checkpoints" / "update-000000002"
    config = read_dumped(RELEASED / "run" / "config.yaml")
    model = build_model(config.model.kind, **config.model.options())
    assert DIGITS not in load_file(checkpoint / "ema.safetensors")
    load_weights(model, CheckpointFolder(checkpoint), "ema")
    assert eps_of(model) == eps_of(load_exported(RELEASED / "export", program=False).run) == {1e-5}


def test_an_mlp_with_a_norm_before_its_outputs_is_named():
    model = build_model("mlp", replace(CAR_FLOW, case_outputs={"drag": 1}))
    state = model.state_dict()
    state["case_head.1.weight"] = torch.ones(128)
    with refusal("weights-of-an-older-mlp"):
        model.load_state_dict(state)


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
