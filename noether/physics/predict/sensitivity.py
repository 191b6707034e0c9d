"""Compute the gradient of an output with respect to every point of a shape and every parameter of the case."""

from collections.abc import Collection
from dataclasses import dataclass
from shlex import quote

import numpy as np
import torch
from rich.table import Table
from scipy.sparse import coo_matrix, diags
from scipy.sparse.linalg import spsolve
from torch import Tensor

from noether.common.console import Console
from noether.common.errors import ExitCode, RequestError
from noether.common.suggest import nearest
from noether.core.data.loader import to_device
from noether.core.evaluate import predict
from noether.launch.process_group.group import joined_group
from noether.launch.processes.context import WorkerContext
from noether.physics.cases.surface_mesh import triangles
from noether.physics.predict.inference import Parameters, TrainedModel, load_trained
from noether.physics.predict.predict import open_shape
from noether.physics.predict.shape_input import Shape, as_trained, shown_by
from noether.physics.predict.shape_request import SensitivityRequest
from noether.physics.predict.vtk_output import write_on_shape
from noether.runs.metrics import Metric

OVER_POINTS = ("mean", "max")


@dataclass(frozen=True)
class Sensitivity:
    """The gradient of an output of a model, in the model's axes.

    of, value, unit: the output's name, value and unit ("" for a ratio).
    points: (N, 3), the gradient with respect to each point of the shape, per m.
    outwards: (N,), the output's gain per m³ if 1 m² of the surface moves outwards by 1 m; None without faces.
    parameters: the gradient (C,) with respect to each parameter, by name, per unit of the parameter.
    """

    of: str
    value: float
    unit: str
    points: np.ndarray
    outwards: np.ndarray | None
    parameters: dict[str, np.ndarray]


def sensitivity(trained: TrainedModel, shape: Shape, of: str, parameters: Parameters, chunk_size: int) -> Sensitivity:
    """Differentiate an output of a model on a shape, in the precision of the weights and without autocast.

    What the model reads from a mesh moves with its points: the places that show the shape, normals, areas, distances
    to the surface. Discrete choices stay fixed, because the model is piecewise constant in them: the triangle of each
    place, the nearest points, the neighbours within a radius. The reference area stays fixed too.

    trained, shape: the model, and the shape in its axes.
    of: a coefficient, an output of the case, "mean FIELD" or "max FIELD"; "": the only coefficient or output of the
    case. A vector counts by its magnitude. The mean over the shape's points is weighted by area if there are faces.
    parameters, chunk_size: the parameters of the case, and the number of points predicted at once.
    RequestError: the output does not exist, or an input that the model reads is missing.
    """
    task, own = trained.task, trained.shape_set.removesuffix("points")
    shown, numbers = shown_by(shape, trained.points_learned), trained.case_numbers(shape, parameters)
    of, name, over = _output(trained, of, numbers, has_faces=shape.faces is not None)
    points = torch.from_numpy(np.asarray(shape.points, np.float64)).requires_grad_()
    given = {key: value.requires_grad_() for key, value in trained.parameter_tensors(parameters).items()}
    surface = {"points": points}
    context, queries = (trained.shape_tensors(one) for one in (as_trained(shape, shown), shape))
    context[trained.shape_set], queries[trained.shape_set] = shown.of(points), points
    if shape.faces is not None:
        surface["areas"], surface["normals"] = moved_areas_and_normals(points, shape)
        context[f"{own}normals"], queries[f"{own}normals"] = surface["normals"][shown.rows], surface["normals"]
    sample = trained.whole_sample(context, queries, {}, given)
    batch = to_device({key: value[None] for key, value in sample.items()}, trained.device, trained.precision.weights)
    trained.model.requires_grad_(False)
    in_chunks = chunk_size if hasattr(trained.model, "forward_in_chunks") else None
    with torch.enable_grad():
        scaled = predict(trained.model, task.prepare(batch), in_chunks)
        physical = {key: value[0].double().cpu() for key, value in task.to_physical(scaled).items()}
        if over:
            value = _over_points(over, physical[name], surface.get("areas"))
        elif name in task.scalars:
            value = trained.integrate(name, {**physical, **surface}, {**numbers, **given})[0]
        else:
            value = physical[name][task.case_labels(name).index(of)]
        inputs = {"": points, **given}
        # If an output does not depend on an input, for example because no parameter is read, its gradient is 0.
        found = torch.autograd.grad(value, list(inputs.values()), allow_unused=True, materialize_grads=True)
    of_points, *of_parameters = (gradient.numpy() for gradient in found)
    outwards = None
    if shape.faces is not None:
        moved = np.einsum("nx,nx->n", of_points, shape.normals)
        spacing = float(np.sqrt(shape.areas.sum() / len(shown.rows)))
        outwards = spread_over_surface(shape.points, triangles(shape.faces), moved, spacing)
    return Sensitivity(
        of,
        value.item(),
        "" if name in task.scalars else task.outputs[name].unit,
        of_points,
        outwards,
        {key: np.atleast_1d(gradient) for key, gradient in zip(given, of_parameters, strict=True)},
    )


def stretches(gradient: np.ndarray, points: np.ndarray, up: np.ndarray) -> dict[str, float]:
    """Return, for each axis, the output's first-order gain if the shape is stretched by 100 % along that axis.

    The middle of the shape's box stays in place; along the axis `up` (3,), unless it is 0, the bottom stays in place.
    """
    low, high = points.min(axis=0), points.max(axis=0)
    foot = np.where(np.abs(up) > 0.5, np.where(up > 0, low, high), 0.5 * (low + high))
    return dict(zip("xyz", np.einsum("nx,nx->x", gradient, points - foot).tolist(), strict=True))


def moved_areas_and_normals(points: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Return the area (N,) and unit outward normal (N, 3) of each point, as `point_areas` does, but differentiably.

    If the vector areas of the faces around a point cancel, the point keeps the shape's normal, without a gradient.
    """
    faces = np.asarray(shape.faces)
    corners = [points[faces[:, k]] for k in range(faces.shape[1])]
    across = (corners[-2] - corners[0], corners[-1] - corners[1]) if len(corners) == 4 else (
        corners[1] - corners[0], corners[2] - corners[0]
    )  # fmt: skip
    vectors = torch.linalg.cross(*across) / (2 * len(corners))
    sums = torch.zeros_like(points)
    for k in range(len(corners)):
        sums = sums.index_add(0, torch.from_numpy(np.ascontiguousarray(faces[:, k])), vectors)
    areas = torch.linalg.vector_norm(sums, dim=1)
    normals = sums / areas.clamp(min=torch.finfo(torch.float64).tiny).unsqueeze(1)
    return areas, torch.where(torch.from_numpy(shape.areas == 0).unsqueeze(1), torch.from_numpy(shape.normals), normals)


def spread_over_surface(points: np.ndarray, cut: np.ndarray, values: np.ndarray, length: float) -> np.ndarray:
    """Spread values (N,) at points over a mesh of triangles as a density (N,); its integral is the sum of the values.

    A model reads only some points of a shape, so its gradient is concentrated in spots. The density d, smooth over
    `length` (m), solves d − length² Δd = values with linear elements (Lazarov & Sigmund 2011, doi 10.1002/nme.3072).
    """
    corners = points[cut]
    opposite = corners[:, [2, 0, 1]] - corners[:, [1, 2, 0]]
    double = np.linalg.norm(np.cross(opposite[:, 0], opposite[:, 1]), axis=1)
    kept = double > 1e-12 * double.max()
    cut, opposite, double = cut[kept], opposite[kept], double[kept]
    stiffness = np.einsum("fax,fbx->fab", opposite, opposite) / (2 * double)[:, None, None]
    rows, columns = np.repeat(cut, 3, axis=1), np.tile(cut, 3)
    size = (len(points), len(points))
    laplace = coo_matrix((stiffness.ravel(), (rows.ravel(), columns.ravel())), size)
    mass = np.bincount(cut.ravel(), np.repeat(double / 6, 3), len(points))
    density: np.ndarray = spsolve((diags(np.where(mass > 0, mass, 1.0)) + length**2 * laplace).tocsc(), values)
    return density


def _output(trained: TrainedModel, of: str, numbers: Collection[str], *, has_faces: bool) -> tuple[str, str, str]:
    """Return the requested label, the name of its field or output, and "mean" or "max" ("" unless it is a field)."""
    task = trained.task
    fields = [name for name, field in task.fields.items() if field.points == trained.shape_set and not field.period]
    absent = trained.lacking(fields, numbers) if has_faces else {}
    known = {name: (name, "") for name, keys in absent.items() if not keys}
    known |= {label: (name, "") for name in task.case_fields for label in task.case_labels(name)}
    known |= {f"{over} {name}": (name, over) for name in fields for over in OVER_POINTS}
    of_case = [label for label, (_, over) in known.items() if not over]
    asked = of_case[0] if not of and len(of_case) == 1 else " ".join(of.split()).replace("maximum ", "max ")
    if asked in known:
        return asked, *known[asked]
    near, lacks = f"mean {of}" if of in fields else nearest(of, known) or next(iter(known)), absent.get(of, [])
    to_set = next((key for key in lacks[:1] if key in task.divisors), None)  # A missing field, first, cannot be set.
    raise RequestError(
        "no-such-output",
        f"the model has no output {of!r} on this shape" if of else "--of must name the output to differentiate",
        seen=(f"--of {of!r}" if of else f"{len(known)} outputs to choose from")
        + (f", without {', '.join(lacks)}" if lacks else ""),
        expected=", ".join(known),
        fix=f"--set {to_set}=NUMBER" if to_set else f"--of {quote(near)}",
    )


def _over_points(over: str, values: Tensor, areas: Tensor | None) -> Tensor:
    """Return the mean or the maximum of a field (N, 1), or of the magnitude of a field (N, C)."""
    sizes = values[:, 0] if values.shape[1] == 1 else torch.linalg.vector_norm(values, dim=1)
    if over == "max":
        return sizes.max()
    return sizes.mean() if areas is None else (sizes * areas).sum() / areas.sum()


def sensitivity_worker(context: WorkerContext, request: SensitivityRequest) -> int:
    """Differentiate on one device, write the gradient to a file and print what changes the output."""
    console, asked = Console(None, speaks=True), request.shape
    with joined_group(context) as group:
        trained = load_trained(request.chosen, group.device)
        opened = open_shape(trained, asked.mesh, {}, axes=asked.axes, scale=asked.scale, say=console.say)
        for words in (*opened.warnings, *trained.outside_training(asked.parameters)):
            console.warn(words)
        found = sensitivity(trained, opened.shape, request.of, asked.parameters, asked.chunk_size)
    gradient = opened.files.back({"": found.points})[""]
    arrays = {"sensitivity": gradient}
    if found.outwards is not None:
        arrays["sensitivity_outwards"] = found.outwards
    given = opened.given
    write_on_shape(asked.out, asked.mesh, given, arrays, trained.part_of(trained.shape_set))
    console.say(f"{found.of}: {Metric(found.of, found.unit).text(found.value)}")
    up = opened.files.rotation.T @ np.asarray(trained.task.space.get("up", np.zeros(3)), np.float64)
    moved = float(np.einsum("nx,nx->", found.points, opened.shape.normals))
    console.say(changes_table(trained, found, stretches(gradient, given.points, up), moved))
    console.say(f"{asked.out}: {len(given.points):,} points, {', '.join(arrays)}")
    return ExitCode.DONE


def changes_table(trained: TrainedModel, found: Sensitivity, stretched: dict[str, float], moved: float) -> Table:
    """Return a table of the output's first-order gain from each change: a longer or thicker shape, a parameter + 1."""
    table = Table("change", f"gain, {found.unit}" if found.unit else "gain", box=None, padding=(0, 3, 0, 0))
    for axis, gain in stretched.items():
        table.add_row(f"1 % longer along {axis}", f"{gain / 100:+.4g}")
    if found.outwards is not None:
        table.add_row("the whole surface 1 mm outwards", f"{moved / 1000:+.4g}")
    for name, gradient in found.parameters.items():
        unit = trained.task.parameters[name].unit
        for channel, gain in enumerate(gradient):
            label = f"{name}[{channel}]" if len(gradient) > 1 else name
            table.add_row(f"{label} + 1 {unit}".rstrip(), f"{gain:+.4g}")
    return table
