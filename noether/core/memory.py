"""Memory that is full: recognised by what torch says, and answered with the setting that makes it fit."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from noether.common.errors import RequestError, one_line
from noether.common.numbers import counted

FULL = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""How torch 2.13 says it in a plain RuntimeError: the CPU's allocator, and libraries that allocate by themselves."""


def is_full(error: BaseException) -> bool:
    """Returns whether an error means that a device, or this machine, has no memory left."""
    known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return known or (isinstance(error, RuntimeError) and any(text in str(error) for text in FULL))


@contextmanager
def smaller_when_full(what: str, setting: str, size: int, otherwise: str) -> Iterator[None]:
    """Answers memory that is full within the block with half the size, or with other words where it is 1 already.

    Args:
        what: what needs the memory.
        setting, size: the setting that bounds it, and what it is now.
        otherwise: the line to write where the size is 1.

    Raises:
        RequestError: in place of what torch raised, which stays its cause.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_full(error):
            raise
        raise RequestError(
            "out-of-memory",
            f"{what} does not fit into the memory",
            seen=f"{one_line(error)}; {counted(size, 'sample')} at once",
            expected="less at once",
            fix=f"{setting}={size // 2}" if size > 1 else otherwise,
        ) from error
