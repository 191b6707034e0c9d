"""Predict fields on a user's shape of any resolution, in bounded memory, and write them to VTK files."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from noether.common.console import Console
from noether.common.errors import ExitCode, RequestError
from noether.common.numbers import percent_text
from noether.core.tasks.angles import as_nearest
from noether.launch.process_group.group import joined_group
from noether.launch.processes.context import WorkerContext
from noether.physics.cases.mesh_files import read_array
from noether.physics.fields.field_errors import field_errors
from noether.physics.fields.scalars import reference_facts
from noether.physics.predict.inference import PointSets, TrainedModel, load_trained
from noether.physics.predict.shape_input import (
    FileAxes,
    Shape,
    check_range,
    checked_points,
    open_surface_warnings,
    read_points,
    read_shape,
)
from noether.physics.predict.shape_request import PredictRequest
from noether.physics.predict.vtk_output import field_arrays, write_fields, write_on_shape
from noether.physics.uncertainty import ensemble
from noether.runs.report.elements import axes_words
from noether.runs.report.tables import reference_words


def predict_worker(context: WorkerContext, request: PredictRequest) -> int:
    """Predict on one device, write the files and print a summary."""
    console = Console(None, speaks=True)
    with joined_group(context) as group:
        members = tuple(load_trained(one, group.device) for one in request.members)
        trained, asked, level = members[0], request.shape, request.level
        console.say(f"predicted by {', '.join(str(one.folder.path) for one in request.members)}")
        others = {} if request.volume is None else {"volume_points": request.volume}
        opened = open_shape(trained, asked.mesh, others, axes=asked.axes, scale=asked.scale, say=console.say)
        for words in (*opened.warnings, *trained.outside_training(asked.parameters)):
            console.warn(words)
        truth = _truth(request, opened.given, trained, console)
        calibration = None
        if level is not None:
            calibration = ensemble.calibrated(members, request.members, request.data, console), level
        started = time.perf_counter()
        found = ensemble.predict_together(
            members, opened.shape, opened.others, asked.parameters, asked.chunk_size, calibration=calibration
        )
        seconds = time.perf_counter() - started
        for line in _write(request, opened, trained, found, truth):
            console.say(line)
        if calibration is not None:
            console.say(ensemble.interval_table(trained, found, *calibration))
            if unlike := ensemble.likeness_words(found, calibration[0]):
                console.warn(unlike)
        for name, value in found.scalars.items() if calibration is None else ():
            console.say(f"{name.replace('_', ' ')}: {trained.output_text(name, value)}")
        made = [name for name in trained.task.scalars if name in found.scalars]
        for line in _made_with(trained, made, opened.shape, asked.parameters):
            console.say(f"  {line}")
        for words in trained.lacking_words(opened.shape, found.fields, asked.parameters):
            console.warn(words)
        predicted = len(opened.shape.points) + sum(map(len, opened.others.values()))
        console.say(f"{predicted:,} points in {seconds:.2f} s, {asked.chunk_size:,} at a time, on {group.device}")
    return ExitCode.DONE


@dataclass(frozen=True)
class OpenedShape:
    """A user's shape and further sets of points in m, both in the user's axes (`given…`) and in the model's axes.

    metres: metres per unit of the files. warnings: how the shape differs from the training shapes, one per line.
    """

    files: FileAxes
    metres: float
    given: Shape
    shape: Shape
    given_others: Mapping[str, np.ndarray]
    others: Mapping[str, np.ndarray]
    warnings: Sequence[str]


def open_shape(
    trained: TrainedModel,
    asked: Any,
    others: Mapping[str, Any],
    *,
    axes: str,
    scale: float | None,
    say: Callable[[str], None] = lambda words: None,
) -> OpenedShape:
    """Read a user's shape and compare it with the training shapes.

    trained: the model.
    asked: a mesh file; an array of points (N, 3) in m; or a pair of points and faces (F, 3) or (F, 4).
    others: further sets of points by name; each is a file, or an array (M, 3) in m.
    axes, scale: axes and scale of the files, as for `LoadedRun.predict`.
    say: a function that prints a line about the axes and units of a file.
    RequestError: a file cannot be read, or its shape is too unlike the training shapes.
    """
    task, own = trained.task, trained.shape_set
    files = FileAxes.of(task.space, axes, task.periods)
    metres = files.metres if scale is None else scale
    source, read = Path("the shape"), isinstance(asked, str | Path)
    if read:
        source = Path(asked)
        given = read_shape(source.expanduser(), metres, trained.part_of(own))
    elif isinstance(asked, tuple):
        given = Shape.of_mesh(np.asarray(asked[0], np.float64), np.asarray(asked[1], np.int64))
    else:
        given = Shape.of_points(checked_points(asked, "the array"))
    given_others = {
        key: read_points(points, metres, trained.part_of(key)) if isinstance(points, Path) else np.asarray(points)
        for key, points in others.items()
    }
    said = []
    if files.words:
        said.append(f"axes as in training files ({files.words}; with --axes model: {axes_words(task.space)})")
    if scale is None and metres != 1:
        said.append(f"{metres:g} m per unit, as in training files (change it by --scale)")
    if said:
        say(f"{source}: {', '.join(said)}")
    shape, turned = files.shape(given), {key: files.points(points) for key, points in given_others.items()}
    named = {own: source} | {key: points if isinstance(points, Path) else source for key, points in others.items()}
    warnings = _shape_warnings(trained, shape, turned, files, named, metres if read else 1.0)  # Arrays are in m.
    return OpenedShape(files, metres, given, shape, given_others, turned, warnings)


def _shape_warnings(
    trained: TrainedModel, shape: Shape, others: PointSets, files: FileAxes, sources: Mapping[str, Path], scale: float
) -> list[str]:
    """Return warnings about points outside the training box, open surfaces and too few points.

    sources: the path that names each set of points in messages. Messages give positions in the user's axes.
    """
    warnings: list[str] = []
    axes, mesh = axes_words(trained.task.space, files.rotation), sources[trained.shape_set]
    boxes = {key: (np.array(seen["low"]), np.array(seen["high"])) for key, seen in trained.task.seen.points.items()}
    for key, points in {trained.shape_set: shape.points, **others}.items():
        if key in boxes:
            given, box = files.back({"given": points, "box": np.array(boxes[key])}).values()
            low, high = np.sort(box, axis=0)
            warnings += check_range(sources[key], given, low, high, axes, scale=scale)
    warnings += open_surface_warnings(mesh, shape, boxes.get(trained.shape_set))
    is_thin = shape.faces is None and len(shape.points) < trained.points_learned
    if is_thin and trained.part_of(trained.shape_set).at == "faces":
        warnings.append(
            f"{mesh} has {len(shape.points)} points, but the model has learned to read shapes of "
            f"{trained.points_learned} points: give a mesh with faces, on which points are sampled, or more points"
        )
    return warnings


def _truth(request: PredictRequest, shape: Shape, trained: TrainedModel, console: Console) -> dict[str, np.ndarray]:
    """Return the true values of fields, from arrays of the mesh file that have a field's name or from a .npy file.

    If an array of the mesh file has another number of components than its field, warn and leave it out.
    """
    task, own, found = trained.task, trained.shape_set, {}
    at_shape = {name: task.channels(name) for name, field in task.fields.items() if field.points == own}
    for name in sorted(at_shape.keys() & shape.values.keys()):
        if (values := _as_field(shape.values[name], at_shape[name])) is not None:
            found[name] = values
        else:
            console.warn(
                f"{request.shape.mesh}: the array {name} is not compared with the prediction: "
                f"at each point it has shape {shape.values[name].shape[1:]}, but the field {at_shape[name]} components"
            )
    if request.truth is None:
        return found
    given = np.asarray(read_array(request.truth), np.float64)
    if not at_shape:
        raise RequestError("truth-needs-surface-field", f"--truth needs a run that predicts a field at {own}",
                           seen=", ".join(task.fields), expected=f"a field at {own}")  # fmt: skip
    name, channels = next(iter(at_shape.items()))
    rows = shape.of_file or len(shape.points)
    values = _as_field(given, channels)
    if values is None or len(values) != rows:
        raise RequestError(
            "truth-does-not-fit",
            f"{request.truth} does not fit {request.shape.mesh}",
            seen=f"shape {given.shape}",
            expected=f"{name} at each point of the file: "
            + (f"({rows}, {channels})" if channels > 1 else f"({rows},)"),
        )
    return {**found, name: values[shape.rows]}


def _as_field(values: np.ndarray, channels: int) -> np.ndarray | None:
    """Return values in a field's shape, (n,) or (n, C); None if the number of their components is not `channels`."""
    if channels == 1 and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    return values if values.ndim and values.shape[1:] == ((channels,) if channels > 1 else ()) else None


def _write(
    request: PredictRequest,
    opened: OpenedShape,
    trained: TrainedModel,
    found: ensemble.Prediction,
    truth: Mapping[str, np.ndarray],
) -> list[str]:
    """Write the predictions at each set of points to a file; return lines that describe the files."""
    task, out, shape, mesh = trained.task, request.shape.out, opened.given, request.shape.mesh
    lines: list[str] = []
    fields = opened.files.back(found.fields)
    sets = {trained.shape_set: (out, shape.points)}
    for key, own in opened.given_others.items():
        sets[key] = out.with_name(f"{out.stem}_{key.removesuffix('_points')}{out.suffix}"), own
    for key, (path, points) in sets.items():
        arrays: dict[str, np.ndarray] = {}
        for name in (name for name, field in task.fields.items() if field.points == key):
            true = truth.get(name) if key == trained.shape_set else None
            own = fields[name] if true is None else as_nearest(fields[name], true, task.fields[name].period)
            arrays |= {**found.arrays(name, own, opened.files), **field_arrays(name, own, true)}
            if true is None:
                continue
            error = field_errors(*(torch.from_numpy(values).reshape(1, len(values), -1) for values in (own, true)))
            relative = percent_text(error["relative_l2"].item())
            lines.append(f"{name.replace('_', ' ')}: relative L2 {relative} against the given truth")
        if arrays and key == trained.shape_set:
            write_on_shape(path, mesh, shape, arrays, trained.part_of(key))
        elif arrays:
            write_fields(path, points / opened.metres, None, arrays)
        if arrays:
            lines.append(f"{path}: {len(points):,} points, {', '.join(arrays)}")
    return lines


def _made_with(trained: TrainedModel, names: Sequence[str], shape: Shape, given: Mapping[str, Any]) -> list[str]:
    """Group the force coefficients by air and reference area; return a line per group that states air and area."""
    numbers, rules = trained.case_numbers(shape, given), trained.reference_areas(shape, given)
    alike: dict[str, list[str]] = {}
    for name in names:
        key = trained.task.scalars[name].reference_area
        rule = f"{rules[key]} of the mesh" if key in rules else "as in every training case"
        area = f"{key.replace('_', ' ')} {numbers[key]:.4g} m² ({'given' if key in given else rule})"
        alike.setdefault(reference_words(reference_facts(trained.task.scalars[name], area)), []).append(name)
    return [f"{', '.join(names).replace('_', ' ')}: {words}" for words, names in alike.items()]
