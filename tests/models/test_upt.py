"""UPT: its parts written out, and its supernodes. What all models promise is tested in test_point_models."""

import pytest
import torch
from point_models import assert_same, make_batch, small_model

from noether.models.layers.positions import rotary_table, sincos_embedding


def test_upt_is_its_parts_written_out():
    model, batch = small_model("upt", supernodes=16), make_batch()
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


def test_fewer_geometry_points_than_supernodes_is_refused_with_both_numbers_and_keys():
    with pytest.raises(ValueError, match=r"64 supernodes .* 40 geometry points") as error:
        small_model("upt", supernodes=64)(make_batch(geometry=40))
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
