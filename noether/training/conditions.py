"""What a run's bits depend on besides its settings: recorded with it and its checkpoints, compared when it resumes."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from noether.checkpoints.resume_rules import is_accepted
from noether.checkpoints.state import model_tensors
from noether.common.errors import RequestError

VERSIONS = ("torch", "numpy", "scipy")


def conditions_of(device: torch.device) -> dict[str, Any]:
    """Returns the threads that a rank really uses, its processor, the instructions torch uses of it, and its device."""
    processor = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "threads": torch.get_num_threads(),
        "processor": processor,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def differences_of_resume(meta: Mapping[str, Any], now: Mapping[str, Any], model: nn.Module) -> list[str]:
    """Returns what a resumed run will not share with the undisturbed one; empty where its bits are the same.

    `meta` is of the checkpoint that is resumed, `now` the same of those that this start will write.
    """
    said = []
    changed = [name for name in ("world_size", "micro_batch_size") if meta[name] != now[name]]
    if changed:
        ranks = changed[0] == "world_size"
        before, here = meta[changed[0]], now[changed[0]]
        what = f"{before} ranks" if ranks else f"micro-batches of {before}"
        said.append(f"{what} before, {here} now: the order of samples continues, and sums are rounded in another order")
        # BatchNorm normalises by the samples of its own rank and micro-batch; dropout draws for each.
        modules = list(model.modules())
        normed = any(isinstance(module, _BatchNorm) for module in modules)
        dropped = any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules)
        if layers := ["BatchNorm"] * normed + ["dropout"] * dropped:
            said.append(
                f"the model has {' and '.join(layers)}: with another {'number of ranks' if ranks else 'micro-batch'} "
                "its weights differ by more than rounding"
            )
    before, here = _known(meta), _known(now)
    # What was not to be had, such as the driver's version, is not known to differ.
    differing = (name for name in here if before.get(name, here[name]) != here[name])
    if others := [f"{name} {before[name]} → {here[name]}" for name in differing]:
        said.append(f"{', '.join(others)}: results may be rounded differently from here on")
    tensors = model_tensors(model)
    if others := [name for name in model.state_dict() if name not in tensors]:
        said.append(f"{', '.join(others)} of the model's state_dict: not a tensor, so no checkpoint holds it")
    return said


def data_changes(meta: Mapping[str, Any], now: Mapping[str, Any], accepted: Sequence[str], run: str) -> list[str]:
    """Returns a line where a run goes on with other data than those of its checkpoint, and that is accepted.

    `now`: the data of this start, by `data_identity`. RequestError: they differ, and `accept_changes` has neither
    dataset nor all.
    """
    before = meta["data"]
    if before == now:
        return []
    seen, expected = (
        f"{data['training']} and {data['test']} samples, digest {str(data['digest'])[:12]}" for data in (now, before)
    )
    if not is_accepted("dataset", accepted):
        raise RequestError(
            "resume-other-data",
            f"the data are not what {run} was trained on",
            seen=f"{seen} (training and test)",
            expected=expected,
            fix="dataset_root=FOLDER      (where the data of before lie)\n"
            f"'accept_changes=[{','.join([*accepted, 'dataset'])}]'      (goes on with these; resume=null "
            "run_id=ANOTHER_NAME starts a run of its own)",
        )
    return [f"the data have changed since the checkpoint, as accepted: {expected} before, {seen} now"]


def _known(meta: Mapping[str, Any]) -> dict[str, Any]:
    made = meta["provenance"]
    versions = {name: made["packages"].get(name) for name in VERSIONS}
    known = {**meta["conditions"], "noether": made["noether"], **versions}
    known |= {name: made.get(name) for name in ("driver", "nccl")}
    return {name: value for name, value in known.items() if value is not None}
