"""Tensors on a GPU that does not exist, and a record of what would have made the processor wait for it.

Torch's FakeTensorMode gives tensors that have a device and a shape and no values. It needs torch as built for CUDA, and
no driver. An operation that mixes devices raises, and so does whatever needs a value (`item`, `bool(tensor)`,
`nonzero`), which on a GPU waits for all that was asked of it before. Copies that wait raise nothing: they are noted
here, with the line of noether that makes them.

What this cannot show: the kernels, memory, NCCL, and the backward pass, whose engine asks the driver for streams. A
gradient is made by hand in its place, of each parameter's shape.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import noether

# What torch has no form of for tensors without values: they change their arguments, lists of tensors, in place.
WITHOUT_FAKE = {torch.ops.aten._fused_sgd_.default}
SOURCE = str(Path(noether.__file__).parent)
needs_cuda_build = pytest.mark.skipif(
    torch.version.cuda is None, reason="torch is built for the CPU here: `make fake-gpu` installs one built for CUDA"
)


class FakeGPU(TorchDispatchMode):
    """Within it, tensors of cuda:N have no values; `waits` counts what would wait for the GPU, by line of noether."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].device.type == "cpu":
            return args[0].dtype.is_floating_point or args[0].dtype == torch.bool  # The host's own: nothing waits.
        if func in WITHOUT_FAKE:
            devices = {tensor.device for group in args if isinstance(group, list) for tensor in group}
            assert len(devices) == 1, f"{func} of tensors on {devices}"
            return None
        out = func(*args, **kwargs)
        if func is torch.ops.aten._to_copy.default:
            self._copied(args[0], out, bool(kwargs.get("non_blocking")))
        elif func is torch.ops.aten.copy_.default:
            self._copied(args[1], args[0], bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False)))
        return out

    def _copied(self, source: Tensor, target: Tensor, non_blocking: bool) -> None:
        """Notes a copy between the host and the GPU that waits. One of a host tensor of one number does, too."""
        if source.device.type != target.device.type and not non_blocking:
            self.note(f"copy from {source.device.type} to {target.device.type}")

    def note(self, what: str) -> None:
        frame = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(SOURCE):
            frame = frame.f_back
        where = "?" if frame is None else f"{frame.f_code.co_filename.removeprefix(SOURCE + '/')}:{frame.f_lineno}"
        self.waits[f"{what}, {where}"] += 1

    def place(self, value: Any, device: str = "cuda:0") -> Any:
        """Returns a nested value with tensors of the same shape on a GPU, and a module with its own so replaced."""
        if isinstance(value, nn.Module):
            for module in value.modules():
                for name, own in module._parameters.items():
                    if own is not None:
                        placed = self.place(own.detach(), device)
                        module._parameters[name] = nn.Parameter(placed, requires_grad=own.requires_grad)
                for name, own in module._buffers.items():
                    module._buffers[name] = self.place(own, device)
            return value
        if isinstance(value, Tensor):
            with self.fake:
                return torch.empty(value.shape, dtype=value.dtype, device=device)
        if isinstance(value, dict):
            return {key: self.place(item, device) for key, item in value.items()}
        return type(value)(self.place(item, device) for item in value) if isinstance(value, list | tuple) else value

    @contextmanager
    def running(self, patch: pytest.MonkeyPatch) -> Iterator["FakeGPU"]:
        """Runs a block on it: what asks the driver is replaced, and copies of Python's numbers are noted."""
        for name, stand_in in {
            "_lazy_init": lambda: None,
            "Event": _Event,
            "current_stream": lambda *one: _Event(),
            "is_bf16_supported": lambda *one: True,
        }.items():
            patch.setattr(torch.cuda, name, stand_in)
        patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)  # Else autocast is off.
        make = torch.tensor

        def new_tensor(like: Tensor, data: Any, dtype: torch.dtype | None = None) -> Tensor:
            """As torch's own, which in FakeTensorMode takes cuda:0 for cuda:1."""
            return make(data, dtype=dtype or like.dtype, device=like.device)

        patch.setattr(Tensor, "new_tensor", self._noted(new_tensor, lambda args, options: args[0].device))
        patch.setattr(torch, "tensor", self._noted(torch.tensor, lambda args, options: options.get("device")))
        patch.setattr(torch, "as_tensor", self._noted(torch.as_tensor, lambda args, options: options.get("device")))
        with self.fake, self:
            yield self

    def _noted(self, make: Callable[..., Tensor], device_of: Callable[..., Any]) -> Callable[..., Tensor]:
        def noted(*args: Any, **options: Any) -> Tensor:
            device = device_of(args, options)
            if device is not None and torch.device(device).type == "cuda":
                self.note("copy of Python's numbers")
            return make(*args, **options)

        return noted


class _Event:
    """torch.cuda.Event and Stream, of a GPU that is always done."""

    def __init__(self, **settings: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: "_Event") -> float:
        return 0.0
