"""Checks that the samples of a user's own data set are dictionaries of tensors, and says what they are instead."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from noether.common.errors import RequestError

EXAMPLE = 'return {"KEY": torch.as_tensor(VALUES)} from __getitem__'


class OwnDataset:
    """Wraps a user's data set, whose dotted path is `kind`: NumPy arrays and numbers become tensors."""

    def __init__(self, dataset: Any, kind: str) -> None:
        self.dataset, self.kind = dataset, kind

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("dataset", "kind"):  # While it is unpickled there is no data set yet.
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns a sample as a dictionary of tensors; RequestError where it cannot be one."""
        from torch import Tensor

        sample = self.dataset[index]
        if not isinstance(sample, Mapping):
            raise RequestError(
                "sample-not-a-dictionary",
                f"a sample of {self.kind} is not a dictionary",
                seen=f"sample {index} is a {type(sample).__name__}",
                expected="tensors by name: what the model reads and the task scores",
                fix=EXAMPLE,
            )
        if "index" in sample:
            raise RequestError(
                "sample-key-reserved",
                f"samples of {self.kind} have a key that batches have already",
                seen="index",
                expected="other keys: a batch's index (B,) are the numbers of its samples",
                fix="rename 'index' in __getitem__, where model and task read it too",
            )
        return {
            str(key): value if isinstance(value, Tensor) else self._tensor(key, value, index)
            for key, value in sample.items()
        }

    def _tensor(self, key: str, value: Any, index: int) -> Any:
        import torch

        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
            with suppress(TypeError):  # numbers longer than 64 bits
                return torch.as_tensor(np.array(value, value.dtype.newbyteorder("=")))
        if isinstance(value, (bool, int, float, complex)):
            return torch.tensor(value)
        what = f"a {type(value).__name__}" + (f" of {value.dtype}" if isinstance(value, np.ndarray) else "")
        raise RequestError(
            "sample-not-a-tensor",
            f"{key} of the samples of {self.kind} is not a tensor",
            seen=f"sample {index}: {key} is {what}",
            expected="a tensor, a NumPy array of numbers, or a number",
            fix=f"leave {key!r} out of the samples, or {EXAMPLE}",
        )
