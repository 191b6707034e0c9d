"""What every model guarantees (its size, symmetries and precisions), and what some models guarantee."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from noether.core.data.layout import CAR_FLOW
from noether.core.data.loader import stack_samples
from noether.core.models.build import Recomputable, build_model, count_parameters, recompute_blocks, recomputed
from noether.physics.models.layers.blocks import TransformerBlock, publish_norms
from noether.physics.models.layers.positions import rotary_table
from tests.refusal import refusal

ATTENTION = {"dim": 24, "heads": 2}
POOLING = {"radius": 150.0, "max_neighbours": 6}
SMALL = {
    "upt": {**ATTENTION, **POOLING, "encoder_depth": 2, "decoder_depth": 2},
    "ab_upt": {**ATTENTION, **POOLING, "geometry_depth": 1, "physics_depth": 1, "branch_depth": 1},
    "transformer": {**ATTENTION, "depth": 2},
    "transolver": {"dim": 24, "heads": 2, "depth": 2, "slices": 5},
    "mlp": {"dim": 24, "depth": 2},
}


def small_model(kind, **options):
    """Return a small model in float64 whose weights are large enough for every part to affect the output."""
    torch.manual_seed(0)
    model = build_model(kind, **{**SMALL[kind], **options}).double()
    for name, parameter in model.named_parameters():
        if name.endswith("temperature"):
            torch.nn.init.uniform_(parameter, 0.4, 0.8)
        else:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def draw(count, width, seed, batch=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, count, width, generator=generator, dtype=torch.float64)


def points(count, seed, batch=2):
    return 1000 * draw(count, 3, seed, batch)


def query_set(prefix, count, seed):
    """Return a set's points and the other inputs at these points."""
    entries = {f"{prefix}_points": points(count, seed), f"{prefix}_normals": draw(count, 3, seed + 100) - 0.5}
    return entries | ({"volume_sdf": draw(count, 1, seed + 200).squeeze(-1)} if prefix == "volume" else {})


def make_batch(geometry=40, surface=23, volume=31, anchors=None):
    """Return a batch of two samples. `anchors`: the number of anchors in each set, which are no query points."""
    batch = {"geometry_points": points(geometry, 1)} | query_set("surface", surface, 2) | query_set("volume", volume, 3)
    if anchors:
        known = query_set("surface", anchors, 4) | query_set("volume", anchors + 2, 5)
        batch |= {f"anchor_{key}": value for key, value in known.items()}
    return batch


def permuted(batch, prefix, order):
    return {key: value[:, order] if key.startswith(f"{prefix}_") else value for key, value in batch.items()}


def assert_same(found, expected, atol=1e-10):
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=atol)


def backward(model, batch):
    sum(prediction.square().mean() for prediction in model(batch).values()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


class DtypesMade(TorchDispatchMode):
    """Record the floating-point types of all intermediate results in the forward and the backward pass."""

    def __init__(self):
        super().__init__()
        self.floating = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.floating |= {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
        return result


PARAMETERS = {"mlp": 170_500, "upt": 11_015_620, "ab_upt": 7_007_236, "transformer": 5_487_748, "transolver": 3_860_804}
SHALLOW = {"upt": {"encoder_depth": 1, "decoder_depth": 1}, "transformer": {"depth": 1}, "transolver": {"depth": 1}}
"""Options of models with one block: further blocks would make compilation slower without testing more."""
ANCHORS = pytest.mark.parametrize("anchors", [None, 13], ids=["all-points-attend", "anchors"])
KINDS = pytest.mark.parametrize("kind", PARAMETERS)


@KINDS
def test_defaults_have_the_documented_number_of_parameters(kind):
    with torch.device("meta"):
        assert count_parameters(build_model(kind)) == PARAMETERS[kind]


@KINDS
@pytest.mark.parametrize(
    ("absent", "shapes"),
    [
        ((), {"surface_pressure": (2, 23, 1), "volume_velocity": (2, 31, 3)}),
        (("surface_points",), {"volume_velocity": (2, 31, 3)}),
        (("volume_points",), {"surface_pressure": (2, 23, 1)}),
    ],
    ids=["both", "volume-only", "surface-only"],
)
def test_each_query_set_present_is_answered_and_as_if_it_were_alone(kind, absent, shapes):
    model, batch = small_model(kind), make_batch(anchors=13)
    everything = model(batch)
    asked = {name: value for name, value in batch.items() if name not in absent}
    predictions = model({**asked, "surface_pressure": points(5, 4)})  # a target in the batch is ignored
    assert {name: tuple(value.shape) for name, value in predictions.items()} == shapes
    assert_same(predictions, {name: everything[name] for name in shapes})


@KINDS
def test_no_queries_is_refused(kind):
    anchored = {key: value for key, value in make_batch(anchors=13).items() if not key.startswith(("surface", "vol"))}
    with pytest.raises(ValueError, match=r"expected any of .*surface_points.* got \['"):
        small_model(kind)(anchored)


@KINDS
def test_permuting_input_points_changes_nothing(kind):
    model, batch = small_model(kind), make_batch(anchors=13)
    shuffled = permuted(batch, "geometry", torch.randperm(40))
    shuffled = permuted(permuted(shuffled, "anchor_surface", torch.randperm(13)), "anchor_volume", torch.randperm(15))
    assert_same(model(shuffled), model(batch))


@KINDS
@ANCHORS
@pytest.mark.parametrize("chunk_size", [1, 7, 23, 1000], ids=["one", "partial-last", "exact-fit", "one-chunk"])
def test_query_chunk_size_changes_nothing(kind, anchors, chunk_size):
    model, batch = small_model(kind), make_batch(anchors=anchors)
    assert_same(model.forward_in_chunks(batch, chunk_size), model(batch))


@KINDS
def test_the_shape_is_seen(kind):
    model, batch = small_model(kind), make_batch(anchors=13)
    moved = {**batch, **{key: batch[key] + 20.0 for key in ("geometry_points", "anchor_surface_points")}}
    assert (model(moved)["volume_velocity"] - model(batch)["volume_velocity"]).abs().max() > 1e-4


@KINDS
@pytest.mark.parametrize("fewer", ["geometry", "surface", "volume", "anchor_surface", "anchor_volume", "every"])
def test_samples_of_differing_numbers_of_points_share_a_batch(kind, fewer):
    """In a padded batch with masks, each sample gets the same prediction as in a batch of its own."""
    model, samples = small_model(kind), []
    batch = make_batch(anchors=None if fewer in ("surface", "volume") else 13)
    for i in range(2):
        sample = {key: value[i] for key, value in batch.items()}
        if i == 1:
            sample = {k: v[:9] if fewer == "every" or k.startswith(f"{fewer}_") else v for k, v in sample.items()}
        samples.append(sample)
    together = model(stack_samples(samples, pad=True))
    for i, sample in enumerate(samples):
        alone = model(stack_samples([sample]))
        assert_same({name: together[name][i : i + 1, : value.shape[1]] for name, value in alone.items()}, alone)


@KINDS
@ANCHORS
def test_every_parameter_gets_a_gradient(kind, anchors):
    gradients = backward(small_model(kind), make_batch(anchors=anchors))
    assert [name for name, gradient in gradients.items() if gradient is None or not gradient.any()] == []


@KINDS
@pytest.mark.parametrize("given", [torch.float32, torch.float64], ids=["float32-batch", "float64-batch"])
def test_float64_model_is_float64_throughout(kind, given):
    model, batch = small_model(kind), {name: value.to(given) for name, value in make_batch(anchors=13).items()}
    with DtypesMade() as made:
        backward(model, batch)
    assert made.floating == {torch.float64}


@KINDS
def test_float32_model_takes_a_float64_batch(kind):
    predictions = small_model(kind).float()(make_batch())
    assert {prediction.dtype for prediction in predictions.values()} == {torch.float32}


@KINDS
@ANCHORS
def test_bfloat16_autocast_predicts_and_trains_near_float32(kind, anchors):
    torch.manual_seed(0)
    layout = replace(CAR_FLOW, parameters={"speed": 1}, case_outputs={"drag": 1})
    model = build_model(kind, layout, **SMALL[kind])
    batch = {name: value.float() for name, value in make_batch(anchors=anchors).items()}
    batch["speed"] = torch.tensor([[20.0], [30.0]])
    exact = model(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predictions = model(batch)
        loss = sum(prediction.square().mean() for prediction in predictions.values())
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    for name, prediction in predictions.items():
        assert prediction.dtype == torch.float32
        assert (prediction - exact[name]).norm() < (0.1 if name == "drag" else 0.02) * exact[name].norm()


@KINDS
def test_compiles_as_one_graph_and_agrees_with_eager(kind):
    # The eager backend suffices, because the test only shows that the graph does not depend on values.
    model, batch = small_model(kind, **SHALLOW.get(kind, {})), make_batch()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_same(compiled(batch), model(batch))


@pytest.mark.slow
@KINDS
def test_exports_with_free_batch_and_query_sizes(kind):
    model, batch = small_model(kind, **SHALLOW.get(kind, {})), make_batch(anchors=13)
    sizes = {"surface": torch.export.Dim("surface"), "volume": torch.export.Dim("volume")}
    samples = torch.export.Dim("samples", max=64)
    free = {key: {0: samples, **({1: own} if (own := sizes.get(key.split("_")[0])) else {})} for key in batch}
    exported = torch.export.export(model, (batch,), dynamic_shapes=(free,)).module()
    other = make_batch(surface=5, volume=9, anchors=13)
    other = {name: torch.cat((value, value[:1] + 1.0)) for name, value in other.items()}
    assert_same(exported(other), model(other))


BELOW_ONE = (
    *(("upt", "heads", 0), ("transolver", "heads", 0), ("upt", "encoder_depth", 0), ("upt", "decoder_depth", -1)),
    *(("ab_upt", "physics_depth", 0), ("transformer", "depth", 0), ("transolver", "slices", 0)),
    *(("upt", "supernodes", 0), ("upt", "max_neighbours", 0)),
)


@pytest.mark.parametrize(
    ("kind", "options", "seen", "fix"),
    [
        ("upt", {"dim": 100, "heads": 3}, "model.dim=100, model.heads=3", "model.dim=102"),
        ("ab_upt", {"dim": 192, "heads": 5}, "model.dim=192, model.heads=5", "model.dim=190"),
        ("transformer", {"dim": 9, "heads": 3}, "model.dim=9, model.heads=3", "model.dim=18"),
        ("transolver", {"dim": 100, "heads": 8}, "model.dim=100, model.heads=8", "model.dim=96"),
        ("ab_upt", {"radius": 0.0}, "model.radius=0.0", "model.radius=9.0"),
        *((kind, {name: value}, f"model.{name}={value}", f"model.{name}=1") for kind, name, value in BELOW_ONE),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_options_that_do_not_fit_are_refused_with_the_line_to_write(kind, options, seen, fix):
    with refusal(seen=seen) as refused:
        build_model(kind, **options)
    assert refused.value.fix == fix


def gradients(model, batch):
    """Return the gradients of all parameters, and the number of bytes that autograd kept."""
    kept = set()

    def note(tensor):
        kept.add((tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()))
        return tensor

    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = sum(field.square().mean() for field in model(batch).values())
        bytes_kept = sum(size for _, size in kept)
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}, bytes_kept


@pytest.mark.parametrize("anchors", [None, 7], ids=["all-are-context", "anchors"])
@pytest.mark.parametrize("kind", [kind for kind in SMALL if kind != "mlp"])  # an MLP has no blocks
def test_gradients_are_the_same_bit_for_bit_and_less_is_kept(kind, anchors):
    model, batch = small_model(kind).train(), make_batch(anchors=anchors)
    before, kept = gradients(model, batch)
    assert recompute_blocks(model) > 1
    after, kept_by_blocks = gradients(model, batch)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert kept_by_blocks < 0.8 * kept


class Dropping(Recomputable):
    @recomputed
    def forward(self, x):
        return nn.functional.dropout(x.sin(), 0.5).exp()


def test_random_numbers_are_those_of_the_first_pass():
    blocks, x = nn.Sequential(Dropping(), Dropping()), torch.randn(50, dtype=torch.float64, requires_grad=True)
    found = []
    for again in (False, True):
        if again:
            assert recompute_blocks(blocks) == 2
        torch.manual_seed(1)
        (gradient,) = torch.autograd.grad(blocks(x).sum(), x)
        found.append((gradient, torch.rand(3)))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1]), "later random numbers must be the same, too"


def test_a_model_without_blocks_is_refused():
    with refusal(seen="trainer.recompute=true", fix="trainer.recompute=false"):
        recompute_blocks(nn.Linear(2, 2))


@pytest.mark.parametrize("kind", ["upt", "ab_upt"])
def test_fewer_geometry_points_than_supernodes_is_refused_with_both_numbers_and_keys(kind):
    with pytest.raises(ValueError, match=r"64 supernodes .* 40 geometry points") as error:
        small_model(kind, supernodes=64)(make_batch(geometry=40))
    assert "model.supernodes" in str(error.value)
    assert "dataset.geometry_points" in str(error.value)


def test_supernodes_are_the_first_points_and_gather_from_all_of_them():
    model, batch = small_model("upt", supernodes=10), make_batch()
    rest = 10 + torch.randperm(30)
    order = torch.cat((torch.arange(10), rest))
    assert_same(model({**batch, "geometry_points": batch["geometry_points"][:, order]}), model(batch))

    moved = batch["geometry_points"].clone()
    moved[:, 39] = moved[:, 0] + 1.0  # beside the first supernode
    without_the_rest = {**batch, "geometry_points": moved[:, :39]}
    difference = model({**batch, "geometry_points": moved})["volume_velocity"]
    difference = difference - model(without_the_rest)["volume_velocity"]
    assert difference.abs().max() > 1e-6


def test_a_query_at_an_anchor_s_place_is_predicted_as_the_anchor():
    model, batch = small_model("ab_upt"), make_batch()
    anchored = {**batch, **{f"anchor_{key}": value for key, value in batch.items() if key[:3] in ("sur", "vol")}}
    assert_same(model(anchored), model(batch))


READ = {
    "ab_upt": ("geometry_points", "surface_points", "volume_points"),
    "transolver": ("surface_normals", "volume_normals", "volume_sdf"),
}


@pytest.mark.parametrize(("kind", "absent"), [(kind, absent) for kind, read in READ.items() for absent in read])
def test_what_anchors_attend_to_and_a_point_shows_must_be_there(kind, absent):
    batch = {key: value for key, value in make_batch().items() if key != absent}
    with pytest.raises(ValueError, match=f"no {absent}"):
        small_model(kind)(batch)


def test_the_seven_inputs_are_standardised_over_all_points_of_the_training_samples():
    model, batch = small_model("transolver"), make_batch()
    samples = [{key: value[one : one + 1] for key, value in batch.items()} for one in range(2)]
    model.fit_inputs(samples)
    inputs = torch.cat([model._point_inputs(batch, name).flatten(0, 1) for name in model.layout.outputs])
    torch.testing.assert_close(inputs.mean(dim=0), torch.zeros(7, dtype=inputs.dtype), rtol=0, atol=1e-9)
    torch.testing.assert_close(inputs.std(dim=0, correction=0), torch.ones(7, dtype=inputs.dtype), rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1e-3], ids=["as-usual", "where-eps-matters"])
def test_a_block_is_torch_s_own_encoder_layer(scale):
    torch.manual_seed(0)
    how = {"layer_norm_eps": 1e-6, "batch_first": True, "norm_first": True, "dtype": torch.float64}
    reference = nn.TransformerEncoderLayer(24, 3, 96, 0.0, "gelu", **how)
    block = TransformerBlock(24, 3).double()
    publish_norms(block)
    attention = reference.self_attn
    own = {"weight": attention.in_proj_weight, "bias": attention.in_proj_bias}
    block.attention.query_key_value.load_state_dict(own)
    block.attention.output.load_state_dict(attention.out_proj.state_dict())
    block.mlp.expand.load_state_dict(reference.linear1.state_dict())
    block.mlp.contract.load_state_dict(reference.linear2.state_dict())
    x = scale * torch.randn(2, 7, 24, dtype=torch.float64)
    torch.testing.assert_close(
        block(x, rotary_table(torch.zeros(2, 7, 3).double(), 8)), reference(x), rtol=0, atol=1e-12
    )
