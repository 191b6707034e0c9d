"""Export a run's model for other programs: safetensors, JSON, and a torch.export graph checked against the model."""

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from noether import __version__
from noether.checkpoints.state import model_tensors
from noether.common.atomic_write import UNFENCED
from noether.common.console import Console
from noether.common.errors import ExitCode, NoetherError, RequestError
from noether.core.data.layout import CASE
from noether.core.data.packed import digest_of, write_digest
from noether.core.data.points import KNOWN
from noether.core.tasks.angles import as_pair
from noether.launch.process_group.group import joined_group
from noether.launch.processes.context import WorkerContext
from noether.physics.export.command import ExportRequest
from noether.physics.export.exported_model import (
    ABOUT,
    FORMAT,
    PROGRAM,
    WEIGHTS,
    ExportedModel,
    PhysicalModel,
    load_exported,
)
from noether.physics.predict.inference import TrainedModel, load_trained
from noether.physics.predict.shape_input import Shape
from noether.runs.report.elements import axes_words

COUNTS = (64, 1000, 3586)
"""The counts of points with which the program is compared to the model. BATCHES gives the batch size of each count."""
BATCHES = (1, 2, 3)
EXAMPLE = Path(__file__).with_name("export_example.txt")
TOLERANCE = 1e-5


def export_worker(context: WorkerContext, request: ExportRequest) -> int:
    """Write the export under a temporary name, load and check it as a user does, then rename it."""
    console, out = Console(None, speaks=True), request.out
    try:
        partial = UNFENCED.partial(out)
        partial.mkdir()
    except OSError as error:
        raise RequestError("export-folder-not-made", f"no export can be written to {out}",
                           seen=f"{error.filename or out.parent}: {error.strerror}",
                           expected="a folder that this user may create",
                           fix=f"noether export {request.chosen.folder.path} ANOTHER_FOLDER") from None  # fmt: skip
    try:
        with joined_group(context) as group:
            trained = load_trained(request.chosen, group.device)
            trained.model.float()
            physical, example = physical_model(trained)
            _write_weights(partial, trained, physical, example, request)
            if request.program:
                _write_program(partial, trained, physical, example)
                program = load_exported(partial, program=True, trust=True)
                worst = check_program(program, trained, physical)
                console.say(
                    f"the program differs from the model by {worst:.1e} of a standard deviation at most, "
                    f"at {', '.join(f'{count:,}' for count in COUNTS)} points of each set"
                )
        UNFENCED.publish(partial, out)  # `export_here` has required --overwrite for an existing export.
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if words := axes_words(trained.task.space):
        console.say(f"positions in m and vectors: {words}")
    console.say(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    return ExitCode.DONE


def physical_model(trained: TrainedModel) -> tuple[PhysicalModel, dict[str, Tensor]]:
    """Wrap the model in its scaling; return it with an example of each input that it reads.

    The examples have shape (2, N, C). An input is left out if it gets no gradient: then no output depends on it.
    """
    example = example_inputs(trained, COUNTS[1], BATCHES[1])
    physical = PhysicalModel(trained.model, trained.task, tuple(example), tuple(trained.task.outputs)).eval()
    given = {name: value.clone().requires_grad_() for name, value in example.items()}
    with torch.enable_grad():
        total = sum(value.sum() for value in physical(*given.values()))
        assert isinstance(total, Tensor)
        gradients = torch.autograd.grad(total, list(given.values()), allow_unused=True)
    read = {name: example[name] for name, gradient in zip(given, gradients, strict=True) if gradient is not None}
    physical.inputs = tuple(read)
    return physical, read


def example_inputs(trained: TrainedModel, count: int, samples: int) -> dict[str, Tensor]:
    """Return example inputs: a shape as in training, and `count` queries of each set at random in the training box."""
    task, rng = trained.task, np.random.default_rng(0)
    boxes = {name: task.seen.points[name] for name in task.seen.points if name != "geometry_points"}
    places = {name: rng.uniform(box["low"], box["high"], (count, 3)) for name, box in boxes.items()}
    own = trained.shape_set
    box = task.seen.points.get(own) or task.seen.points["geometry_points"]
    whole = rng.uniform(box["low"], box["high"], (max(trained.points_learned, count), 3))[: trained.points_learned]
    normals = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    features = trained.task.layout().features.get(own, {})
    values = {key: _typical(trained, key, len(whole)) for key in features if key.partition("_")[2] not in KNOWN}
    shape = replace(Shape.of_points(whole), normals=normals, values=values)
    others = {name: places[name] for name in trained.task.layout().sets if name != own}
    parameters = {key: _typical(trained, key, 1)[0].tolist() for key in task.parameters}
    batch = trained.shape_batch(shape, others, parameters)
    asked = places.get(own, whole)
    one = {
        own: torch.from_numpy(asked),
        own.replace("_points", "_normals"): torch.from_numpy(asked / np.linalg.norm(asked, axis=1, keepdims=True)),
        **{key: torch.from_numpy(_typical(trained, key, len(asked))) for key in values},
    }
    batch |= {key: value[None].to(trained.device, torch.float32) for key, value in one.items()}
    return {key: value.expand(samples, *value.shape[1:]).contiguous() for key, value in batch.items()}


def _typical(trained: TrainedModel, key: str, count: int) -> np.ndarray:
    """Draw values (count, C) of an input or a parameter at random, around its mean in the training split."""
    scaling = trained.task.statistics[key]
    drawn = np.random.default_rng(1).normal(0, 0.5, (count, len(scaling.mean)))
    return scaling.backward(torch.from_numpy(drawn)).numpy()


def check_program(loaded: ExportedModel, trained: TrainedModel, physical: PhysicalModel) -> float:
    """Compare a loaded program with the model on inputs of three sizes; return the largest difference.

    A difference is in standard deviations of its channel. NoetherError: the largest difference is above TOLERANCE.
    """
    worst = 0.0
    for count, samples in zip(COUNTS, BATCHES, strict=True):
        every = example_inputs(trained, count, samples)
        inputs = [every[name] for name in physical.inputs]
        with torch.no_grad():
            expected, found = physical(*inputs), loaded.run(*inputs)
        for name, one, other in zip(physical.outputs, expected, found, strict=True):
            scaling = trained.task.statistics[name]
            if period := trained.task.periods.get(name):
                one, other = as_pair(one[..., 0], period), as_pair(other[..., 0], period)
            worst = max(worst, float((scaling.forward(other) - scaling.forward(one)).abs().max()))
    if not worst <= TOLERANCE:
        raise NoetherError(
            f"the exported program differs by {worst:.1e} of a standard deviation (allowed {TOLERANCE:g})"
            "\n  fix       noether export RUN OUT --weights-only"
        )
    return worst


def _write_weights(
    folder: Path, trained: TrainedModel, physical: PhysicalModel, example: dict[str, Tensor], request: ExportRequest
) -> None:
    tensors = {name: value.cpu().contiguous().clone() for name, value in model_tensors(trained.model).items()}
    (folder / WEIGHTS).write_bytes(save(tensors))  # This keeps the usual file mode; save_file would set 0600.
    write_digest(folder / WEIGHTS, digest_of(folder / WEIGHTS))
    chosen, model, task = request.chosen, request.chosen.config.model, request.chosen.config.task
    sets = {name: [] if own.points == CASE else [own.points.removesuffix("_points")]
            for name, own in trained.task.outputs.items()}  # fmt: skip
    about: dict[str, Any] = {
        "format": FORMAT,
        "noether": __version__,
        "torch": torch.__version__,
        "checkpoint": chosen.checkpoint.path.name,
        "weights": chosen.weights,
        "model": {"kind": model.kind, "options": model.options()},
        "task": {
            "kind": task.kind,
            "options": task.model_dump(mode="json", exclude={"kind"}),
            "state": trained.task.state(),
        },
        "axes": axes_words(trained.task.space),
        "arguments": [_argument(trained, name, value) for name, value in example.items()],
        "results": [
            {"name": name, "shape": ["batch", *sets[name], trained.task.channels(name)], "unit": own.unit}
            for name, own in trained.task.outputs.items()
        ],
    }
    (folder / ABOUT).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n")


def _argument(trained: TrainedModel, name: str, value: Tensor) -> dict[str, Any]:
    """Describe an argument for model.json, which lists the arguments in the order of the call.

    The entries `low` and `high` give the range in training. For a parameter with several components, they are lists.
    """
    task, unit = trained.task, ""
    low: Any = -1.0
    high: Any = 1.0
    if name.endswith(("_points", "_sdf")):
        low, length = task.domain
        low, high, unit = (0.0, length, "m") if name.endswith("_sdf") else (low, low + length, "m")
    elif name in task.parameters:
        span = task.seen.parameters[name]
        low, high = (side[0] if len(side) == 1 else side for side in (span["low"], span["high"]))
        unit = task.parameters[name].unit
    return {"name": name, "shape": ["batch", *_axes(trained, name, value)], "unit": unit, "low": low, "high": high}


def _axes(trained: TrainedModel, name: str, value: Tensor) -> list[str | int]:
    """Return the axes of an argument after the batch axis: the set's name for an axis of points, else its length."""
    sets = () if name in trained.task.parameters else trained.axes
    prefix = next((axis for axis in sets if name.startswith(f"{axis}_")), None)
    return [prefix or value.shape[1], *value.shape[2:]] if value.ndim > 1 else []


def _write_program(folder: Path, trained: TrainedModel, physical: PhysicalModel, example: dict[str, Tensor]) -> None:
    samples = torch.export.Dim("batch", min=1, max=2**16)
    axes = {name: _axes(trained, name, value)[:1] for name, value in example.items()}
    dimensions = {axis: torch.export.Dim(axis, min=2, max=2**24) for axis in trained.axes}
    points = {name: dimensions.get(str(own[0])) if own else None for name, own in axes.items()}
    shapes = tuple({0: samples} if axis is None else {0: samples, 1: axis} for axis in points.values())
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(physical, tuple(example.values()), dynamic_shapes=(shapes,), strict=False)
            # This inlines the subgraphs that autocast contexts create, because some subgraphs cannot be loaded.
            program = program.run_decompositions({})
            torch.export.save(program, folder / PROGRAM)
        shutil.copyfile(EXAMPLE, folder / "example.py")
    except Exception as error:  # A model's code may fail to trace in any way.
        raise NoetherError(
            f"torch.export cannot write this model: {' '.join(str(error).split())[:300]}\n"
            "  fix       noether export RUN OUT --weights-only"
        ) from error
