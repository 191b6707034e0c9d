"""What `noether data describe` says of arrays of any shape."""

import numpy as np
import pytest
import torch

from noether.core.data.describe import describe_split

ARRAYS = {
    "points": ([(5, 3), (7, 3)], "(5..7, 3)", 3),
    "a-class": ([(), ()], "()", 1),
}


@pytest.mark.parametrize(("shapes", "words", "channels"), ARRAYS.values(), ids=ARRAYS.keys())
def test_shapes_and_channels(shapes, words: str, channels: int) -> None:
    rng = np.random.default_rng(0)
    samples = [{"array": torch.from_numpy(np.asarray(rng.normal(size=shape)))} for shape in shapes]
    about = describe_split(samples)["arrays"]["array"]
    assert (about["shape"], len(about["channels"])) == (words, channels)
    columns = np.concatenate([sample["array"].numpy().reshape(-1, channels) for sample in samples])
    for row, column in zip(about["channels"], columns.T, strict=True):
        assert row == pytest.approx(
            {"min": column.min(), "max": column.max(), "mean": column.mean(), "std": column.std()}
        )
