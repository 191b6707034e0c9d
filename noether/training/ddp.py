"""DDP that does not import torch's compiler, which takes a rank more than a second, and more from a shared disk."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import unwrap
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


class LightDDP(DistributedDataParallel):
    """DDP around a model that is not compiled.

    Torch's own asks the compiler's settings how to reduce, and guards a context against being compiled: both import it.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        with _compiler_settings():
            super().__init__(*args, **settings)

    _inside_ddp_forward = contextmanager(unwrap(DistributedDataParallel._inside_ddp_forward))


@contextmanager
def _compiler_settings() -> Iterator[None]:
    """Answers with the default of the compiler while it is not imported: DDP reduces by its own reducer."""
    if "torch._dynamo" in sys.modules:
        yield
        return
    torch._dynamo = SimpleNamespace(utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"))  # type: ignore[assignment]
    try:
        yield
    finally:
        del torch._dynamo
