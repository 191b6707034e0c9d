"""One set of points of a case, read from a mesh file of any format that pyvista knows; arrays in the file's units."""

import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from noether.common.errors import RequestError
from noether.physics.cases.case_map import FieldMap, SetMap, Step
from noether.physics.cases.mesh_blocks import BY_CONTENT, SUFFIXES, Block, is_surface, read_blocks
from noether.physics.cases.mesh_files import (
    MESH_SUFFIXES,
    MeshFile,
    import_pyvista,
    mesh_file_of,
    read_mesh,
    to_numpy,
    unreadable,
)
from noether.physics.cases.surface_mesh import areas_and_normals, looks_inwards, polygon_geometry, shared_among_corners
from noether.physics.cases.tables import add_values

Arrays = Mapping[str, Mapping[str, int]]
"""The components of each array at `cells` and at `points`."""


class ShapePart(NamedTuple):
    """What of a file shows a shape: the faces of its surfaces, or the points or cells of others; of these blocks.

    coordinates: as of `read_cloud`.
    """

    at: str = "faces"
    patches: tuple[str, ...] = ()
    coordinates: tuple[str, ...] = ()


FACES, POINTS = ShapePart(), ShapePart("points")


@dataclass
class RawSet:
    """A set of points as a file has it: positions (N, 3) and arrays with a row for each, in the file's axes and units.

    normals (N, 3) are unit vectors, area (N,) and cell_volume (N,) in the file's length squared and cubed; part (N,)
    counts in `parts`. What the file does not have is None.
    """

    points: np.ndarray
    fields: dict[str, np.ndarray]
    normals: np.ndarray | None = None
    area: np.ndarray | None = None
    cell_volume: np.ndarray | None = None
    part: np.ndarray | None = None
    parts: list[str] = field(default_factory=list)


def read_set(path: Path, about: SetMap, step: Step = "last", values: Path | None = None) -> RawSet:
    """Reads one set of a case's points with the fields of the map, at a step; `values`: a table of more arrays.

    RequestError: the file cannot be read, or lacks a patch, an array or a step of the map; it names the file.
    """
    wanted = {own.array for own in about.fields.values()}
    blocks = [block for block in read_blocks(path, wanted, step, about.coordinates) if _is_wanted(block, about)]
    if not blocks:
        names = [block.name for block in read_blocks(path, set(), step, about.coordinates)]
        raise RequestError(
            "no-mesh-for-set",
            f"{path} has no mesh for this set",
            seen=", ".join(name or "one mesh without a name" for name in names) or "nothing",
            expected=f"a {about.kind}" + (f" named {', '.join(about.patches)}" if about.patches else ""),
        )
    if values is not None:
        for block in blocks:
            add_values(block.mesh, "points" if about.kind == "points" else about.at, values)
    pieces = [_surface_set(path, block, about) if about.kind == "surface" else _point_set(path, block, about)
              for block in blocks]  # fmt: skip
    whole = pieces[0] if len(pieces) == 1 else _joined(pieces)
    if not len(whole.points):
        where = ", ".join(block.name for block in blocks if block.name)
        raise RequestError(
            "nothing-for-set",
            f"{path} has nothing for this set",
            seen=f"no {about.at}" + (f" in {where}" if where else ""),
            expected=f"{about.at} of a {about.kind}",
        )
    if len(blocks) > 1 or blocks[0].name:
        whole.parts = [block.name for block in blocks]
        whole.part = np.repeat(np.arange(len(blocks), dtype=np.int32), [len(piece.points) for piece in pieces])
    if whole.normals is not None and _turn_over(path, whole, about):
        whole.normals = -whole.normals
    return whole


def read_mesh_apart(path: Path, part: ShapePart = FACES) -> MeshFile:
    """Reads what of a mesh shows a shape, in a process of its own: VTK's readers crash on some broken files.

    RequestError as `read_part`, and where the reader crashed.
    """
    with tempfile.TemporaryDirectory(prefix="noether-mesh-") as folder:
        result = Path(folder) / "mesh.pickle"
        code = "import sys; from noether.physics.cases.mesh_source import main; main(*sys.argv[1:])"
        words = [str(path), str(result), json.dumps(part)]
        ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, errors="replace")
        if ended.returncode or not result.is_file():
            said = " ".join(ended.stderr.split())[-120:]
            raise unreadable(path, f"VTK's reader crashed (exit code {ended.returncode}) {said}".strip())
        with result.open("rb") as file:
            read: MeshFile | RequestError = pickle.load(file)
    if isinstance(read, RequestError):
        raise read
    return read


def main(path: str, result: str, part: str) -> None:
    """Runs the child of `read_mesh_apart`: pickles the mesh, or its refusal, to `result`."""
    read: MeshFile | RequestError
    try:
        read = read_part(Path(path), ShapePart(*json.loads(part)))
    except RequestError as error:
        read = error
    with open(result, "wb") as file:
        pickle.dump(read, file)


def read_part(path: Path, part: ShapePart = FACES) -> MeshFile:
    """Reads what of a mesh of any format shows a shape, at its last step. RequestError as `read_mesh`, `whole_mesh`."""
    suffix, at_cells = path.suffix.lower(), part.at == "cells"
    if suffix in (*SUFFIXES, *BY_CONTENT) and suffix not in MESH_SUFFIXES:
        return mesh_file_of(path, whole_mesh(path, part), at_cells=at_cells)
    return read_mesh(path, at_cells=at_cells)


def whole_mesh(path: Path, part: ShapePart = FACES) -> Any:
    """Returns the mesh of a file of any format, at its last step; of several blocks those that are meant, as one.

    RequestError: as `read_blocks`, or none of its blocks is meant.
    """
    if path.suffix.lower() in MESH_SUFFIXES:
        return import_pyvista().read(path)
    blocks = read_blocks(path, coordinates=part.coordinates)
    if len(blocks) == 1:
        return blocks[0].mesh
    fits = [block for block in blocks if is_surface(block.mesh) == (part.at == "faces")]
    wanted = [block for block in blocks if _is_named(block, part.patches)] or ([] if part.patches else fits)
    if not wanted:
        kind = "surface" if part.at == "faces" else "mesh in space"
        raise RequestError(
            "shape-of-several-blocks",
            f"{path} holds several meshes, and none of the kind or name that the model was trained on",
            seen=", ".join(block.name for block in blocks),
            expected=" or ".join(part.patches) or f"a {kind}",
            fix=f"rename the block in ParaView, or extract it and save it as .vtu: --mesh {path.stem}.vtu",
        )
    if len(wanted) == 1:
        return wanted[0].mesh
    return import_pyvista().MultiBlock({block.name: block.mesh for block in wanted}).combine(merge_points=False)


def _is_named(block: Block, patches: Iterable[str]) -> bool:
    return any(fnmatch(block.name, pattern) for pattern in patches)


def _is_wanted(block: Block, about: SetMap) -> bool:
    if about.patches:
        return _is_named(block, about.patches)
    if about.kind == "surface":
        return is_surface(block.mesh)
    is_cloud = about.kind == "points" or about.at == "points"
    return is_cloud or (block.mesh.n_cells > 0 and not is_surface(block.mesh))


def refuse_array(path: Path, name: str, own: FieldMap, at: str, there: Arrays, block: str = "") -> None:
    """Refuses a file without the array of a field, or with another number of components. RequestError.

    there: {place: {array: components}} of the file.
    """
    other = "points" if at == "cells" else "cells"
    if own.array not in there[at]:
        is_there = own.array in there[other]
        raise RequestError(
            "no-such-array",
            f"{path} has no array {own.array!r} at {at}" + (f" of {block}" if block else ""),
            seen=(", ".join(there[at]) or "no arrays") + (f"; it is there at {other}" if is_there else ""),
            expected=f"{own.array}, which the map calls {name}",
            fix=f"at: {other}" if is_there else "",
        )
    components = 6 if own.tensor else own.components
    if components and there[at][own.array] != components:
        raise RequestError(
            "array-components",
            f"{own.array} in {path} has {there[at][own.array]} components",
            seen=f"{there[at][own.array]} at {at}",
            expected=f"{components}" + (", of a symmetric tensor" if own.tensor else ""),
        )


def _values(path: Path, block: Block, about: SetMap, at: str, count: int) -> dict[str, np.ndarray]:
    """The map's fields (count, C) at the cells or the points of a mesh."""
    data = {"cells": block.mesh.cell_data, "points": block.mesh.point_data}
    there = {
        place: {name: own[name].reshape(len(own[name]), -1).shape[1] for name in list(own)}
        for place, own in data.items()
    }
    fields = {}
    for name, own in about.fields.items():
        refuse_array(path, name, own, at, there, block.name)
        values = np.asarray(data[at][own.array])
        values = values[:, None] if values.ndim == 1 else values
        if values.dtype.kind not in "fiub" or len(values) != count:
            raise RequestError(
                "array-unusable",
                f"{own.array} in {path} cannot be used",
                seen=f"{values.dtype} {values.shape}",
                expected=f"numbers for {count} {at}",
            )
        fields[name] = values
    return fields


def _surface_set(path: Path, block: Block, about: SetMap) -> RawSet:
    mesh = block.mesh
    if not hasattr(mesh, "n_strips"):
        mesh = mesh.extract_surface(pass_pointid=False, pass_cellid=False, algorithm="dataset_surface")
    elif mesh.n_strips:
        mesh = mesh.triangulate()
    polygons, points = mesh.GetPolys(), np.asarray(mesh.points)
    corners, offsets = to_numpy(polygons.GetConnectivityArray()), to_numpy(polygons.GetOffsetsArray())
    if len(offsets) < 2:
        raise RequestError(
            "no-faces", f"{path} has no faces", seen=f"{len(points)} points", expected="a surface; or kind: points"
        )
    if corners.min() < 0 or corners.max() >= len(points) or np.diff(offsets).min() < 1:
        raise RequestError(
            "faces-out-of-range",
            f"{path} has a face with points that do not exist",
            seen=f"point {corners.max()}",
            expected=f"below {len(points)}",
        )
    centres, vectors = polygon_geometry(points, corners, offsets)
    if about.at == "points":
        centres, vectors = points, shared_among_corners(len(points), corners, offsets, vectors)
    fields = _values(path, Block(block.name, mesh), about, about.at, len(centres))
    area, normals = areas_and_normals(vectors)
    return RawSet(centres, fields, normals=normals, area=area)


def _point_set(path: Path, block: Block, about: SetMap) -> RawSet:
    mesh = block.mesh
    if about.at == "points" or about.kind == "points":
        points = np.asarray(mesh.points)
        return RawSet(points, _values(path, block, about, "points", len(points)))
    fields = _values(path, block, about, "cells", mesh.n_cells)
    centres = np.asarray(mesh.cell_centers(vertex=False).points)
    mesh = mesh.copy(deep=False)
    mesh.clear_data()
    # VTK takes the volume of a degenerate polyhedron for a small negative number.
    volume = np.abs(np.asarray(mesh.compute_cell_sizes(length=False, area=False)["Volume"]))
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
    if path.name == "polyMesh" or path.suffix == ".foam":
        return True  # OpenFOAM's patches look out of the air, into the body
    assert whole.normals is not None
    assert whole.area is not None
    return looks_inwards(np.asarray(whole.points, np.float64), whole.normals * whole.area[:, None])
