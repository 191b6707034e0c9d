"""Predicts fields on a user's own shape, at any resolution and with bounded memory, and writes VTK files."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from noether.common.console import Console
from noether.data.about import axes_words
from noether.data.mesh_files import read_array
from noether.data.surface_mesh import frontal_area
from noether.distributed.group import joined_group
from noether.errors import ExitCode, RequestError
from noether.evaluation.shape_input import (
    FileAxes,
    Shape,
    check_range,
    open_surface_warnings,
    read_points,
    read_shape,
    read_solid,
)
from noether.evaluation.start import PredictRequest
from noether.evaluation.trained import TrainedModel, load_trained, outside_training, predict_shape, shape_batch
from noether.evaluation.vtk_output import field_arrays, write_fields, write_on_mesh
from noether.tasks.fields import FieldsTask
from noether.tasks.forces import force_coefficient
from noether.workers.context import WorkerContext


def predict_worker(context: WorkerContext, request: PredictRequest) -> int:
    """Predicts on one device, writes the files and says what was done."""
    console = Console(None, speaks=True)
    with joined_group(context) as group:
        trained = load_trained(request.chosen, group.device)
        files = FileAxes.of(trained.task.space, request.axes)
        scale = files.metres if request.scale is None else request.scale
        if trained.shape_at == "faces":
            given = read_shape(request.mesh, scale)
        else:
            given = read_solid(request.mesh, trained.shape_at, scale)
        air = read_points(request.volume, scale) if request.volume else None
        shape, others = files.shape(given), {} if air is None else {"volume_points": files.points(air)}
        truth = _truth(request, given, trained)
        if said := _how_read(request, files, scale, trained.task):
            console.say(said)
        for words in _shape_warnings(request, trained, shape, others, scale):
            console.warn(words)
        batch = shape_batch(trained, shape, others, request.parameters)
        for words in outside_training(trained, request.parameters):
            console.warn(words)
        started = time.perf_counter()
        fields = predict_shape(trained, batch, request.chunk_size)
        seconds = time.perf_counter() - started
        for line in _write(request, given, air, trained, files.back(fields), truth):
            console.say(line)
        for name, value in predicted_scalars(trained, shape, fields, request.parameters).items():
            console.say(f"{name.replace('_', ' ')}: {value}")
        if shape.faces is not None and trained.task.scalars:
            console.say(f"  {_made_with(trained.task, shape)}")
        predicted = len(shape.points) + sum(map(len, others.values()))
        console.say(f"{predicted:,} points in {seconds:.2f} s, {request.chunk_size:,} at a time, on {group.device}")
    return ExitCode.DONE


def _how_read(request: PredictRequest, files: FileAxes, scale: float, task: FieldsTask) -> str:
    """Says in which axes and unit the mesh is taken, where the files of training had others than the model."""
    said = []
    if files.words:
        said.append(f"axes of the files that were trained on ({files.words}; --axes model: {axes_words(task.space)})")
    if request.scale is None and scale != 1:
        said.append(f"{scale:g} m per unit, as there (--scale says otherwise)")
    return f"{request.mesh}: {', '.join(said)}" if said else ""


def _shape_warnings(
    request: PredictRequest, trained: TrainedModel, shape: Shape, others: Mapping[str, np.ndarray], scale: float
) -> list[str]:
    """What lies beyond the training split's box, is open or has few points; what is nothing like it is refused."""
    given = {trained.shape_set: (request.mesh, shape.points)}
    if request.volume is not None:
        given["volume_points"] = (request.volume, others["volume_points"])
    warnings, axes = [], axes_words(trained.task.space)
    for key, (path, points) in given.items():
        if seen := trained.task.seen.points.get(key):
            warnings += check_range(path, points, np.array(seen["low"]), np.array(seen["high"]), axes, scale=scale)
    warnings += open_surface_warnings(request.mesh, shape)
    is_thin = shape.faces is None and len(shape.points) < trained.points_learned
    if is_thin and trained.shape_at == "faces":
        warnings.append(
            f"{request.mesh} has {len(shape.points)} points, and the model has learned to read shapes of "
            f"{trained.points_learned}: give a mesh, of whose faces as many are taken, or more points"
        )
    return warnings


def _truth(request: PredictRequest, shape: Shape, trained: TrainedModel) -> dict[str, np.ndarray]:
    """True values where the mesh file holds arrays of a field's name, or a .npy file gives them for its points."""
    task, own = trained.task, trained.shape_set
    found = {name: value for name, value in shape.values.items() if name in task.fields}
    if request.truth is None:
        return found
    values = np.asarray(read_array(request.truth), np.float64)
    name = next((name for name, field in task.fields.items() if field.points == own), None)
    if name is None:
        raise RequestError(
            "truth-needs-surface-field",
            f"--truth needs a run that predicts a field at {own}",
            seen=", ".join(task.fields),
            expected=f"a field at {own}",
        )
    channels, rows = task.components[name], int(shape.rows.max(initial=0)) + 1
    if channels == 1 and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape[1:] != ((channels,) if channels > 1 else ()) or not values.ndim or len(values) < rows:
        raise RequestError(
            "truth-does-not-fit",
            f"{request.truth} does not fit {request.mesh}",
            seen=f"shape {values.shape}",
            expected=f"{name} at each point of the file: "
            + (f"({rows}, {channels})" if channels > 1 else f"({rows},)"),
        )
    return {**found, name: values[shape.rows]}


def _write(
    request: PredictRequest,
    shape: Shape,
    air: np.ndarray | None,
    trained: TrainedModel,
    fields: Mapping[str, np.ndarray],
    truth: Mapping[str, np.ndarray],
) -> list[str]:
    """Writes a file for each set: the user's own mesh again where one was given, else the points."""
    task, out = trained.task, request.out
    lines: list[str] = []
    sets = {trained.shape_set: (out, shape.points, shape.faces)}
    if air is not None:
        sets["volume_points"] = (out.with_name(f"{out.stem}_volume{out.suffix}"), air, None)
    for key, (path, points, faces) in sets.items():
        arrays: dict[str, np.ndarray] = {}
        for name in (name for name, field in task.fields.items() if field.points == key):
            true = truth.get(name) if key == trained.shape_set else None
            if true is None or true.shape != fields[name].shape:
                arrays |= field_arrays(name, fields[name])
                continue
            arrays |= field_arrays(name, fields[name], true)
            norm = np.linalg.norm(true)
            relative = f"{np.linalg.norm(fields[name] - true) / norm:.2%}" if norm else "undefined, for 0 everywhere,"
            lines.append(f"{name.replace('_', ' ')}: relative L2 {relative} of the truth that was given")
        if arrays and key == trained.shape_set and request.mesh.suffix != ".npy":
            write_on_mesh(path, request.mesh, shape.rows, arrays, at_cells=trained.shape_at == "cells")
        elif arrays:
            write_fields(path, points, faces, arrays)
        if arrays:
            lines.append(f"{path}: {len(points):,} points, {', '.join(arrays)}")
    return lines


def predicted_scalars(
    trained: TrainedModel, shape: Shape, fields: Mapping[str, np.ndarray], parameters: Mapping[str, float | list[float]]
) -> dict[str, str]:
    """The outputs of the case with their units, and for meshes the force coefficients of the predicted fields."""
    task, lines = trained.task, {}
    for name, field in task.case_fields.items():
        for label, value in zip(task.case_labels(name), np.atleast_1d(fields[name]), strict=True):
            lines[label] = f"{value:.4g} {field.unit}".removesuffix(" 1").rstrip()
    if shape.faces is None:
        return lines
    for name, scalar in task.scalars.items():
        if scalar.pressure not in fields or (scalar.shear is not None and scalar.shear not in fields):
            continue
        values: dict[str, Any] = {
            **{key: np.atleast_1d(value) for key, value in parameters.items()},
            scalar.points: shape.points,
            scalar.normals: shape.normals,
            scalar.areas: shape.areas,
        }
        values.setdefault(scalar.reference_area, np.array([_frontal_area(task, shape)]))
        batch = {key: torch.from_numpy(np.asarray(value, np.float64))[None] for key, value in values.items()}
        pressure = torch.from_numpy(fields[scalar.pressure])[None, :, None]
        shear = None if scalar.shear is None else torch.from_numpy(fields[scalar.shear])[None]
        lines[name] = f"{float(force_coefficient(pressure, batch, scalar, shear)):.4f}"
    return lines


def _frontal_area(task: FieldsTask, shape: Shape) -> float:
    assert shape.faces is not None
    return frontal_area(shape.points, shape.faces, np.asarray(task.space.get("wind", (0.0, 0.0, 1.0))))


def _made_with(task: FieldsTask, shape: Shape) -> str:
    """What the force coefficients are made with."""
    scalars = list(task.scalars.values())
    pressures = {
        f"each case's {own.dynamic_pressure}"
        if isinstance(own.dynamic_pressure, str)
        else f"{own.dynamic_pressure:g} Pa"
        for own in scalars
    }
    of = "of the pressure and the friction" if all(own.shear for own in scalars) else "of the pressure alone"
    areas = {
        f"the {own.reference_area} that was given"
        if own.reference_area in task.parameters
        else f"the frontal area of the mesh, {_frontal_area(task, shape):.4g} m²,"
        for own in scalars
    }
    return f"{of}, on {' and '.join(sorted(areas))} and a dynamic pressure of {' and '.join(sorted(pressures))}"
