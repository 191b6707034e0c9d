"""A user's mesh or points → the input of a trained model: in its axes, as in training, and the query points. No torch.

A model has axes of its own where `noether data prepare` turned the files to them.
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
    """A surface as it was given: points (N, 3) in m, faces (or None), normals and areas (zeros without faces).

    values: arrays with a row per point that the file held; rows: which of the file's points were kept.
    of_file: points of the file, 0: as many as the shape has.
    frontal: frontal areas that were computed, by the wind.
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
        """The area of a mesh's shadow along the wind, in m²; a large mesh takes half a second, once."""
        assert self.faces is not None
        if wind not in self.frontal:
            self.frontal[wind] = surface_mesh.frontal_area(self.points, self.faces, np.asarray(wind))
        return self.frontal[wind]

    def lengthwise(self, up: np.ndarray) -> tuple[float, ...]:
        """The direction (3,) across `up` in which the surface is longest: the wind's, of a body without yaw."""
        level = self.points - np.outer(self.points @ up, up) / (up @ up)
        return tuple(np.linalg.eigh(np.cov(level.T, aweights=self.areas))[1][:, -1].tolist())

    @classmethod
    def of_points(cls, points: np.ndarray) -> "Shape":
        """Points alone, in m."""
        return cls(points, None, np.zeros_like(points), np.zeros(len(points)), {}, np.arange(len(points)))

    @classmethod
    def of_mesh(cls, points: np.ndarray, faces: np.ndarray) -> "Shape":
        """Points in m and faces, which are turned to look outwards."""
        faces = surface_mesh.oriented(points, faces)
        areas, normals = surface_mesh.point_areas(points, faces)
        return cls(points, faces, normals, areas, {}, np.arange(len(points)))


@dataclass(frozen=True)
class FileAxes:
    """From a user's axes to the model's, and back.

    rotation: (3, 3), turns a vector of the user's axes into the model's.
    metres: of one unit of the user's files, unless they say otherwise.
    words: what the axes are, such as "wind +x, up +z"; "" where they are the model's.
    periods: the ranges of the fields that are angles, of which a model has cosine and sine.
    """

    rotation: np.ndarray
    metres: float = 1.0
    words: str = ""
    periods: Mapping[str, Period] = field(default_factory=dict)

    @classmethod
    def of(cls, space: Mapping[str, Any], axes: str, periods: Mapping[str, Period]) -> "FileAxes":
        """The axes of the files that the data set has described in its `space`, or the model's own.

        ValueError: `axes` is neither.
        """
        if axes not in get_args(Axes):
            raise ValueError(f"axes are {' or '.join(get_args(Axes))}, not {axes!r}")
        files = space.get("files") if axes == "files" else None
        if not files:
            return cls(np.eye(3), periods=periods)
        rotation = np.asarray(files["rotation"], np.float64)
        return cls(rotation, float(files["metres"]), str(files["words"]), periods)

    def points(self, points: np.ndarray) -> np.ndarray:
        """Positions (N, 3) in the model's axes."""
        return np.asarray(points @ self.rotation.T)

    def shape(self, shape: Shape) -> Shape:
        """The shape in the model's axes, with the vectors and tensors of its file."""
        into = turned(self.rotation)
        values = {name: into(np.asarray(value)) for name, value in shape.values.items()}
        return replace(shape, points=self.points(shape.points), normals=self.points(shape.normals), values=values)

    def back(self, fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Predicted fields (N,) or (N, C) in the user's axes; outputs of the case (3,) are turned as vectors are.

        Angles, (N, 2) of a model, are (N,) in their range.
        """
        out = turned(self.rotation.T)
        return {name: as_angle(value, self.periods[name]) if name in self.periods
                else out(value) if value.ndim == 2 else out(value[None])[0] if value.shape == (3,) else value
                for name, value in fields.items()}  # fmt: skip


def read_shape(path: Path, scale: float = 1.0, part: ShapePart = FACES) -> Shape:
    """Read a mesh, of any format that `prepare` reads, at its last step, or points (.npy).

    `part` at "faces": its surface; points that no face uses are left out. At "points" or "cells": the nodes of a solid,
    or the centres of its cells, as points without faces.

    RequestError: the file cannot be read, or holds no points.
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
                           expected="a surface mesh; or its points as a .npy file")  # fmt: skip
    rows = np.unique(cells)
    shape = Shape.of_mesh(mesh.points[rows] * scale, np.searchsorted(rows, cells))
    values = {name: values[rows] for name, values in mesh.values.items()}
    return replace(shape, values=values, rows=rows, of_file=len(mesh.points))


def read_points(path: Path, scale: float = 1.0, part: ShapePart = POINTS) -> np.ndarray:
    """Read points (N, 3) from a .npy file, or those of a mesh file. RequestError as `read_shape`."""
    if path.suffix != ".npy":
        nodes = part._replace(at="points") if part.at == "cells" else part
        return read_mesh_apart(path, nodes).points * scale
    return checked_points(read_array(path), str(path)) * scale


def checked_points(array: Any, name: str) -> np.ndarray:
    """Return an array as points (N, 3), float64. RequestError: it holds something else; `name` says what it is."""
    points = np.asarray(array, np.float64)
    if points.ndim != 2 or points.shape[1] != 3 or not len(points) or not np.isfinite(points).all():
        fits = points.ndim == 2 and points.shape[1] == 3 and len(points) > 0
        seen = "values that are not finite" if fits else f"shape {points.shape}"
        raise RequestError(
            "shape-not-points", f"{name} does not hold points", seen=seen, expected="(N, 3) finite numbers, in m"
        )
    return points


def check_range(
    path: Path, points: np.ndarray, low: np.ndarray, high: np.ndarray, axes: str = "", *, scale: float = 1.0
) -> list[str]:
    """Hold the points' bounding box against that of training (low, high); return warnings in words.

    axes: what each axis is, for the refusals.
    scale: what the points have been multiplied with.

    RequestError: the shape is more than 4 times as large or small, or lies wholly elsewhere: most often it is in mm.
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
            f"{path} is {size / trained:.3g} times as large as what the model was trained on"
            + (f": is its unit of length {unit}?" if fits else ""),
            seen=seen,
            expected=expected,
            fix=f"--scale {metres:g}" if fits else "use a shape of the size of the training shapes, or --scale",
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
    """Say that a surface is open, and by how much, or wound two ways: forces are integrated over the faces.

    What is open only in a face of the `box` of all training shapes, as a car is on the ground, ends where those end.
    """
    if shape.faces is None:
        return []
    holes = surface_mesh.find_holes(shape.points, shape.faces, box)
    whole = holes.area + float(np.linalg.norm(surface_mesh.area_vectors(shape.points, shape.faces), axis=1).sum())
    words = {
        f"is open: {holes.edges:,} edges belong to one face only, round {holes.holes:,} "
        f"{'hole' if holes.holes == 1 else 'holes'} of about {holes.area:.3g} m² ({holes.area / whole:.1%} of the "
        "surface); forces lack what acts there": holes.edges,
        f"has faces that look inwards: {holes.against:,} edges lie between two that are wound against each other; "
        "forces have the wrong sign there": holes.against,
        f"has {holes.inwards:,} closed {'part that looks' if holes.inwards == 1 else 'parts that look'} inwards; "
        "unless they are cavities, forces have the wrong sign there": holes.inwards,
        f"has {holes.twice:,} faces twice; forces count them twice": holes.twice,
    }
    return [f"{path} {what}" for what, count in words.items() if count]


@dataclass(frozen=True)
class ShownBy:
    """Which points show a shape to a model: rows (n,) of its own, or places on its faces, to which those are nearest.

    Normals and values are those of the rows.
    """

    rows: np.ndarray
    places: surface_mesh.SurfaceSamples | None = None

    def of(self, points: Any) -> Any:
        """The points (n, 3) that show the shape, whose own points (N, 3), an array or a tensor, may have moved."""
        return points[self.rows] if self.places is None else self.places.of(points)


def shown_by(shape: Shape, count: int) -> ShownBy:
    """The `count` points, as many as the model has learned to read, that show it a shape.

    A mesh with as many points is taken as it is; others are sampled evenly by area, the same way each time. Points
    without faces are thinned, or taken all where they are fewer.
    """
    if shape.faces is None or len(shape.points) == count:
        drawn = fixed_rows(len(shape.points), count)
        # In such an order that those which evaluation draws of them are the first of all: what an export takes.
        return ShownBy(drawn[np.argsort(fixed_rows(len(drawn), count))])
    places = surface_mesh.sample_surface(shape.points, shape.faces, count)
    return ShownBy(np.asarray(cKDTree(shape.points).query(places.of(shape.points))[1]), places)


def as_trained(shape: Shape, shown: ShownBy) -> Shape:
    """The shape by the points that show it, with normals and values."""
    rows = shown.rows
    values = {name: array[rows] for name, array in shape.values.items()}
    return Shape(shown.of(shape.points), None, shape.normals[rows], shape.areas[rows], values, shape.rows[rows])


def _three(values: np.ndarray) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
