"""UPT: its parts written out, and its supernodes. What all models promise is tested in test_point_models."""

import pytest
import torch
from point_models import assert_same, make_batch, small_model


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
