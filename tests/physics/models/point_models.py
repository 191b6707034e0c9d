"""What the tests of the models share: small models with large weights, batches, and an exact flow."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from noether.core.models.build import build_model
from noether.physics.cars.ellipsoid import EllipsoidCar, make_sample
from noether.physics.fields.fields import FieldsTask

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
    """A small model in float64 whose weights are large enough for every part to show in the output."""
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
    """A set's points and what else is known of them."""
    entries = {f"{prefix}_points": points(count, seed), f"{prefix}_normals": draw(count, 3, seed + 100) - 0.5}
    return entries | ({"volume_sdf": draw(count, 1, seed + 200).squeeze(-1)} if prefix == "volume" else {})


def make_batch(geometry=40, surface=23, volume=31, anchors=None):
    """A batch of two; with `anchors` so many of each set, at other places than the queries."""
    batch = {"geometry_points": points(geometry, 1)} | query_set("surface", surface, 2) | query_set("volume", volume, 3)
    if anchors:
        known = query_set("surface", anchors, 4) | query_set("volume", anchors + 2, 5)
        batch |= {f"anchor_{key}": value for key, value in known.items()}
    return batch


def permuted(batch, prefix, order):
    """The batch with the points of one set in another order."""
    return {key: value[:, order] if key.startswith(f"{prefix}_") else value for key, value in batch.items()}


def assert_same(found, expected, atol=1e-10):
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=atol)


def backward(model, batch):
    sum(prediction.square().mean() for prediction in model(batch).values()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


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


def exact_flow(count):
    """The built-in flow about a car as a prepared batch of one, and its standardised fields."""
    sample = make_sample(EllipsoidCar(2.0, 1.2, 0.9), count, count, 0)
    task = FieldsTask(
        {"surface_pressure": {"points": "surface_points"}, "volume_velocity": {"points": "volume_points"}}
    )
    sample = {key: torch.from_numpy(value).float() for key, value in sample.items()}
    task.fit([sample])
    batch = task.prepare({"geometry_points": sample["surface_points"][None], **{k: v[None] for k, v in sample.items()}})
    return batch, {name: batch.pop(name) for name in task.fields}


def relative_l2(prediction, target):
    return ((prediction.detach() - target).norm() / target.norm()).item()
