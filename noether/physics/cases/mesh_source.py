"""Read one set of a case's points from a mesh file of any known format; the arrays keep the file's units."""

import json
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from noether.common.errors import RequestError
from noether.physics.cases import openfoam
from noether.physics.cases.case_map import FieldMap, SetKind, SetMap, Step
from noether.physics.cases.cells import DIMENSIONS, Block, flat_cells, polygons
from noether.physics.cases.mesh_blocks import read_blocks
from noether.physics.cases.mesh_files import Unfit, import_pyvista
from noether.physics.cases.surface_mesh import areas_and_normals, looks_inwards, polygon_geometry, shared_among_corners
from noether.physics.cases.tables import add_values

Arrays = Mapping[str, Mapping[str, int]]
"""The number of components of each array, {"cells" or "points": {array: components}}."""


class ShapePart(NamedTuple):
    """The part of a file that represents a shape; coordinates: as for `read_cloud`.

    at: faces, or points or cells of meshes in space; patches: names of the blocks to use (empty: all that fit `at`).
    """

    at: str = "faces"
    patches: tuple[str, ...] = ()
    coordinates: tuple[str, ...] = ()


FACES, POINTS = ShapePart(), ShapePart("points")


@dataclass
class RawSet:
    """A set of points in the axes and units of its file: the positions (N, 3), and arrays with a row for each position.

    normals (N, 3) are unit vectors; area (N,) is in the file's unit of length squared, and cell_volume (N,) in the unit
    cubed; part (N,) contains indices into `parts`. An array is None if the file lacks it. left: counts of what the
    file's blocks contain besides the set, such as {("faces", block): 12}.
    """

    points: np.ndarray
    fields: dict[str, np.ndarray]
    normals: np.ndarray | None = None
    area: np.ndarray | None = None
    cell_volume: np.ndarray | None = None
    part: np.ndarray | None = None
    parts: list[str] = field(default_factory=list)
    left: dict[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True)
class MeshFile:
    """A shape from a file: points (N, 3), triangles and quads as indices of points, and arrays with a row per point.

    If the shape was read with `at="cells"`, the points are the centres of the cells, and there are no faces.
    """

    points: NDArray[np.float64]
    triangles: NDArray[np.int64]
    quads: NDArray[np.int64]
    values: dict[str, np.ndarray]


def read_set(
    path: Path, about: SetMap, step: Step = "last", values: Path | None = None, pieces: Sequence[Path] = ()
) -> RawSet:
    """Read one set of a case's points, with the fields of the map, at a step.

    values: a table with more arrays; pieces: all files of the mesh, including `path`, if it is in several files.
    RequestError: the file cannot be read, or lacks a patch, an array or a step of the map; the error names the file.
    """
    wanted = {own.array for own in about.fields.values()}
    every = [block for own in pieces or [path] for block in read_blocks(own, wanted, step, about.coordinates)]
    blocks = [block for block in every if about.kind in ("points", block.kind)]
    if about.patches:
        blocks = [block for block in every if _is_named(block, about.patches)]
    elif about.kind == "surface" and not blocks:  # faces that share a block with volume cells
        blocks = [block for block in every if DIMENSIONS["surface"] in block.dimensions]
    if not blocks:
        names = [f"{block.name or 'one mesh without a name'} ({block.kind})" for block in every]
        raise RequestError(
            "no-mesh-for-set",
            f"{path} has no mesh for this set",
            seen=", ".join(names),
            expected=f"a {about.kind}" + (f" named {', '.join(about.patches)}" if about.patches else ""),
        )
    if values is not None:
        for block in blocks:
            add_values(block.whole, "points" if about.kind == "points" else about.at, values)
    read = _surface_set if about.kind == "surface" else _point_set
    parts = [read(path, block, about) for block in blocks]
    whole = parts[0] if len(parts) == 1 else _joined(parts)
    if not len(whole.points):
        where = ", ".join(block.name for block in blocks if block.name)
        raise RequestError("nothing-for-set", f"{path} has nothing for this set",
                           seen=f"no {about.at}" + (f" in {where}" if where else ""),
                           expected=f"{about.at} of a {about.kind}")  # fmt: skip
    if len(blocks) > 1 or blocks[0].name:
        whole.parts = [block.name for block in blocks]
        whole.part = np.repeat(np.arange(len(blocks), dtype=np.int32), [len(own.points) for own in parts])
    if whole.normals is not None and _turn_over(path, whole, about):
        whole.normals = -whole.normals
    whole.left = _left_of(every, blocks, about.kind)
    return whole


def _left_of(every: Sequence[Block], taken: Sequence[Block], kind: SetKind) -> dict[tuple[str, str], int]:
    """Count the contents of all blocks that a set made of the blocks `taken` leaves out, {(what, block): count}."""
    left = Counter[tuple[str, str]]()
    for block in every:
        own = block.beside(kind if block in taken else None)
        left.update({(what, block.name): count for what, count in own.items()})
    return dict(left)


def read_mesh_apart(path: Path, part: ShapePart = FACES) -> MeshFile:
    """Read a shape from a mesh file in a child process, because VTK's readers crash on some broken files.

    RequestError as for `read_part`, or if the reader crashed.
    """
    with tempfile.TemporaryDirectory(prefix="noether-mesh-") as folder:
        result = Path(folder) / "mesh.pickle"
        code = "import sys; from noether.physics.cases.mesh_source import main; main(*sys.argv[1:])"
        words = [str(path), str(result), json.dumps(part)]
        ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, errors="replace")
        if ended.returncode or not result.is_file():
            said = " ".join(ended.stderr.split())[-120:]
            raise RequestError("mesh-unreadable", f"{path} cannot be read as a mesh",
                               seen=f"its reader crashed (exit code {ended.returncode}) {said}"[:200].strip(),
                               expected="a complete file",
                               fix=f"open {path.name} in ParaView, and export the mesh again")  # fmt: skip
        with result.open("rb") as file:
            read: MeshFile | RequestError = pickle.load(file)
    if isinstance(read, RequestError):
        raise read
    return read


def main(path: str, result: str, part: str) -> None:
    """Run in the child process of `read_mesh_apart`: pickle the mesh, or a RequestError, to the file `result`."""
    read: MeshFile | RequestError
    try:
        read = read_part(Path(path), ShapePart(*json.loads(part)))
    except RequestError as error:
        read = error
    Path(result).write_bytes(pickle.dumps(read))


def read_part(path: Path, part: ShapePart = FACES) -> MeshFile:
    """Read a shape from a mesh file of any format, at its last step.

    Faces with more than four corners become triangles. Arrays that do not hold numbers, or do not have a row for each
    point, are left out. RequestError: as for `whole_mesh`, or the mesh's points or faces are unusable.
    """
    mesh = whole_mesh(path, part)
    if part.at == "cells":
        mesh = mesh.cell_centers()
    points = np.asarray(mesh.points, np.float64)
    if not np.isfinite(points).all():
        raise RequestError("mesh-points-not-finite", f"{path} holds points that are not finite",
                           seen=f"{int((~np.isfinite(points)).any(axis=1).sum())} of {len(points)} points",
                           expected="numbers")  # fmt: skip
    triangles, quads = _faces(path, mesh) if part.at == "faces" else (np.empty((0, 3), int), np.empty((0, 4), int))
    values = {name: np.asarray(mesh.point_data[name]) for name in mesh.point_data}
    fitting = {name: own for name, own in values.items() if own.dtype.kind in "fiub" and len(own) == len(points)}
    return MeshFile(points, triangles, quads, fitting)


def _faces(path: Path, mesh: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a mesh's triangles (T, 3) and quadrilaterals (Q, 4), as indices into its points."""
    block = Block("", mesh, {})
    if DIMENSIONS["surface"] not in block.dimensions:
        return np.empty((0, 3), int), np.empty((0, 4), int)
    corners, offsets = _polygons(path, mesh)
    sizes, starts = np.diff(offsets), offsets[:-1]
    triangles, quads = (corners[starts[sizes == n][:, None] + np.arange(n)] for n in (3, 4))
    larger = [corners[start : start + size] for start, size in zip(starts, sizes, strict=True) if size > 4]
    fans = [np.stack([np.full(len(own) - 2, own[0]), own[1:-1], own[2:]], axis=-1) for own in larger]
    return np.concatenate([triangles, *fans]).astype(np.int64), quads.astype(np.int64)


def whole_mesh(path: Path, part: ShapePart = FACES) -> Any:
    """Return the mesh of a file of any format, at its last step; if several blocks match `part`, join them.

    RequestError: as for `read_blocks`, or the file has several blocks and none matches.
    """
    blocks = read_blocks(path, coordinates=part.coordinates)
    if len(blocks) == 1:
        return blocks[0].mesh
    fits = [block for block in blocks if (block.kind == "surface") == (part.at == "faces")]
    wanted = [block for block in blocks if _is_named(block, part.patches)] or ([] if part.patches else fits)
    if not wanted:
        kind = "surface" if part.at == "faces" else "mesh in space"
        raise RequestError(
            "shape-of-several-blocks",
            f"{path} holds several meshes, but none has the kind or name that the model was trained on",
            seen=", ".join(block.name for block in blocks),
            expected=" or ".join(part.patches) or f"a {kind}",
            fix=f"rename the block in ParaView, or extract it and save it as .vtu: --mesh {path.stem}.vtu",
        )
    if len(wanted) == 1:
        return wanted[0].mesh
    several = import_pyvista().MultiBlock({block.name: block.mesh for block in wanted})
    return several.combine(merge_points=path.suffix.lower() == ".stl")  # as VTK's reader does within each solid


def _is_named(block: Block, patches: Iterable[str]) -> bool:
    """Return whether a pattern in `patches` (* matches anything) fits the block's name or its part after the last /."""
    own = {block.name, block.name.rpartition("/")[2]}
    return any(name == pattern or fnmatch(name, pattern) for pattern in patches for name in own)


def refuse_array(path: Path, name: str, own: FieldMap, at: str, there: Arrays, block: str = "") -> None:
    """Raise RequestError if the file lacks a field's array, or if the array's components do not fit the map.

    there: the file's arrays, {location: {array: components}}.
    """
    other = "points" if at == "cells" else "cells"
    if own.array not in there[at]:
        is_there = own.array in there[other]
        raise RequestError(
            "no-such-array",
            f"{path} has no array {own.array!r} at {at}" + (f" of {block}" if block else ""),
            seen=(", ".join(there[at]) or "no arrays") + (f"; there is such an array at {other}" if is_there else ""),
            expected=f"{own.array}, which the map calls {name}",
            fix=f"at: {other}" if is_there else "",
        )
    components = 6 if own.tensor else own.components
    if components and there[at][own.array] != components:
        raise RequestError("array-components", f"{own.array} in {path} has {there[at][own.array]} components",
                           seen=f"{there[at][own.array]} at {at}",
                           expected=f"{components}" + (", as in a symmetric tensor" if own.tensor else ""))  # fmt: skip


def _values(path: Path, block: str, mesh: Any, about: SetMap, at: str, count: int) -> dict[str, np.ndarray]:
    """Return the fields of the map, each (count, C), at the cells or the points of a mesh."""
    data = {"cells": mesh.cell_data, "points": mesh.point_data}
    there = {
        place: {name: own[name].reshape(len(own[name]), -1).shape[1] for name in list(own)}
        for place, own in data.items()
    }
    fields = {}
    for name, own in about.fields.items():
        refuse_array(path, name, own, at, there, block)
        values = np.asarray(data[at][own.array])
        values = values[:, None] if values.ndim == 1 else values
        if values.dtype.kind not in "fiub" or len(values) != count:
            raise RequestError("array-unusable", f"{own.array} in {path} cannot be used",
                               seen=f"{values.dtype} {values.shape}", expected=f"numbers for {count} {at}")  # fmt: skip
        fields[name] = values
    return fields


def _surface_set(path: Path, block: Block, about: SetMap) -> RawSet:
    mesh = block.cells("surface")
    corners, offsets = _polygons(path, mesh)
    points = np.asarray(mesh.points)
    if len(offsets) < 2:
        raise RequestError(
            "no-faces", f"{path} has no faces", seen=f"{len(points)} points", expected="faces, or kind: points"
        )
    centres, vectors = polygon_geometry(points, corners, offsets)
    if about.at == "points":
        centres, vectors = points, shared_among_corners(len(points), corners, offsets, vectors)
    fields = _values(path, block.name, mesh, about, about.at, len(centres))
    area, normals = areas_and_normals(vectors)
    return RawSet(centres, fields, normals=normals, area=area)


def _polygons(path: Path, mesh: Any) -> tuple[np.ndarray, np.ndarray]:
    try:
        return polygons(mesh)
    except Unfit as error:
        raise RequestError("faces-unusable", f"{path} has faces that cannot be used", seen=str(error),
                           fix="apply Triangulate and Clean in ParaView") from None  # fmt: skip


def _point_set(path: Path, block: Block, about: SetMap) -> RawSet:
    mesh = block.cells(about.kind)
    if about.at == "points" or about.kind == "points":
        points = np.asarray(mesh.points)
        return RawSet(points, _values(path, block.name, mesh, about, "points", len(points)))
    fields = _values(path, block.name, mesh, about, "cells", mesh.n_cells)
    centres = np.asarray(mesh.cell_centers(vertex=False).points)
    mesh = mesh.copy(deep=False)
    mesh.clear_data()
    # VTK returns a small negative volume for a degenerate polyhedron.
    volume = np.abs(np.asarray(mesh.compute_cell_sizes(length=False, area=False)["Volume"]))
    if (flat := flat_cells(mesh, volume)).size:
        raise RequestError(
            "cells-without-volume",
            f"{path} has cells with no volume" + (f" in {block.name}" if block.name else ""),
            seen=f"{flat.size:,} of {mesh.n_cells:,} cells, the first at {np.round(centres[flat[0]], 4).tolist()}",
            expected="a nonzero volume for every cell",
            fix="at: points      (in the map), or remove these cells in ParaView",
        )
    return RawSet(centres, fields, cell_volume=volume)


def _joined(pieces: list[RawSet]) -> RawSet:
    def together(name: str) -> Any:
        arrays = [getattr(piece, name) for piece in pieces]
        return None if arrays[0] is None else np.concatenate(arrays)

    fields = {name: np.concatenate([piece.fields[name] for piece in pieces]) for name in pieces[0].fields}
    return RawSet(together("points"), fields, together("normals"), together("area"), together("cell_volume"))


def _turn_over(path: Path, whole: RawSet, about: SetMap) -> bool:
    if about.normals != "outward":
        return about.normals == "flip"
    if path.name == openfoam.MESH or path.suffix == ".foam":
        return True  # the normals of OpenFOAM's patches point out of the air, into the body
    assert whole.normals is not None
    assert whole.area is not None
    return looks_inwards(np.asarray(whole.points, np.float64), whole.normals * whole.area[:, None])
