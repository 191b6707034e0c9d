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
from safetensors.torch import save
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
"""Numbers of points at which the program is held against the model, and of samples in a batch."""
BATCHES = (1, 2, 3)
EXAMPLE = Path(__file__).with_name("export_example.txt")
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
            shutil.rmtree(out)  # start.py has asked for --overwrite where anything was in it
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    console.say(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    return ExitCode.DONE


def physical_model(trained: TrainedModel) -> tuple[PhysicalModel, dict[str, Tensor]]:
    """Returns the model with its scaling round it, and an example of the inputs that it reads, each (2, N, C)."""
    example = example_inputs(trained, COUNTS[1], BATCHES[1])
    outputs = tuple(name for name, field in trained.task.fields.items() if field.points in example)
    whole = PhysicalModel(trained.model, trained.task, tuple(example), outputs).eval()
    read = _read_by(whole, example)
    return PhysicalModel(trained.model, trained.task, tuple(read), outputs).eval(), read


def _read_by(physical: PhysicalModel, example: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs that the outputs depend on: the others get no gradient."""
    given = {name: value.clone().requires_grad_() for name, value in example.items()}
    with torch.enable_grad():
        total = sum(value.sum() for value in physical(*given.values()))
        assert isinstance(total, Tensor)
        gradients = torch.autograd.grad(total, list(given.values()), allow_unused=True)
    return {name: example[name] for name, gradient in zip(given, gradients, strict=True) if gradient is not None}


def example_inputs(trained: TrainedModel, count: int, samples: int = 1) -> dict[str, Tensor]:
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
    one = {**batch, "surface_points": asked, "surface_normals": normals}
    return {key: value.expand(samples, *value.shape[1:]).contiguous() for key, value in one.items()}


def check_program(folder: Path, trained: TrainedModel, physical: PhysicalModel) -> float:
    """Loads the program and compares it with the model at three numbers of points and of samples.

    Returns:
        The largest difference, in standard deviations of the field's channel.

    Raises:
        NoetherError: it is above TOLERANCE.
    """
    loaded, worst = load_exported(folder, program=True), 0.0
    for count, samples in zip(COUNTS, BATCHES, strict=True):
        every = example_inputs(trained, count, samples)
        inputs = [every[name] for name in physical.inputs]
        with torch.no_grad():
            expected, found = physical(*inputs), loaded.run(*inputs)
        for name, one, other in zip(physical.outputs, expected, found, strict=True):
            std = torch.tensor(trained.task.statistics[name][1])
            worst = max(worst, float(((other - one) / std).abs().max()))
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
    (folder / WEIGHTS).write_bytes(save(tensors))  # as other files are written: save_file makes it 0600
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
    about["arguments"] = [_argument(trained, name, value) for name, value in example.items()]
    about["results"] = [
        {"name": name, "shape": ["batch", _axis(trained.task.fields[name].points), len(trained.task.statistics[name][0])],
         "unit": trained.task.fields[name].unit}
        for name in physical.outputs
    ]  # fmt: skip
    (folder / ABOUT).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n")


def _argument(trained: TrainedModel, name: str, value: Tensor) -> dict[str, Any]:
    """What a program must know of an argument: its place in the list is its position in the call."""
    points = name.endswith("_points")
    span = (trained.task.domain_low, trained.task.domain_low + trained.task.domain_length) if points else (-1.0, 1.0)
    return {
        "name": name,
        "shape": ["batch", _axis(name) if _is_dynamic(name) else value.shape[1], *value.shape[2:]],
        "unit": "m" if points or name.endswith("_sdf") else "",
        "low": span[0],
        "high": span[1],
    }


def _axis(name: str) -> str:
    """The set of points that a key belongs to, which names the axis of its points."""
    return name.partition("_")[0]


def _write_program(folder: Path, physical: PhysicalModel, example: dict[str, Tensor]) -> None:
    samples = torch.export.Dim("batch", min=1, max=2**16)
    dimensions = {_axis(name): torch.export.Dim(_axis(name), min=2, max=2**24) for name in example}
    shapes = tuple({0: samples} | ({1: dimensions[_axis(name)]} if _is_dynamic(name) else {}) for name in example)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(physical, tuple(example.values()), dynamic_shapes=(shapes,), strict=False)
            # Joins the parts that autocast contexts had made graphs of their own, which cannot all be loaded again.
            program = program.run_decompositions({})
            torch.export.save(program, folder / PROGRAM)
        shutil.copyfile(EXAMPLE, folder / "example.py")
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
    arrays = {name: inputs[name][0].numpy() for name in physical.inputs}
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
