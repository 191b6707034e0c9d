"""Convert a user's mesh or points into a model's input, in the model's axes. Does not import torch.

A model's axes differ from the axes of the files if `noether data prepare` turned the data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from scipy.spatial import cKDTree

from noether.common.errors import RequestError
from noether.common.numbers import LENGTHS
from noether.core.data.order import fixed_rows
from noether.core.tasks.angles import Period, as_angle
from noether.physics.cases import surface_mesh
from noether.physics.cases.case_map import turned
from noether.physics.cases.mesh_files import read_array
from noether.physics.cases.mesh_source import FACES, POINTS, ShapePart, read_mesh_apart

Axes = Literal["files", "model"]


@dataclass(frozen=True)
class Shape:
    """A shape: points (N, 3) in m, faces or None, and normals and areas, which are zeros without faces.

    values: arrays of the file, with a row per point. rows: the index in the file of each point of the shape.
    of_file: number of points in the file; 0: the same number as in the shape.
    frontal: cache of the frontal areas, by wind direction.
    """

    points: np.ndarray
    faces: np.ndarray | None
    normals: np.ndarray
    areas: np.ndarray
    values: dict[str, np.ndarray]
    rows: np.ndarray
    of_file: int = 0
    frontal: dict[tuple[float, ...], float] = field(default_factory=dict, repr=False, compare=False)

    def frontal_area(self, wind: tuple[float, ...]) -> float:
        """Return the area in m² of the mesh's shadow along the wind. It is cached: a large mesh takes half a second."""
        assert self.faces is not None
        if wind not in self.frontal:
            self.frontal[wind] = surface_mesh.frontal_area(self.points, self.faces, np.asarray(wind))
        return self.frontal[wind]

    def lengthwise(self, up: np.ndarray) -> tuple[float, ...]:
        """Return the direction (3,) normal to `up` in which the surface is longest, which is the wind at zero yaw."""
        level = self.points - np.outer(self.points @ up, up) / (up @ up)
        return tuple(np.linalg.eigh(np.cov(level.T, aweights=self.areas))[1][:, -1].tolist())

    @classmethod
    def of_points(cls, points: np.ndarray) -> "Shape":
        """Make a shape of points in m, without faces."""
        return cls(points, None, np.zeros_like(points), np.zeros(len(points)), {}, np.arange(len(points)))

    @classmethod
    def of_mesh(cls, points: np.ndarray, faces: np.ndarray) -> "Shape":
        """Make a shape of points in m and faces, which are reoriented to face outwards."""
        faces = surface_mesh.oriented(points, faces)
        areas, normals = surface_mesh.point_areas(points, faces)
        return cls(points, faces, normals, areas, {}, np.arange(len(points)))


@dataclass(frozen=True)
class FileAxes:
    """Conversion between a user's axes and the model's axes.

    rotation: matrix (3, 3) that turns a vector from the user's axes to the model's axes.
    metres: metres per unit of the user's files, unless the user gives another scale.
    words: description of the user's axes, such as "wind +x, up +z"; "" if they are the model's axes.
    periods: the ranges of the fields that are angles; a model predicts an angle as its cosine and sine.
    """

    rotation: np.ndarray
    metres: float = 1.0
    words: str = ""
    periods: Mapping[str, Period] = field(default_factory=dict)

    @classmethod
    def of(cls, space: Mapping[str, Any], axes: str, periods: Mapping[str, Period]) -> "FileAxes":
        """Return the conversion for axes that are "files" (described in the data set's `space`) or "model".

        ValueError: `axes` is another word.
        """
        if axes not in get_args(Axes):
            raise ValueError(f"axes are {' or '.join(get_args(Axes))}, not {axes!r}")
        files = space.get("files") if axes == "files" else None
        if not files:
            return cls(np.eye(3), periods=periods)
        rotation = np.asarray(files["rotation"], np.float64)
        return cls(rotation, float(files["metres"]), str(files["words"]), periods)

    def points(self, points: np.ndarray) -> np.ndarray:
        """Convert positions (N, 3) in the user's axes to the model's axes."""
        return np.asarray(points @ self.rotation.T)

    def shape(self, shape: Shape) -> Shape:
        """Convert a shape to the model's axes, including the vectors and tensors among its values."""
        into = turned(self.rotation)
        values = {name: into(np.asarray(value)) for name, value in shape.values.items()}
        return replace(shape, points=self.points(shape.points), normals=self.points(shape.normals), values=values)

    def back(self, fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Convert predicted fields (N,) or (N, C) to the user's axes; outputs of the case (3,) turn like vectors.

        An angle, which a model predicts as (N, 2), becomes (N,) within its range.
        """
        out = turned(self.rotation.T)
        return {name: as_angle(value, self.periods[name]) if name in self.periods
                else out(value) if value.ndim == 2 else out(value[None])[0] if value.shape == (3,) else value
                for name, value in fields.items()}  # fmt: skip


def read_shape(path: Path, scale: float = 1.0, part: ShapePart = FACES) -> Shape:
    """Read a shape from the last step of a mesh file, in any format that `prepare` reads, or from a .npy file.

    If `part.at` is "faces", read the surface, without points that no face uses. If it is "points", read the nodes of a
    solid, and if it is "cells", its cell centres; the shape then has no faces.

    RequestError: the file cannot be read, or contains no points.
    """
    if path.suffix == ".npy":
        return Shape.of_points(read_points(path, scale))
    mesh = read_mesh_apart(path, part)
    if part.at == "cells":
        return Shape.of_points(mesh.points * scale)
    if part.at == "points":
        return replace(Shape.of_points(mesh.points * scale), values=mesh.values)
    corners = [mesh.triangles, surface_mesh.triangles(mesh.quads)] if len(mesh.triangles) else [mesh.quads]
    cells = np.concatenate(corners)
    if not surface_mesh.area_vectors(mesh.points, cells).any():
        raise RequestError("shape-without-faces",
                           f"{path} has no triangles or quadrilaterals" + (" with an area" if len(cells) else ""),
                           seen=f"{len(cells):,} faces of area 0" if len(cells) else "points and cells of other kinds",
                           expected="a mesh of a surface, or a .npy file of its points")  # fmt: skip
    rows = np.unique(cells)
    shape = Shape.of_mesh(mesh.points[rows] * scale, np.searchsorted(rows, cells))
    values = {name: values[rows] for name, values in mesh.values.items()}
    return replace(shape, values=values, rows=rows, of_file=len(mesh.points))


def read_points(path: Path, scale: float = 1.0, part: ShapePart = POINTS) -> np.ndarray:
    """Read points (N, 3) from a .npy file or a mesh file. RequestError: as for `read_shape`."""
    if path.suffix != ".npy":
        nodes = part._replace(at="points") if part.at == "cells" else part
        return read_mesh_apart(path, nodes).points * scale
    return checked_points(read_array(path), str(path)) * scale


def checked_points(array: Any, name: str) -> np.ndarray:
    """Convert an array to points (N, 3), float64. RequestError, about `name`: it is empty, not finite or not (N, 3)."""
    points = np.asarray(array, np.float64)
    if points.ndim != 2 or points.shape[1] != 3 or not len(points) or not np.isfinite(points).all():
        fits = points.ndim == 2 and points.shape[1] == 3 and len(points) > 0
        seen = "values that are not finite" if fits else f"shape {points.shape}"
        raise RequestError(
            "shape-not-points", f"{name} does not hold points", seen=seen, expected="an array (N, 3) of finite numbers"
        )
    return points


def check_range(
    path: Path, points: np.ndarray, low: np.ndarray, high: np.ndarray, axes: str = "", *, scale: float = 1.0
) -> list[str]:
    """Compare the points' bounding box with the training box (low, high) and return warnings.

    axes: description of the axes, for messages.
    scale: the factor by which the points were multiplied.

    RequestError: the shape is over 4 times too large or small (most often it is in mm), or wholly outside the box.
    """
    own_low, own_high = points.min(axis=0), points.max(axis=0)
    size, trained = float((own_high - own_low).max()), float((high - low).max())
    seen = f"from ({_three(own_low)}) to ({_three(own_high)})"
    box = f"({_three(low)}) to ({_three(high)})" + (f", {axes}" if axes else "")
    expected = f"positions in m, within about {box}"
    if not trained / 4 <= size <= trained * 4:
        units, in_file = {metres: unit for unit, metres in LENGTHS.items()}, max(size, 1e-30) / scale
        metres = min((*units, 100.0, 1000.0), key=lambda own: abs(np.log(in_file * own / trained)))
        unit = units.get(metres, "another one")
        fits = trained / 4 <= in_file * metres <= trained * 4
        raise RequestError(
            "shape-size",
            f"{path} is {size / trained:.3g} times as large as the training data"
            + (f": is its unit of length {unit}?" if fits else ""),
            seen=seen,
            expected=expected,
            fix=f"--scale {metres:g}" if fits else "give a shape as large as the training shapes, or --scale METRES",
        )
    if (own_low > high).any() or (own_high < low).any():
        raise RequestError("shape-outside-domain", f"{path} lies completely outside the box of the training data",
                           seen=seen, expected=expected,
                           fix="move and rotate the mesh to the axes and the origin of the training data")  # fmt: skip
    margin = 0.05 * (high - low).max()
    outside = (own_low < low - margin) | (own_high > high + margin)
    if not outside.any():
        return []
    along = " and ".join("xyz"[axis] for axis in np.flatnonzero(outside))
    return [
        f"{path} reaches beyond the training range along {along}, and the prediction extrapolates there: "
        f"{seen}, trained on {box}"
    ]


def open_surface_warnings(path: Path, shape: Shape, box: tuple[np.ndarray, np.ndarray] | None = None) -> list[str]:
    """Return warnings if a surface is open or wrongly wound, which makes forces wrong, or has faces twice.

    A hole in a face of the `box` of the training shapes is not reported: a car, for example, may be open to the ground.
    """
    if shape.faces is None:
        return []
    holes = surface_mesh.find_holes(shape.points, shape.faces, box)
    whole = holes.area + float(np.linalg.norm(surface_mesh.area_vectors(shape.points, shape.faces), axis=1).sum())
    words = {
        f"is open: {holes.edges:,} edges belong to one face only, round {holes.holes:,} "
        f"{'hole' if holes.holes == 1 else 'holes'} of about {holes.area:.3g} m² ({holes.area / whole:.1%} of the "
        "surface); forces lack what acts there": holes.edges,
        f"has faces that look inwards: {holes.against:,} edges lie between two faces wound in opposite directions; "
        "forces have the wrong sign there": holes.against,
        f"has {holes.inwards:,} closed {'part that looks' if holes.inwards == 1 else 'parts that look'} inwards; "
        "unless they are cavities, forces have the wrong sign there": holes.inwards,
        f"has {holes.twice:,} faces twice; forces count them twice": holes.twice,
    }
    return [f"{path} {what}" for what, count in words.items() if count]


@dataclass(frozen=True)
class ShownBy:
    """The points that show a shape to a model: the shape's own points `rows` (n,), or sampled `places` on its faces.

    With `places`, each entry of `rows` is the shape's nearest point, which gives a place its normal and values.
    """

    rows: np.ndarray
    places: surface_mesh.SurfaceSamples | None = None

    def of(self, points: Any) -> Any:
        """Return the points (n, 3) that show the shape, given its points (N, 3): an array or tensor, maybe moved."""
        return points[self.rows] if self.places is None else self.places.of(points)


def shown_by(shape: Shape, count: int) -> ShownBy:
    """Choose the points that show a shape to a model; `count` is the number of points that the model learned to read.

    If a mesh has exactly `count` points, these are used; any other mesh is sampled evenly by area, always with the same
    result. Points without faces are thinned to `count`; if the shape has fewer points, all are used.
    """
    if shape.faces is None or len(shape.points) == count:
        drawn = fixed_rows(len(shape.points), count)
        # The order puts the points that evaluation draws first, because an export uses the first points.
        return ShownBy(drawn[np.argsort(fixed_rows(len(drawn), count))])
    places = surface_mesh.sample_surface(shape.points, shape.faces, count)
    return ShownBy(np.asarray(cKDTree(shape.points).query(places.of(shape.points))[1]), places)


def as_trained(shape: Shape, shown: ShownBy) -> Shape:
    """Reduce a shape to the points that show it, with their normals, areas and values."""
    rows = shown.rows
    values = {name: array[rows] for name, array in shape.values.items()}
    return Shape(shown.of(shape.points), None, shape.normals[rows], shape.areas[rows], values, shape.rows[rows])


def _three(values: np.ndarray) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
