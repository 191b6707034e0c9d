"""One set of points of a case, read from a mesh file of any format that pyvista knows; arrays in the file's units."""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from noether.data.cases.case_map import SetMap
from noether.data.cases.geometry import areas_and_normals, looks_inwards, polygon_geometry, shared_among_corners
from noether.data.mesh_files import import_pyvista, output_of, to_numpy
from noether.errors import RequestError, one_line

VTK_SUFFIXES = (
    ".vtp", ".vtu", ".vtm", ".vtk", ".vti", ".vtr", ".vts", ".vtkhdf", ".pvtu", ".pvd", ".exo", ".ex2",
    ".stl", ".obj", ".ply", ".case", ".encas", ".cgns", ".foam",
)  # fmt: skip
DECKS = (".msh", ".inp", ".bdf", ".nas")
"""Meshes that solvers read: they count only where no results lie beside them."""
MESHIO_SUFFIXES = (*DECKS, ".med", ".xdmf")
SUFFIXES = (*VTK_SUFFIXES, *MESHIO_SUFFIXES, ".npz")


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


class Block(NamedTuple):
    """One mesh of a file, by the name of its block or patch ("" where a file has only one)."""

    name: str
    mesh: Any


def read_set(path: Path, about: SetMap) -> RawSet:
    """Reads one set of a case's points with the fields of the map.

    Raises:
        RequestError: the file cannot be read, or lacks a patch or an array of the map; it names the file.
    """
    wanted = {own.array for own in about.fields.values()}
    blocks = [block for block in read_blocks(path, wanted) if _is_wanted(block, about)]
    if not blocks:
        names = [block.name for block in read_blocks(path, set())]
        raise RequestError(
            "no-mesh-for-set",
            f"{path} has no mesh for this set",
            seen=", ".join(name or "one mesh without a name" for name in names) or "nothing",
            expected=f"a {about.kind}" + (f" named {', '.join(about.patches)}" if about.patches else ""),
        )
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


def read_blocks(path: Path, arrays: set[str] | None = None) -> list[Block]:
    """Reads every mesh of a file, at its last time; `arrays` are those to read (None: all).

    Raises:
        RequestError: the file is missing, of an unknown format, or cannot be read.
    """
    foam = path.name == "polyMesh"
    if not path.exists() or (not foam and path.suffix.lower() not in SUFFIXES):
        seen = "no such file" if not path.exists() else f"the suffix {path.suffix!r}"
        raise RequestError(
            "case-file-unreadable",
            f"{path} cannot be read",
            seen=seen,
            expected=", ".join(SUFFIXES) + " or constant/polyMesh",
        )
    if path.suffix == ".npz":
        return [Block("", _from_arrays(path))]
    try:
        mesh = _read_by_meshio(path) if path.suffix.lower() in MESHIO_SUFFIXES else _read_by_vtk(path, foam, arrays)
    except RequestError:
        raise
    except (Exception, SystemExit) as error:  # whatever a parser raises on bytes that are not its format
        raise RequestError(
            "case-file-unreadable", f"{path} cannot be read", seen=one_line(error), expected="a complete file"
        ) from None
    blocks = [block for block in _blocks(mesh, "") if block.mesh.n_points]
    if not blocks:
        raise RequestError(
            "case-file-without-points", f"{path} holds no points", seen="an empty mesh", expected="a complete file"
        )
    return blocks


def _read_by_vtk(path: Path, foam: bool, arrays: set[str] | None) -> Any:
    pyvista = import_pyvista()
    if path.suffix in (".exo", ".ex2") and not path.open("rb").read(4).startswith((b"CDF", b"\x89HDF")):
        raise ValueError("neither netCDF nor HDF5")  # The library of Exodus prints a page.
    # VTK finds a case's folder by the file that every case has.
    reader = pyvista.OpenFOAMReader(path.parent.parent / "system/controlDict") if foam else pyvista.get_reader(path)
    if isinstance(reader, pyvista.OpenFOAMReader):
        reader.cell_to_point_creation = False
        reader.enable_all_patch_arrays()
    if getattr(reader, "number_time_points", 0):
        reader.set_active_time_value(reader.time_values[-1])
    if isinstance(reader, pyvista.PVDReader):
        return reader.read()  # which reads one file for each part, in Python
    if arrays is not None:
        _choose_arrays(reader, arrays)
    return output_of(reader)


def _read_by_meshio(path: Path) -> Any:
    """Reads what VTK does not. SystemExit: meshio ends the program on files that it cannot read."""
    import meshio

    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        try:
            mesh = meshio.read(path)
            mesh.cell_sets, mesh.point_sets = {}, {}  # groups, whose numbers in Gmsh's files are not all of cells
            return import_pyvista().from_meshio(mesh)
        except SystemExit:
            raise ValueError(" ".join(said.getvalue().split()) or "not a file that meshio reads") from None


def _from_arrays(path: Path) -> Any:
    pyvista = import_pyvista()
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        cloud = pyvista.PointSet(arrays.pop("points"))
        for name, values in arrays.items():
            cloud.point_data[name] = values
    except Exception as error:  # NumPy and pyvista raise what their parsers meet
        expected = "`points` (N, 3) and arrays with as many rows"
        raise RequestError(
            "case-file-unreadable", f"{path} cannot be read", seen=one_line(error), expected=expected
        ) from None
    return cloud


def _choose_arrays(reader: Any, arrays: set[str]) -> None:
    for kind in ("cell", "point"):
        if hasattr(reader, f"{kind}_array_names") and hasattr(reader, f"disable_all_{kind}_arrays"):
            getattr(reader, f"disable_all_{kind}_arrays")()
            for name in set(getattr(reader, f"{kind}_array_names")) & arrays:
                getattr(reader, f"enable_{kind}_array")(name)


def _blocks(mesh: Any, name: str) -> Iterator[Block]:
    if not hasattr(mesh, "n_blocks"):
        if hasattr(mesh, "dimensions"):  # images and grids whose cells follow from their points
            mesh = mesh.cast_to_unstructured_grid()
        if mesh is not None:
            yield Block(name, mesh)
        return
    for index in range(mesh.n_blocks):
        yield from _blocks(mesh[index], mesh.get_block_name(index) or f"block_{index}")


def _is_wanted(block: Block, about: SetMap) -> bool:
    if about.patches:
        return any(fnmatch(block.name, pattern) for pattern in about.patches)
    if about.kind == "surface":
        return is_surface(block.mesh)
    is_cloud = about.kind == "points" or about.at == "points"
    return is_cloud or (block.mesh.n_cells > 0 and not is_surface(block.mesh))


def is_surface(mesh: Any) -> bool:
    """Whether a mesh is made of faces: PolyData with polygons, or a grid whose cells are all flat."""
    if hasattr(mesh, "n_strips"):
        return bool(mesh.GetNumberOfPolys() or mesh.n_strips)
    kinds = set(np.unique(mesh.celltypes).tolist()) if hasattr(mesh, "celltypes") else {12}
    return bool(kinds) and kinds <= {5, 6, 7, 8, 9, 22, 23, 28}


def _values(path: Path, block: Block, about: SetMap, at: str, count: int) -> dict[str, np.ndarray]:
    """The map's fields (count, C) at the cells or the points of a mesh."""
    data = {"cells": block.mesh.cell_data, "points": block.mesh.point_data}
    other = "points" if at == "cells" else "cells"
    fields = {}
    for name, own in about.fields.items():
        if own.array not in data[at]:
            is_there = own.array in data[other]
            raise RequestError(
                "no-such-array",
                f"{path} has no array {own.array!r} at {at}" + (f" of {block.name}" if block.name else ""),
                seen=(", ".join(data[at].keys()) or "no arrays") + (f"; it is there at {other}" if is_there else ""),
                expected=f"{own.array}, which the map calls {name}",
                fix=f"at: {other}" if is_there else "",
            )
        values = np.asarray(data[at][own.array])
        values = values[:, None] if values.ndim == 1 else values
        if values.dtype.kind not in "fiub" or len(values) != count:
            raise RequestError(
                "array-unusable",
                f"{own.array} in {path} cannot be used",
                seen=f"{values.dtype} {values.shape}",
                expected=f"numbers for {count} {at}",
            )
        components = 6 if own.tensor else own.components
        if components and values.shape[1] != components:
            raise RequestError(
                "array-components",
                f"{own.array} in {path} has {values.shape[1]} components",
                seen=str(values.shape),
                expected=f"{components}" + (", of a symmetric tensor" if own.tensor else ""),
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
