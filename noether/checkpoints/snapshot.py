"""The state between two updates, copied aside so that training can go on while it is written."""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 16 * 2**20
"""A write is given up, and its progress seen, between two of these."""

# https://github.com/huggingface/safetensors#format
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Snapshot:
    """All that a checkpoint holds: tensors by file and name, texts by file, and further content of meta.json."""

    updates: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    texts: Mapping[str, str]
    meta: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensors in self.tensors.values() for tensor in tensors.values())


class StagingBuffer:
    """Memory for one copy of a state, kept from one checkpoint to the next.

    Memory that is new costs more than the copy itself: the system clears every page of it first. From a GPU the
    copy goes to page-locked memory.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Tensor] = {}

    def copy(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Returns copies, in CPU memory that the next call overwrites; complete on return."""
        copies: dict[str, dict[str, Tensor]] = {}
        streams = set()
        for file, named in tensors.items():
            copies[file] = {}
            for name, tensor in named.items():
                kept = self._kept.get((file, name))
                if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
                    kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                    self._kept[file, name] = kept
                copies[file][name] = kept.copy_(tensor, non_blocking=True)
                if tensor.is_cuda:
                    streams.add(torch.cuda.current_stream(tensor.device))
        for stream in streams:
            stream.synchronize()
        return copies


def safetensors_parts(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yields a safetensors file piece by piece, the tensors' own memory among them: nothing is copied.

    Args:
        tensors: contiguous, in CPU memory.
    """
    # Widest types first, so that every tensor lies at a multiple of its element's size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, position = {}, 0
    for name, tensor in ordered:
        end = position + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for _, tensor in ordered:
        content = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data) if tensor.nbytes else memoryview(b"")
        for start in range(0, len(content), CHUNK_BYTES):
            yield content[start : start + CHUNK_BYTES]
