"""Which data a run is trained on: recorded with every checkpoint, and compared when the run is resumed."""

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noether.core.data.build import Splits
    from noether.core.data.loader import Dataset

FIRST_SAMPLES = 2


def data_identity(splits: "Splits") -> dict[str, Any]:
    """Returns the lengths of both splits, and a digest of the data.

    A data set that knows its digest says it (`digest`, a string: prepared cases have that of `dataset.json`, which
    names the digest of every file). Of others it is that of the first samples; None where these differ from one read
    to the next, as with a data set that augments.
    """
    digest = getattr(splits.train, "digest", None)
    if not isinstance(digest, str):
        found = {_first_samples(splits.train) for _ in range(2)}
        digest = found.pop() if len(found) == 1 else None
    return {"training": len(splits.train), "test": len(splits.test), "digest": digest}


def _first_samples(dataset: "Dataset") -> str:
    import torch

    digest = sha256()
    for index in range(min(FIRST_SAMPLES, len(dataset))):
        sample: Mapping[str, Any] = dataset[index]
        for key in sorted(sample):
            values = sample[key].detach().cpu().contiguous().reshape(-1)
            digest.update(f"{key} {values.dtype} {tuple(sample[key].shape)}\n".encode())
            digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
