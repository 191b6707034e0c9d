"""A trained model on a shape of one's own: fields at any resolution, in chunks of bounded memory, as VTK files."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noether.checkpoints.format import CheckpointFolder
from noether.checkpoints.state import load_task_state, load_weights
from noether.common.console import Console
from noether.config.schema import RunConfig
from noether.data.ellipsoid_car import BOX_HIGH, BOX_LOW
from noether.data.points import ANCHOR, KNOWN, PointDraw, Sample
from noether.data.surface_mesh import frontal_area
from noether.distributed.group import joined_group
from noether.errors import ExitCode, RequestError
from noether.evaluation.evaluate import predict
from noether.evaluation.request import PredictRequest
from noether.evaluation.shape_input import (
    Shape,
    as_trained,
    check_range,
    open_surface_warnings,
    read_points,
    read_shape,
    volume_inputs,
)
from noether.evaluation.vtk_output import write_fields
from noether.learning.precision import Precision
from noether.models.build import build_model
from noether.models.points import PointModel
from noether.tasks.build import build_task
from noether.tasks.fields import FieldsTask, force_coefficient
from noether.workers.context import WorkerContext

VOLUME_ANCHORS = 4096


@dataclass(frozen=True)
class TrainedModel:
    """A checkpoint's model with the task that scales for it; no data is needed."""

    config: RunConfig
    model: nn.Module
    task: FieldsTask
    device: torch.device
    precision: Precision

    @property
    def points_learned(self) -> int:
        """Surface points of a training sample."""
        return int(self.task.seen["surface_points"]["count"])


def load_trained(config: RunConfig, checkpoint: Path, weights: str, device: torch.device) -> TrainedModel:
    """Builds a run's model and loads a checkpoint's weights and scaling.

    Raises:
        RequestError: the task has no fields at points, or the checkpoint says nothing of the points it was fitted to.
    """
    task = build_task(config.task.kind, **config.task.options())
    if not isinstance(task, FieldsTask):
        raise RequestError(
            "only a model of fields at points can be predicted with or exported",
            seen=f"task.kind={config.task.kind}",
            expected="a run with task.kind=fields",
            fix="noether evaluate RUN      (the figures of a run of any task)",
        )
    load_task_state(task, CheckpointFolder(checkpoint))
    if "surface_points" not in task.seen:
        raise RequestError(
            f"checkpoint {checkpoint.name} does not say on which points the model was trained",
            seen="no surface_points in task.json",
            expected="a checkpoint of this version, of a data set with surface_points",
            fix="train again, or resume the run for one update",
        )
    precision = Precision(config.trainer.precision, device.type)
    model = build_model(config.model.kind, **config.model.options()).to(device, precision.weights)
    load_weights(model, CheckpointFolder(checkpoint), weights)
    return TrainedModel(config, model.eval(), task, device, precision)


def shape_batch(trained: TrainedModel, shape: Shape, volume: np.ndarray | None) -> dict[str, Tensor]:
    """Returns a batch of one in physical units: the shape as in training, and every point as a query.

    The geometry, and the anchors of models whose points attend to points, come from as many points as a training
    sample has; the queries are all the shape's points, and `volume` (N, 3) if there are any.
    """
    points, normals = as_trained(shape, trained.points_learned)
    context: Sample = _tensors(surface_points=points)
    asked = _tensors(surface_points=shape.points)
    if shape.normals.any():  # points alone have none, and zeros would be taken for a direction
        context |= _tensors(surface_normals=normals)
        asked |= _tensors(surface_normals=shape.normals)
    needs_volume = hasattr(trained.model, "attend")
    if needs_volume:
        anchors = volume if volume is not None and len(volume) >= VOLUME_ANCHORS else _air_points(trained, points)
        context |= _volume_tensors(anchors, points)
    settings = trained.config.dataset
    draw = PointDraw(trained.config.seed, settings.points_per_update, settings.geometry_points)
    shown = draw.for_evaluation(context)
    batch = {key: value for key, value in shown.items() if key not in context}
    if needs_volume:  # sets that training draws no points of attend to all of theirs
        every = {ANCHOR + key: value for key, value in context.items() if key.partition("_")[2] in KNOWN}
        batch = {**every, **batch}
    batch |= asked
    if volume is not None:
        batch |= _volume_tensors(volume, points)
    return {key: value[None].to(trained.device) for key, value in batch.items()}


@torch.no_grad()
def predict_shape(trained: TrainedModel, batch: dict[str, Tensor], chunk_size: int) -> dict[str, np.ndarray]:
    """Returns the fields (N,) or (N, C) in physical units at the batch's query points, so many of them at a time.

    Raises:
        RequestError: the batch lacks what the model reads: normals, or enough points of the shape.
    """
    in_chunks = chunk_size if hasattr(trained.model, "forward_in_chunks") else None
    asked = {name: field.points for name, field in trained.task.fields.items() if field.points in batch}
    moved = {key: value.to(trained.precision.weights) for key, value in batch.items()}
    try:
        with trained.precision.autocast():
            standardised = predict(trained.model, trained.task.prepare(moved), in_chunks)
    except ValueError as error:
        if not isinstance(trained.model, PointModel):
            raise  # someone's own code, whose traceback they need
        raise RequestError(
            "the shape does not give what the model reads",
            seen=str(error),
            expected="a mesh with faces, of which any number of points and their normals can be taken",
        ) from error
    physical = trained.task.to_physical({name: standardised[name].to(trained.precision.weights) for name in asked})
    return {name: np.squeeze(value[0].double().cpu().numpy(), axis=-1) if value.shape[-1] == 1
            else value[0].double().cpu().numpy() for name, value in physical.items()}  # fmt: skip


def predict_worker(context: WorkerContext, request: PredictRequest) -> int:
    """Predicts on one device, writes the files and says what was done."""
    console = Console(None, speaks=True)
    shape = read_shape(request.mesh, request.scale)
    volume = read_points(request.volume, request.scale) if request.volume else None
    with joined_group(context) as group:
        trained = load_trained(request.config, request.checkpoint, request.weights, group.device)
        truth = _truth(request, shape, trained.task)
        seen = trained.task.seen
        given = {"surface_points": (request.mesh, shape.points)}
        if request.volume is not None and volume is not None:
            given["volume_points"] = (request.volume, volume)
        for key, (path, points) in given.items():
            if key in seen:
                low, high = np.array(seen[key]["low"]), np.array(seen[key]["high"])
                for words in check_range(path, points, low, high):
                    console.warn(words)
        for words in open_surface_warnings(request.mesh, shape):
            console.warn(words)
        if shape.faces is None and len(shape.points) < trained.points_learned:
            console.warn(
                f"{request.mesh} has {len(shape.points)} points, and the model has learned to read shapes of "
                f"{trained.points_learned}: give a mesh, of whose faces as many are taken, or more points"
            )
        started = time.perf_counter()
        fields = predict_shape(trained, shape_batch(trained, shape, volume), request.chunk_size)
        seconds = time.perf_counter() - started
        for line in _write(request, shape, volume, trained.task, fields, truth):
            console.say(line)
        for line in _forces(trained.task, shape, fields):
            console.say(line)
        predicted = len(shape.points) + (0 if volume is None else len(volume))
        console.say(f"{predicted:,} points in {seconds:.2f} s, {request.chunk_size:,} at a time, on {group.device}")
    return ExitCode.DONE


def _truth(request: PredictRequest, shape: Shape, task: FieldsTask) -> dict[str, np.ndarray]:
    """True values where the mesh file holds arrays of a field's name, or a .npy file gives them for its points."""
    found = {name: value for name, value in shape.values.items() if name in task.fields}
    if request.truth is None:
        return found
    try:
        values = np.asarray(np.load(request.truth, allow_pickle=False), np.float64)
    except (OSError, ValueError, EOFError) as error:
        raise RequestError(f"{request.truth} cannot be read", seen=str(error), expected="a .npy file") from None
    name = next((name for name, field in task.fields.items() if field.points == "surface_points"), None)
    if name is None:
        raise RequestError("--truth is of a field on the surface", seen=", ".join(task.fields), expected="such a field")
    channels, rows = len(task.statistics[name][0]), int(shape.rows.max(initial=0)) + 1
    if channels == 1 and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape[1:] != ((channels,) if channels > 1 else ()) or not values.ndim or len(values) < rows:
        raise RequestError(
            f"{request.truth} does not fit {request.mesh}",
            seen=f"shape {values.shape}",
            expected=f"{name} at each point of the file: "
            + (f"({rows}, {channels})" if channels > 1 else f"({rows},)"),
        )
    return {**found, name: values[shape.rows]}


def _write(
    request: PredictRequest,
    shape: Shape,
    volume: np.ndarray | None,
    task: FieldsTask,
    fields: dict[str, np.ndarray],
    truth: dict[str, np.ndarray],
) -> list[str]:
    lines = []
    for prefix, points, faces in (("surface", shape.points, shape.faces), ("volume", volume, None)):
        own = {name: values for name, values in fields.items() if task.fields[name].points == f"{prefix}_points"}
        if points is None or not own:
            continue
        arrays: dict[str, np.ndarray] = {}
        for name, values in own.items():
            arrays[f"{name}_prediction"] = values
            if prefix == "surface" and name in truth and truth[name].shape == values.shape:
                arrays |= {name: truth[name], f"{name}_error": values - truth[name]}
                norm = np.linalg.norm(truth[name])
                relative = (
                    f"{np.linalg.norm(values - truth[name]) / norm:.2%}" if norm else "undefined, for 0 everywhere,"
                )
                lines.append(f"{name.replace('_', ' ')}: relative L2 {relative} of the truth that was given")
        out = request.out
        path = out if prefix == "surface" else out.with_name(f"{out.stem}_volume{out.suffix}")
        write_fields(path, points, faces, arrays)
        lines.append(f"{path}: {len(points):,} points, {', '.join(arrays)}")
    return lines


def _forces(task: FieldsTask, shape: Shape, fields: dict[str, np.ndarray]) -> list[str]:
    """The force coefficients of the predicted pressure, for meshes."""
    if shape.faces is None:
        return []
    area = frontal_area(shape.points, shape.faces)
    lines = []
    for name, scalar in task.scalars.items():
        values: dict[str, Any] = {
            scalar.points: shape.points,
            scalar.normals: shape.normals,
            scalar.areas: shape.areas,
            scalar.reference_area: np.array([area]),
        }
        batch = {key: torch.from_numpy(value)[None] for key, value in values.items()}
        if scalar.pressure in fields:
            pressure = torch.from_numpy(fields[scalar.pressure])[None, :, None]
            lines.append(f"{name.replace('_', ' ')}: {float(force_coefficient(pressure, batch, scalar)):.4f}")
    if lines:
        made_with = {f"{scalar.dynamic_pressure:g} Pa" for scalar in task.scalars.values()}
        lines.append(
            f"  of the pressure alone, on the frontal area of the mesh, {area:.4g} m², and a dynamic pressure of "
            + " and ".join(sorted(made_with))
        )
    return lines


def _air_points(trained: TrainedModel, surface: np.ndarray) -> np.ndarray:
    """Points in the air that models attend to where none were given: half in the box of training, half near the car."""
    seen = trained.task.seen.get("volume_points", {"low": BOX_LOW, "high": BOX_HIGH, "count": VOLUME_ANCHORS})
    count, rng = max(int(seen["count"]), VOLUME_ANCHORS), np.random.default_rng(0)
    box = rng.uniform(seen["low"], seen["high"], (count // 2, 3))
    near = surface[rng.integers(len(surface), size=count - count // 2)]
    return np.concatenate([box, near + rng.normal(0, 0.2, near.shape)])


def _volume_tensors(points: np.ndarray, surface: np.ndarray) -> Sample:
    distance, direction = volume_inputs(points, surface)
    return _tensors(volume_points=points, volume_sdf=distance, volume_normals=direction)


def _tensors(**arrays: np.ndarray) -> Sample:
    return {key: torch.from_numpy(np.asarray(value, np.float32)) for key, value in arrays.items()}
