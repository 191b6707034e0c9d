"""Gather the inputs of a loss over the samples of all ranks; its gradient is the gradient of the whole batch."""

from collections.abc import Iterator, Mapping
from zlib import crc32

import torch
from torch import Tensor

from noether.common.errors import RequestError
from noether.launch.process_group.group import Group


class Together(Mapping[str, Tensor]):
    """Predictions or a batch of all ranks, in the order of the global batch. Every rank must read the same keys.

    A tensor is gathered when it is first read, but not a scalar (such as a temperature), which belongs to the model.
    RequestError: a tensor does not have a row for each of the rank's `samples`, or its shape differs between ranks.
    """

    def __init__(self, own: Mapping[str, Tensor], samples: int, group: Group) -> None:
        self._own, self._samples, self._group = own, samples, group
        self._every = {key: value for key, value in own.items() if not value.ndim}

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def __getitem__(self, key: str) -> Tensor:
        """Return the rows of all ranks, in the order of the ranks."""
        if key not in self._every:
            own, group = self._own[key], self._group
            seen = f"{key} {tuple(own.shape)} of {own.dtype}"
            if not alike(seen, group) or len(own) != self._samples:
                raise RequestError("cannot-gather", f"the loss over all ranks' samples cannot use {key}",
                                   seen=f"{seen} on rank {group.rank}", expected=f"({self._samples}, …) on every rank",
                                   fix=f"pad {key} to one length, or leave it out of the loss")  # fmt: skip
            self._every[key] = _rows_of_all(own, group)
        return self._every[key]


def alike(said: str, group: Group) -> bool:
    """Return whether `said` is the same on all ranks. Every rank calls this."""
    return len({row[0] for row in group.table([crc32(said.encode())])}) == 1


def _rows_of_all(own: Tensor, group: Group) -> Tensor:
    content = own.detach().contiguous().reshape(-1).view(torch.uint8)  # Summing bytes fits any type: other ranks add 0.
    every = content.new_zeros(group.world_size, len(content))
    every[group.rank] = content
    rows, first = group.sum(every).view(-1).view(own.dtype).view(-1, *own.shape[1:]), group.rank * len(own)
    if not own.requires_grad:
        return rows
    mine = own.view_as(own)
    # Each rank has the gradient of its own rows alone, and DDP takes the mean over the ranks.
    mine.register_hook(lambda gradient: gradient * group.world_size)
    return torch.cat([rows[:first], mine, rows[first + len(own) :]])
