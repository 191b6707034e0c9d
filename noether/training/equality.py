"""What a resumed run shares with the undisturbed one: the same bits, or the same samples only, and why."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from noether.checkpoints.state import model_tensors


def differences_of_resume(meta: Mapping[str, Any], world_size: int, threads: int, model: nn.Module) -> list[str]:
    """Returns what a resumed run will not share with the undisturbed one; empty where its bits are the same.

    `meta` is of the checkpoint that is resumed; the others are of this start, `threads` those of a rank's arithmetic.
    """
    said = []
    if meta["world_size"] != world_size:
        said.append(
            f"{meta['world_size']} ranks before, {world_size} now: the order of samples goes on, "
            "and sums are rounded in another order"
        )
        # BatchNorm normalises by the samples of its own rank and micro-batch; dropout draws on each rank.
        modules = list(model.modules())
        kinds = {
            "BatchNorm": any(isinstance(module, _BatchNorm) for module in modules),
            "dropout": any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules),
        }
        if layers := [name for name, there in kinds.items() if there]:
            said.append(
                f"the model has {' and '.join(layers)}: with another number of ranks its weights differ by more "
                "than rounding"
            )
    before = meta.get("threads", threads)  # Checkpoints of older versions do not say.
    if before != threads:
        said.append(f"{before} threads a rank before, {threads} now: sums are rounded in another order")
    tensors = model_tensors(model)
    if others := [name for name in model.state_dict() if name not in tensors]:
        said.append(f"{', '.join(others)} of the model's state_dict: not a tensor, so no checkpoint holds it")
    return said
