"""A run's model for other programs: safetensors and JSON, and a graph of torch.export that is checked on load."""

import json
import resource
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from noether import __version__
from noether.common.console import Console
from noether.data.ellipsoid_car import EllipsoidCar, sample_surface, sample_volume
from noether.distributed.group import joined_group
from noether.errors import ExitCode, NoetherError
from noether.evaluation.exported import ABOUT, FORMAT, PROGRAM, WEIGHTS, PhysicalModel, load_exported
from noether.evaluation.predict import TrainedModel, load_trained, shape_batch
from noether.evaluation.request import ExportRequest
from noether.evaluation.shape_input import Shape
from noether.workers.context import WorkerContext

COUNTS = (64, 1000, 3586)
"""Numbers of points at which the program is held against the model."""
TOLERANCE = 1e-5


def export_worker(context: WorkerContext, request: ExportRequest) -> int:
    """Writes the export beside its final name, checks it as a user will load it, and says what it takes."""
    console, out = Console(None, speaks=True), request.out
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with joined_group(context) as group:
            trained = load_trained(request.config, request.checkpoint, request.weights, group.device)
            trained.model.float()
            physical, example = physical_model(trained)
            _write_weights(partial, trained, physical, example, request)
            if request.program:
                _write_program(partial, physical, example)
                worst = check_program(partial, trained, physical)
                console.say(
                    f"the program differs from the model by {worst:.1e} of a standard deviation at most, "
                    f"at {', '.join(f'{count:,}' for count in COUNTS)} points of each set"
                )
                console.say(_cost(partial, trained, physical))
        if out.exists():
            shutil.rmtree(out)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    console.say(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    return ExitCode.DONE


def physical_model(trained: TrainedModel) -> tuple[PhysicalModel, dict[str, Tensor]]:
    """Returns the model with its scaling round it, and an example of its inputs, each (1, N, C)."""
    example = example_inputs(trained, COUNTS[1])
    outputs = tuple(name for name, field in trained.task.fields.items() if field.points in example)
    return PhysicalModel(trained.model, trained.task, tuple(example), outputs).eval(), example


def example_inputs(trained: TrainedModel, count: int) -> dict[str, Tensor]:
    """Inputs of a car-like half ellipsoid with `count` queries in each set, and what shows the shape as in training."""
    car = EllipsoidCar(2.0, 1.0, 0.9)
    points = sample_surface(car, max(trained.points_learned, count), 0)
    needs = any(field.points == "volume_points" for field in trained.task.fields.values())
    air = sample_volume(car, count, 0) if needs else None
    whole = points[: trained.points_learned]
    shape = Shape(whole, None, car.normals(whole), np.zeros(len(whole)), {}, np.arange(len(whole)))
    batch = shape_batch(trained, shape, air)
    asked = torch.from_numpy(points[:count].astype(np.float32))[None]
    normals = torch.from_numpy(car.normals(points[:count]).astype(np.float32))[None]
    return {**batch, "surface_points": asked, "surface_normals": normals}


def check_program(folder: Path, trained: TrainedModel, physical: PhysicalModel) -> float:
    """Loads the program and compares it with the model at three numbers of points.

    Returns:
        The largest difference, in standard deviations of the field's channel.

    Raises:
        NoetherError: it is above TOLERANCE.
    """
    loaded, worst = load_exported(folder, program=True), 0.0
    for count in COUNTS:
        inputs = example_inputs(trained, count)
        with torch.no_grad():
            expected = dict(zip(physical.outputs, physical(*inputs.values()), strict=True))
        found = loaded({name: value[0].numpy() for name, value in inputs.items()})
        for name, value in expected.items():
            std = torch.tensor(trained.task.statistics[name][1])
            worst = max(worst, float(((found[name] - value[0]) / std).abs().max()))
    if not worst <= TOLERANCE:
        raise NoetherError(
            f"the exported program differs by {worst:.1e} of a standard deviation (allowed {TOLERANCE:g})"
            "\n  fix       noether export RUN OUT --weights-only"
        )
    return worst


def _write_weights(
    folder: Path, trained: TrainedModel, physical: PhysicalModel, example: dict[str, Tensor], request: ExportRequest
) -> None:
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in trained.model.state_dict().items()}
    save_file(tensors, folder / WEIGHTS)
    config = request.config
    about: dict[str, Any] = {
        "format": FORMAT,
        "noether": __version__,
        "torch": torch.__version__,
        "checkpoint": request.checkpoint.name,
        "weights": request.weights,
        "inputs": {
            name: [-1 if _is_dynamic(name) else value.shape[1], *value.shape[2:]] for name, value in example.items()
        },
        "outputs": list(physical.outputs),
        "units": {name: field.unit for name, field in trained.task.fields.items()},
        "model": {"kind": config.model.kind, "options": config.model.options()},
        "task": {"kind": config.task.kind, "options": config.task.model_dump(mode="json", exclude={"kind"})},
    }
    about["task"]["state"] = trained.task.state()
    (folder / ABOUT).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n")


def _write_program(folder: Path, physical: PhysicalModel, example: dict[str, Tensor]) -> None:
    dimensions = {prefix: torch.export.Dim(prefix, min=2, max=2**24) for prefix in ("surface", "volume")}
    shapes = tuple({1: dimensions[name.partition("_")[0]]} if _is_dynamic(name) else {} for name in example)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(physical, tuple(example.values()), dynamic_shapes=(shapes,), strict=False)
            # Joins the parts that autocast contexts had made graphs of their own, which cannot all be loaded again.
            program = program.run_decompositions({})
            torch.export.save(program, folder / PROGRAM)
    except Exception as error:  # whatever in a model's own code cannot be traced
        raise NoetherError(
            f"torch.export cannot write this model: {' '.join(str(error).split())[:300]}\n"
            "  fix       noether export RUN OUT --weights-only"
        ) from error


def _is_dynamic(name: str) -> bool:
    """Queries come in any number; the geometry and the anchors in the number that the model has learned with."""
    return name.startswith(("surface_", "volume_"))


def _cost(folder: Path, trained: TrainedModel, physical: PhysicalModel) -> str:
    loaded, inputs = load_exported(folder, program=True), example_inputs(trained, COUNTS[-1])
    arrays = {name: value[0].numpy() for name, value in inputs.items()}
    seconds = []
    for _ in range(4):
        started = time.perf_counter()
        loaded(arrays)
        seconds.append(time.perf_counter() - started)
    points = sum(inputs[trained.task.fields[name].points].shape[1] for name in physical.outputs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"{points:,} points in {sorted(seconds[1:])[1] * 1e3:.0f} ms on this CPU, {torch.get_num_threads()} threads "
        f"(median of 3); peak memory of this process, export included, {peak:.0f} MiB"
    )
