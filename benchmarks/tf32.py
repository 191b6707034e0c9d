"""Measure how TF32 changes a trained model's predictions, by emulating its rounding on a CPU.

    python benchmarks/tf32.py RUN MESH

TF32 rounds the factors of a product from 23 to 10 bits of mantissa, and adds in float32 (NVIDIA, "TensorFloat-32 in the
A100 GPU Accelerates AI Training", 2020). This script rounds the factors of every matrix product and of attention to 10
bits, to nearest even, and in a second pass to the 7 bits of bf16. Prints for each field of the mesh the relative L2
difference between the rounded prediction and the prediction in float32.
"""

import sys
from typing import Any

import numpy as np
import torch
from record import told
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from noether import load_run

PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention"}  # fmt: skip


def rounded(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Round float32 values to `bits` bits of mantissa, to nearest even."""
    if values.dtype != torch.float32:
        return values
    whole = values.contiguous().view(torch.int32)
    drop = 23 - bits
    half = (1 << (drop - 1)) - 1 + ((whole >> drop) & 1)
    return ((whole + half) >> drop << drop).view(torch.float32)


class RoundedFactors(TorchDispatchMode):
    """A context in which the factors of every product are rounded to `bits` bits of mantissa."""

    def __init__(self, bits: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bits, self.seen = bits, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket.__name__ in PRODUCTS:
            self.seen += 1
            skip = 1 if "addmm" in func.overloadpacket.__name__ or "baddbmm" in func.overloadpacket.__name__ else 0
            rest = tree_map_only(torch.Tensor, lambda value: rounded(value, self.bits), args[skip:])
            args = (*args[:skip], *rest)
        return func(*args, **(kwargs or {}))


def main() -> None:
    """Print a line for each precision and field."""
    run, mesh = load_run(sys.argv[1]), sys.argv[2]
    exact = run.predict(mesh)
    for name, bits in (("TF32", 10), ("bf16", 7)):
        with RoundedFactors(bits) as mode:
            rough = run.predict(mesh)
        assert mode.seen, "no product was seen"
        for field, values in exact.items():
            if field == "points" or not isinstance(values, np.ndarray):
                continue
            difference = np.linalg.norm(rough[field] - values) / np.linalg.norm(values)
            print(f"{name} ({bits} bits, {mode.seen} products): {field} differs by {difference:.2e}")


if __name__ == "__main__":
    told(main)
