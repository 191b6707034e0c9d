"""Load an exported model from its folder. The model takes positions in m and returns fields in physical units:

from noether.physics.export.exported_model import load_exported
model = load_exported("car-export")
fields = model({"geometry_points": ..., "surface_points": ..., "volume_points": ...})
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from noether.common.dotted_path import code_granted
from noether.common.errors import RequestError
from noether.common.safe_open import open_plain, read_plain
from noether.core.data.order import fixed_rows
from noether.core.data.packed import check_digest
from noether.core.tasks.angles import as_angle
from noether.runs.records import parse_object

ABOUT, WEIGHTS, PROGRAM = "model.json", "model.safetensors", "model.pt2"
FORMAT = 3


class PhysicalModel(nn.Module):
    """A model wrapped in its task's scaling: arguments are ordered as in `inputs`, results as in `outputs`."""

    def __init__(self, model: nn.Module, task: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.task, self.inputs, self.outputs = model, task, inputs, outputs

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Map arguments (B, N, C) and parameters (B, C) to fields (B, N, C) and outputs, all in physical units."""
        prepared = self.task.prepare(dict(zip(self.inputs, arguments, strict=True)))
        physical = self.task.to_physical(self.model(prepared))
        angles = {name: as_angle(physical[name], period)[..., None] for name, period in self.task.periods.items()}
        return tuple({**physical, **angles}[name] for name in self.outputs)


@dataclass(frozen=True)
class ExportedModel:
    """A loaded export: call it with arrays to predict. The attribute `about` is the content of model.json."""

    about: Mapping[str, Any]
    run: Callable[..., tuple[Tensor, ...]]

    @property
    def inputs(self) -> dict[str, list[int]]:
        """The shape of each array that a call needs, by name, without the batch axis; -1 is any number of points."""
        return {
            argument["name"]: [-1 if isinstance(axis, str) else axis for axis in argument["shape"][1:]]
            for argument in self.about["arguments"]
        }

    @torch.no_grad()
    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, Tensor]:
        """Predict each field (N, C) in its physical unit; vectors are in the axes that `about["axes"]` describes.

        arrays: NumPy arrays or tensors for all names in `inputs`; positions are in m, in the same axes. The length of
        geometry_points and anchors is fixed: from a longer array, a fixed random choice of rows is used.
        RequestError: an array is missing or has another shape.
        """
        arguments = {name: self._argument(name, shape, arrays) for name, shape in self.inputs.items()}
        self._check_lengths(arguments)
        found = self.run(*arguments.values())
        return {result["name"]: value[0] for result, value in zip(self.about["results"], found, strict=True)}

    def _check_lengths(self, arguments: Mapping[str, Tensor]) -> None:
        """Raise RequestError if the arrays of a set differ in length; without this check, the model would fail."""
        lengths: dict[str, dict[str, int]] = {}
        for argument in self.about["arguments"]:
            name = argument["name"]
            for axis, length in zip(argument["shape"], arguments[name].shape, strict=True):
                if isinstance(axis, str):
                    lengths.setdefault(axis, {})[name] = length
        for axis, found in lengths.items():
            if len(set(found.values())) > 1:
                raise RequestError("export-input-lengths",
                                   f"the arrays of the set {axis} differ in their numbers of points",
                                   seen=", ".join(f"{name} {length}" for name, length in found.items()),
                                   expected="arrays of equal length for each set of points")  # fmt: skip

    def _argument(self, name: str, shape: list[int], arrays: Mapping[str, Any]) -> Tensor:
        if name not in arrays:
            raise RequestError(
                "export-input-missing", f"{name} is missing", seen=", ".join(arrays), expected=", ".join(self.inputs)
            )
        value = torch.as_tensor(np.asarray(arrays[name]), dtype=torch.float32)
        fixed = shape[0] if shape else 0
        if len(shape) < 2 and fixed >= 0 and value.numel() == math.prod(shape):  # For example, a number for (1,).
            value = value.reshape(shape)
        if len(shape) > 1 and 0 < fixed < len(value):
            value = value[torch.from_numpy(fixed_rows(len(value), fixed))]
        if list(value.shape[1:]) != shape[1:] or (shape and (len(value) != fixed if fixed > 0 else len(value) < 2)):
            raise RequestError("export-input-shape", f"{name} has the wrong shape", seen=str(list(value.shape)),
                               expected=f"{shape}" + ("" if fixed > 0 else ", at least 2 points"))  # fmt: skip
        return value[None]


def load_exported(folder: str | Path, *, program: bool | None = None, trust: bool = False) -> ExportedModel:
    """Load an export on the CPU.

    folder: a folder written by `noether export`.
    program: with True, load the compiled graph model.pt2; with False, load the weights into the model's code; with
    None, load the graph if it exists and is trusted, else the weights.
    trust: whether the export may run code. torch reads a graph with pickle, and its formulas with eval, so any
    model.pt2 can run code. Loading weights runs code only if model.json names a model or a task by dotted path.
    RequestError: the folder has no export, or lacks the requested part; or it can run code and is not trusted.
    """
    folder = Path(folder)
    try:
        about = parse_object(read_plain(folder / ABOUT))
    except (OSError, ValueError) as error:
        raise _no_export(folder, error) from None
    if about.get("format") != FORMAT:
        raise RequestError(
            "export-format", f"{folder} has an unknown format", seen=str(about.get("format")), expected=str(FORMAT)
        )
    if program is None:
        program = trust and (folder / PROGRAM).is_file()
    if program:
        if not trust:
            raise RequestError(
                "export-not-trusted",
                f"{folder / PROGRAM} may run code with your permissions: torch reads it with pickle",
                expected="an export that you made, or whose author you trust",
                fix=f"load_exported({str(folder)!r}, trust=True)      (or program=False, to load the weights alone)",
            )
        if not (folder / PROGRAM).is_file():
            raise RequestError(
                "no-exported-program", f"{folder} has no {PROGRAM}", expected="an export with its program"
            )
        # torch gives a harmless warning for every symbolic size that its simplified graph no longer contains.
        logger = logging.getLogger("torch._export.serde.serialize")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            return ExportedModel(about, torch.export.load(folder / PROGRAM).module())
        finally:
            logger.setLevel(level)
    from noether.checkpoints.state import load_tensors
    from noether.core.models.build import build_model
    from noether.core.tasks.base import build_task

    with code_granted([about["task"]["kind"], about["model"]["kind"]] if trust else ()):
        task = build_task(about["task"]["kind"], **about["task"]["options"])
        task.load_state(about["task"]["state"])
        model = build_model(about["model"]["kind"], task.layout(), **about["model"]["options"])
    load_tensors(model, _weights(folder))
    arguments, results = (tuple(one["name"] for one in about[part]) for part in ("arguments", "results"))
    return ExportedModel(about, PhysicalModel(model.eval(), task, arguments, results))


def _weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights, by name. RequestError: the file of weights is missing or was modified."""
    path = folder / WEIGHTS
    try:
        with open_plain(path) as file:
            content = file.read()
        check_digest(path)
        return load(content)
    except (OSError, SafetensorError) as error:
        raise _no_export(folder, error) from None


def _no_export(folder: Path, error: Exception) -> RequestError:
    return RequestError("no-exported-model", f"{folder} holds no exported model", seen=str(error),
                        expected=f"{ABOUT} and {WEIGHTS}", fix=f"noether export runs/NAME {folder}")  # fmt: skip
