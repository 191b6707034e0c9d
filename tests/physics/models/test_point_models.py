"""What every model promises: its size, its symmetries, its precisions, and that it learns."""

import pytest
import torch
from point_models import (
    SMALL,
    DtypesMade,
    assert_same,
    backward,
    exact_flow,
    make_batch,
    permuted,
    points,
    relative_l2,
    small_model,
)

from noether.common.errors import RequestError
from noether.core.data.loader import stack_samples
from noether.core.models.build import build_model, count_parameters

PARAMETERS = {"mlp": 170_500, "upt": 11_015_620, "ab_upt": 7_007_236, "transformer": 5_487_748, "transolver": 3_860_804}
SHALLOW = {"upt": {"encoder_depth": 1, "decoder_depth": 1}, "transformer": {"depth": 1}, "transolver": {"depth": 1}}
"""For what a graph of each further block would take time, and show nothing more."""
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
    predictions = model({**asked, "surface_pressure": points(5, 4)})  # targets in the batch are ignored
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
    moved = {
        key: value + 20.0 if key in ("geometry_points", "anchor_surface_points") else value
        for key, value in batch.items()
    }
    assert (model(moved)["volume_velocity"] - model(batch)["volume_velocity"]).abs().max() > 1e-4


@KINDS
@pytest.mark.parametrize("fewer", ["geometry", "surface", "volume", "anchor_surface", "anchor_volume", "every"])
def test_samples_of_differing_numbers_of_points_share_a_batch(kind, fewer):
    """Padded and masked, each sample is predicted as it is alone."""
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
    model = build_model(kind, **SMALL[kind])
    batch = {name: value.float() for name, value in make_batch(anchors=anchors).items()}
    exact = model(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predictions = model(batch)
        loss = sum(prediction.square().mean() for prediction in predictions.values())
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    for name, prediction in predictions.items():
        assert prediction.dtype == torch.float32
        assert (prediction - exact[name]).norm() < 0.02 * exact[name].norm()


@KINDS
def test_compiles_as_one_graph_and_agrees_with_eager(kind):
    # The eager backend: what is proved is that nothing depends on data, not the code generator.
    model, batch = small_model(kind, **SHALLOW.get(kind, {})), make_batch()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_same(compiled(batch), model(batch))


@pytest.mark.slow
@KINDS
def test_exports_with_free_batch_and_query_sizes(kind):
    model, batch = small_model(kind, **SHALLOW.get(kind, {})), make_batch(anchors=13)
    sizes = {"surface": torch.export.Dim("surface"), "volume": torch.export.Dim("volume")}
    samples = torch.export.Dim("samples", max=64)
    free = {
        key: {0: samples, 1: sizes[prefix]} if (prefix := key.split("_")[0]) in sizes else {0: samples} for key in batch
    }
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
    with pytest.raises(RequestError) as error:
        build_model(kind, **options)
    assert error.value.seen == seen
    assert error.value.fix == fix


LEARNERS = {
    "upt": (200, {"dim": 96, "heads": 3, "encoder_depth": 1, "decoder_depth": 2, "supernodes": 16, "radius": 60.0}),
    "ab_upt": (300, {"dim": 96, "heads": 3, "physics_depth": 1, "branch_depth": 1, "supernodes": 16, "radius": 60.0}),
    "transformer": (300, {"dim": 96, "heads": 3, "depth": 3}),
    "transolver": (500, {"dim": 96, "heads": 4, "depth": 3, "slices": 16}),
    "mlp": (500, {}),
}


@pytest.mark.nightly
@KINDS
def test_overfits_one_sample_to_below_one_percent(kind):
    updates, options = LEARNERS[kind]
    batch, targets = exact_flow(64)
    torch.manual_seed(0)
    model = build_model(kind, **options)
    optimiser = torch.optim.Adam(model.parameters(), betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=2.5e-3, total_steps=updates + 1)
    errors = {}
    for _ in range(updates):
        predictions = model(batch)
        errors = {name: relative_l2(predictions[name], targets[name]) for name in targets}
        if max(errors.values()) < 0.01:
            break
        loss = sum((predictions[name] - targets[name]).square().mean() for name in targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    assert max(errors.values()) < 0.01, errors
