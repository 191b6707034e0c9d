"""UPT: its size, its symmetries, its precisions, and that it learns."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from noether.errors import RequestError
from noether.models.build import count_parameters
from noether.models.layers.positions import rotary_table, sincos_embedding
from noether.models.upt import UPT

SMALL = {"dim": 24, "heads": 2, "encoder_depth": 2, "decoder_depth": 2, "radius": 150.0, "max_neighbours": 6}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors this small gain nothing from threads, and waiting for each other on a busy machine costs 30×."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small_upt(**options):
    """A small model in float64 whose weights are large enough for every part to show in the output."""
    torch.manual_seed(0)
    model = UPT(**{**SMALL, **options}).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def points(count, seed, batch=2):
    generator = torch.Generator().manual_seed(seed)
    return 1000 * torch.rand(batch, count, 3, generator=generator, dtype=torch.float64)


def make_batch(geometry=40, surface=23, volume=31):
    return {
        "geometry_points": points(geometry, 1),
        "surface_points": points(surface, 2),
        "volume_points": points(volume, 3),
    }


def assert_same(found, expected, atol=1e-10):
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=atol)


def test_default_upt_has_the_published_number_of_parameters():
    with torch.device("meta"):
        assert count_parameters(UPT()) == 11_015_620


def test_upt_is_its_parts_written_out():
    model, batch = small_upt(supernodes=16), make_batch()
    geometry = batch["geometry_points"]
    latent = model.pooling(geometry, sincos_embedding(geometry, 24), 16)
    table = rotary_table(geometry[:, :16], 12)
    for block in model.encoder:
        latent = block(latent, table)
    fields = {}
    for name in ("surface_points", "volume_points"):
        queries = model.query_mlp[name](sincos_embedding(batch[name], 24))
        for block in model.decoder:
            queries = block(queries, block.keys_values(latent, table), rotary_table(batch[name], 12))
        fields[name] = model.head(model.norm(queries))
    expected = {
        "surface_pressure": fields["surface_points"][..., :1],
        "volume_velocity": fields["volume_points"][..., 1:],
    }
    assert_same(model(batch), expected)


@pytest.mark.parametrize(
    ("absent", "shapes"),
    [
        ((), {"surface_pressure": (2, 23, 1), "volume_velocity": (2, 31, 3)}),
        (("surface_points",), {"volume_velocity": (2, 31, 3)}),
        (("volume_points",), {"surface_pressure": (2, 23, 1)}),
    ],
    ids=["both", "volume-only", "surface-only"],
)
def test_each_query_set_present_is_answered_and_as_if_it_were_alone(absent, shapes):
    model, batch = small_upt(), make_batch()
    everything = model(batch)
    asked = {name: value for name, value in batch.items() if name not in absent}
    predictions = model({**asked, "surface_pressure": points(5, 4)})  # targets in the batch are ignored
    assert {name: tuple(value.shape) for name, value in predictions.items()} == shapes
    assert_same(predictions, {name: everything[name] for name in shapes})


def test_no_queries_is_refused():
    with pytest.raises(ValueError, match=r"expected any of .*surface_points.* got \['geometry_points'\]"):
        small_upt()({"geometry_points": points(40, 1)})


def test_fewer_geometry_points_than_supernodes_is_refused_with_both_numbers_and_keys():
    with pytest.raises(ValueError, match=r"64 supernodes .* 40 geometry points") as error:
        small_upt(supernodes=64)(make_batch(geometry=40))
    assert "model.supernodes" in str(error.value)
    assert "dataset.geometry_points" in str(error.value)


def test_permuting_queries_permutes_predictions():
    model, batch = small_upt(supernodes=16), make_batch()
    surface, volume = torch.randperm(23), torch.randperm(31)
    permuted = {
        **batch,
        "surface_points": batch["surface_points"][:, surface],
        "volume_points": batch["volume_points"][:, volume],
    }
    expected = model(batch)
    expected = {
        "surface_pressure": expected["surface_pressure"][:, surface],
        "volume_velocity": expected["volume_velocity"][:, volume],
    }
    assert_same(model(permuted), expected)


def test_permuting_geometry_points_changes_nothing_when_all_are_supernodes():
    model, batch = small_upt(), make_batch()
    permuted = {**batch, "geometry_points": batch["geometry_points"][:, torch.randperm(40)]}
    assert_same(model(permuted), model(batch))


def test_supernodes_are_the_first_points_and_gather_from_all_of_them():
    model, batch = small_upt(supernodes=10), make_batch()
    rest = 10 + torch.randperm(30)
    order = torch.cat((torch.arange(10), rest))
    assert_same(model({**batch, "geometry_points": batch["geometry_points"][:, order]}), model(batch))

    moved = batch["geometry_points"].clone()
    moved[:, 39] = moved[:, 0] + 1.0  # beside the first supernode
    without_the_rest = {**batch, "geometry_points": moved[:, :39]}
    difference = model({**batch, "geometry_points": moved})["volume_velocity"]
    difference = difference - model(without_the_rest)["volume_velocity"]
    assert difference.abs().max() > 1e-6


@pytest.mark.parametrize("chunk_size", [1, 7, 23, 1000], ids=["one", "partial-last", "exact-fit", "one-chunk"])
def test_query_chunk_size_changes_nothing(chunk_size):
    model, batch = small_upt(supernodes=16), make_batch()
    assert_same(model.forward_in_chunks(batch, chunk_size), model(batch))


def test_moving_all_points_together_matters_but_a_sample_does_not_see_its_batch():
    model, batch = small_upt(), make_batch()
    together = model(batch)
    alone = model({name: value[1:] for name, value in batch.items()})
    assert_same(alone, {name: value[1:] for name, value in together.items()})
    shifted = model({name: value + 20.0 for name, value in batch.items()})
    assert (shifted["surface_pressure"] - together["surface_pressure"]).abs().max() > 1e-3


def backward(model, batch):
    sum(prediction.square().mean() for prediction in model(batch).values()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_every_parameter_gets_a_gradient():
    gradients = backward(small_upt(supernodes=16), make_batch())
    assert [name for name, gradient in gradients.items() if gradient is None or not gradient.any()] == []


def test_forward_and_backward_are_deterministic():
    first, second = (backward(small_upt(supernodes=16), make_batch()) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


class DtypesMade(TorchDispatchMode):
    """Collects the floating-point types of every intermediate result, forward and backward."""

    def __init__(self):
        super().__init__()
        self.floating = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.floating |= {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
        return result


@pytest.mark.parametrize("given", [torch.float32, torch.float64], ids=["float32-batch", "float64-batch"])
def test_float64_model_is_float64_throughout(given):
    model, batch = small_upt(supernodes=16), {name: value.to(given) for name, value in make_batch().items()}
    with DtypesMade() as made:
        backward(model, batch)
    assert made.floating == {torch.float64}


def test_bfloat16_weights_predict():
    predictions = small_upt().bfloat16()(make_batch())
    assert all(prediction.isfinite().all() for prediction in predictions.values())


def test_float32_model_takes_a_float64_batch():
    predictions = small_upt().float()(make_batch())
    assert {prediction.dtype for prediction in predictions.values()} == {torch.float32}


def test_bfloat16_autocast_predicts_and_trains_near_float32():
    torch.manual_seed(0)
    model = UPT(**SMALL)
    batch = {name: value.float() for name, value in make_batch().items()}
    exact = model(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predictions = model(batch)
        loss = sum(prediction.square().mean() for prediction in predictions.values())
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    for name, prediction in predictions.items():
        assert prediction.dtype == torch.float32
        assert (prediction - exact[name]).norm() < 0.02 * exact[name].norm()


def test_compiles_as_one_graph_and_agrees_with_eager():
    # The eager backend: what is proved is that nothing depends on data, not the code generator.
    model, batch = small_upt(supernodes=16), make_batch()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_same(compiled(batch), model(batch))


def test_exports_with_free_batch_and_query_sizes():
    model, batch = small_upt(supernodes=16, encoder_depth=1, decoder_depth=1), make_batch()
    samples = torch.export.Dim("samples", max=64)
    sizes = {
        "geometry_points": {0: samples},
        "surface_points": {0: samples, 1: torch.export.Dim("surface")},
        "volume_points": {0: samples, 1: torch.export.Dim("volume")},
    }
    exported = torch.export.export(model, (batch,), dynamic_shapes=(sizes,)).module()
    other = {name: torch.cat((value, value[:1] + 1.0)) for name, value in make_batch(surface=5, volume=9).items()}
    assert_same(exported(other), model(other))


@pytest.mark.parametrize(
    ("options", "seen", "fix"),
    [
        ({"dim": 100, "heads": 3}, "model.dim=100, model.heads=3", "model.dim=102"),
        ({"dim": 192, "heads": 5}, "model.dim=192, model.heads=5", "model.dim=190"),
        ({"dim": 9, "heads": 3}, "model.dim=9, model.heads=3", "model.dim=18"),
        ({"heads": 0}, "model.heads=0", "model.heads=1"),
        ({"encoder_depth": 0}, "model.encoder_depth=0", "model.encoder_depth=1"),
        ({"decoder_depth": -1}, "model.decoder_depth=-1", "model.decoder_depth=1"),
        ({"supernodes": 0}, "model.supernodes=0", "model.supernodes=1"),
        ({"max_neighbours": 0}, "model.max_neighbours=0", "model.max_neighbours=1"),
        ({"radius": 0.0}, "model.radius=0.0", "model.radius=9.0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_options_that_do_not_fit_are_refused_with_the_line_to_write(options, seen, fix):
    with pytest.raises(RequestError) as error:
        UPT(**options)
    assert error.value.seen == seen
    assert error.value.fix == fix


def flow_past_a_sphere(count):
    """Exact potential flow along +z past a sphere of radius 150 at (500, 500, 500), U = 1, standardised."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.nn.functional.normalize(torch.randn(3, count, 3, generator=generator), dim=-1)
    geometry, surface = 150 * direction[0], 150 * direction[1]
    distance = 150 * (1.2 + 2 * torch.rand(count, 1, generator=generator))
    volume = distance * direction[2]
    # Cp = 1 − 9/4 sin²θ;  u = U + (a³/2r³)(U − 3 (U·r̂) r̂)
    pressure = 1 - 2.25 * (1 - direction[1][:, 2:] ** 2)
    along = torch.tensor([0.0, 0.0, 1.0])
    velocity = along + (150 / distance) ** 3 / 2 * (along - 3 * direction[2][:, 2:] * direction[2])
    batch = {"geometry_points": geometry, "surface_points": surface, "volume_points": volume}
    batch = {name: (value + 500).unsqueeze(0) for name, value in batch.items()}
    targets = {"surface_pressure": pressure, "volume_velocity": velocity - along}
    return batch, {name: (value / value.std()).unsqueeze(0) for name, value in targets.items()}


def relative_l2(prediction, target):
    return ((prediction.detach() - target).norm() / target.norm()).item()


def test_overfits_one_sample_to_below_one_percent():
    batch, targets = flow_past_a_sphere(64)
    torch.manual_seed(0)
    model = UPT(dim=96, heads=3, encoder_depth=1, decoder_depth=2, supernodes=16, radius=60.0)
    optimiser = torch.optim.Adam(model.parameters(), betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=2e-3, total_steps=201)
    errors = {}
    for _ in range(200):
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
