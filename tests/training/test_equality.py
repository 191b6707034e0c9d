"""What a resumed run is told of bits that will differ."""

import pytest
from torch import nn

from noether.training.train import differences_of_resume

PLAIN = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))
NORMED = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.1))


@pytest.mark.parametrize(
    ("model", "meta", "found"),
    [
        pytest.param(NORMED, {"world_size": 2, "threads": 1}, (), id="as-before"),
        pytest.param(NORMED, {"world_size": 2}, (), id="a-checkpoint-of-an-older-version"),
        pytest.param(PLAIN, {"world_size": 4, "threads": 1}, ("4 ranks before, 2 now",), id="ranks"),
        pytest.param(
            NORMED, {"world_size": 4, "threads": 1}, ("4 ranks", "BatchNorm and dropout"), id="ranks-and-such-layers"
        ),
        pytest.param(PLAIN, {"world_size": 2, "threads": 8}, ("8 threads a rank before, 1 now",), id="threads"),
    ],
)
def test_what_differs_is_said(model, meta, found) -> None:
    said = differences_of_resume(meta, 2, 1, model)
    assert len(said) == len(found)
    for part, sentence in zip(found, said, strict=True):
        assert part in sentence
