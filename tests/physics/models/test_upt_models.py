"""UPT and AB-UPT: supernodes gather from all points, and what each lacks is refused."""

import pytest
import torch
from point_models import assert_same, make_batch, small_model

from noether.physics.models.layers.positions import rotary_table, sincos_embedding


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


def test_ab_upt_is_its_parts_written_out():
    """Blocks one after the other: to the geometry, (self, cross), self, then each branch; no norm before the heads."""
    model, batch = small_model("ab_upt"), make_batch(anchors=13)
    at = {name: rotary_table(value, 12) for name, value in batch.items() if name.endswith("_points")}
    geometry = model.pooling(batch["geometry_points"], sincos_embedding(batch["geometry_points"], 24), 40)
    for block in model.geometry:
        geometry = block(geometry, at["geometry_points"])
    geometry = model.read_geometry.keys_values(geometry, at["geometry_points"])

    surface, volume = "surface_points", "volume_points"
    names = (surface, volume, f"anchor_{surface}", f"anchor_{volume}")
    x = {}
    for name in names:
        mlp = model.point_mlp[name.removeprefix("anchor_")]
        x[name] = model.read_geometry(mlp(sincos_embedding(batch[name], 24)), geometry, at[name])

    def step(block, sources):
        made = {name: block.keys_values(x[name], at[name]) for name in names[2:]}
        x.update({name: block.read(x[name], made[source], at[name]) for name, source in sources.items()})

    own = dict(zip(names, (names[2], names[3], names[2], names[3]), strict=True))
    other = dict(zip(names, (names[3], names[2], names[3], names[2]), strict=True))
    assert len(model.physics) == 3
    for block, sources in zip(model.physics, (own, other, own), strict=True):
        step(block, sources)
    for points in (surface, volume):
        for block in model.branch[points]:
            step(block, {points: f"anchor_{points}", f"anchor_{points}": f"anchor_{points}"})
    expected = {
        "surface_pressure": model.head[surface](x[surface]),
        "volume_velocity": model.head[volume](x[volume]),
    }
    assert_same(model(batch), expected)


def test_a_query_at_an_anchor_s_place_is_predicted_as_the_anchor():
    model, batch = small_model("ab_upt"), make_batch()
    anchored = {**batch, **{f"anchor_{key}": value for key, value in batch.items() if key[:3] in ("sur", "vol")}}
    assert_same(model(anchored), model(batch))


@pytest.mark.parametrize("absent", ["geometry_points", "surface_points", "volume_points"])
def test_what_anchors_attend_to_must_be_there(absent):
    batch = {key: value for key, value in make_batch().items() if key != absent}
    with pytest.raises(ValueError, match=f"no {absent}"):
        small_model("ab_upt")(batch)
