"""A model is asked at once or in chunks of points; one that cannot be is refused in words."""

import pytest
import torch
from torch import nn

from noether.errors import RequestError
from noether.evaluation.evaluate import predict
from noether.models.transformer import Transformer


def test_chunks_predict_what_one_pass_predicts() -> None:
    torch.manual_seed(0)
    model = Transformer(dim=24, heads=2, depth=2).double()
    batch = {name: 1000 * torch.rand(1, 9, 3, dtype=torch.float64) for name in ("surface_points", "volume_points")}
    whole, chunks = predict(model, batch, None), predict(model, batch, 4)
    for name, value in whole.items():
        torch.testing.assert_close(chunks[name], value, rtol=0, atol=1e-12)


def test_a_model_without_chunks_names_the_setting() -> None:
    with pytest.raises(RequestError, match="Linear cannot be asked in chunks") as caught:
        predict(nn.Linear(2, 2), {}, 100)
    assert caught.value.seen == "trainer.evaluation_chunk_size=100"
    assert caught.value.fix == "trainer.evaluation_chunk_size=null"
