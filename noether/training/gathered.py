"""One loss of the samples of all ranks: what each has is gathered, and the gradient is that of the whole batch."""

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from noether.common.errors import RequestError
from noether.launch.process_group.group import Group


class _Rows(torch.autograd.Function):
    """Every rank's rows. Each rank has the gradient of its own alone, and DDP takes the mean over the ranks."""

    @staticmethod
    def forward(context: Any, own: Tensor, group: Group) -> Tensor:
        context.group, context.rows = group, len(own)
        return group.rows(own)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        first = context.group.rank * context.rows
        return gradient[first : first + context.rows] * context.group.world_size, None


def gathered(own: Mapping[str, Tensor], samples: int, group: Group) -> dict[str, Tensor]:
    """Returns predictions or a batch of all ranks, in the order of the global batch. Every rank calls it.

    A number (a temperature, say) is the model's own, and stays. RequestError: another tensor has not a row for each of
    the rank's `samples`, or the ranks' differ in their shapes.
    """
    shown = ", ".join(f"{key} {tuple(value.shape)}" for key, value in own.items())
    others = {row[0] for row in group.table([crc32(shown.encode())])}
    if len(others) > 1 or any(value.ndim and len(value) != samples for value in own.values()):
        raise RequestError("cannot-gather", "a loss of all ranks' samples needs the same shapes on every rank",
                           seen=f"rank {group.rank}: {shown}", expected=f"({samples}, …) everywhere, or a number",
                           fix="pad to a fixed length in the data set's collate, or trainer.across_ranks=per_rank"
                           )  # fmt: skip
    return {key: _Rows.apply(value, group) if value.ndim else value for key, value in own.items()}  # type: ignore[no-untyped-call]
