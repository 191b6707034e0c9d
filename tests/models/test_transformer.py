"""Transformer: its parts written out. What all models promise is tested in test_point_models."""

import torch
from point_models import assert_same, make_batch, small_model

from noether.models.layers.positions import rotary_table, sincos_embedding


def test_transformer_is_its_parts_written_out():
    model, batch = small_model("transformer"), make_batch()
    names = ("surface_points", "volume_points")
    tokens = torch.cat([model.point_mlp[name](sincos_embedding(batch[name], 24)) for name in names], dim=1)
    table = rotary_table(torch.cat([batch[name] for name in names], dim=1), 12)
    for block in model.blocks:
        tokens = block(tokens, table)
    fields = model.head(model.norm(tokens))
    assert_same(model(batch), {"surface_pressure": fields[:, :23, :1], "volume_velocity": fields[:, 23:, 1:]})
