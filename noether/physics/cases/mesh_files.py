"""Points, faces and values of a mesh file, read through pyvista (VTK), or refused in words; and NumPy's own files."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noether.common.errors import RequestError, one_line

MESH_SUFFIXES = (".vtk", ".vtu", ".vtp", ".stl", ".ply", ".obj")
VTK_TRIANGLE, VTK_POLYGON, VTK_PIXEL, VTK_QUAD = 5, 7, 8, 9
"""VTK's numbers of the cells that are faces: https://docs.vtk.org/en/latest/vtk_file_formats/vtk_legacy_file_format.html"""


@dataclass(frozen=True)
class MeshFile:
    """What a file holds: points (N, 3), faces by corners (triangles, quads), and arrays with a row per point.

    Read `at_cells`, these are the centres of its cells, without faces.
    """

    points: NDArray[np.float64]
    triangles: NDArray[np.int64]
    quads: NDArray[np.int64]
    values: dict[str, np.ndarray]


def import_pyvista() -> ModuleType:
    """Returns pyvista, which is imported only where meshes are read or written. RequestError: not installed."""
    try:
        import pyvista
    except ImportError as error:
        raise RequestError(
            "pyvista-not-installed",
            "meshes are read and written through pyvista, which is not installed here",
            seen=str(error),
            expected="noether with its extra `mesh`",
            fix="pip install pyvista meshio h5py openpyxl      (or, in noether's checkout: pip install '.[mesh]')",
        ) from None
    from vtkmodules.vtkCommonCore import vtkLogger

    vtkLogger.SetStderrVerbosity(vtkLogger.VERBOSITY_OFF)  # What VTK says of a file is raised, and not printed too.
    return pyvista


def read_mesh(path: Path, *, at_cells: bool = False) -> MeshFile:
    """Reads the points, faces and values at points of a mesh: .vtk, .vtu, .vtp, .stl, .ply or .obj.

    Faces are triangles and quadrilaterals; polygons of more corners and strips become triangles, and cells of other
    kinds are left out. Arrays that are not numbers, or have no row for each point, are left out. RequestError: the file
    is missing, cut short, not of a known format, or not finite.
    """
    if not path.is_file():
        raise RequestError(
            "no-mesh-file", f"no mesh file {path}", seen="no such file", expected="a mesh: " + ", ".join(MESH_SUFFIXES)
        )
    pyvista = import_pyvista()
    if not path.stat().st_size:
        raise unreadable(path, "an empty file")
    if path.suffix.lower() not in MESH_SUFFIXES:
        raise unreadable(path, f"the suffix {path.suffix!r}" if path.suffix else "no suffix")
    try:
        mesh = output_of(pyvista.get_reader(path))
        if not isinstance(mesh, pyvista.PolyData | pyvista.UnstructuredGrid):
            mesh = mesh.cast_to_unstructured_grid()
    except Exception as error:  # whatever a parser raises on bytes that are not its format
        raise unreadable(path, one_line(error)) from None
    return mesh_file_of(path, mesh, at_cells=at_cells)


def mesh_file_of(path: Path, mesh: Any, *, at_cells: bool = False) -> MeshFile:
    """Returns what `read_mesh` does, of a mesh of pyvista. RequestError: its points are not usable."""
    try:
        points = np.asarray(mesh.points, np.float64)
        triangles, quads = _faces(mesh, len(points))  # Before VTK walks the cells: their indices are checked there.
        if at_cells:
            mesh, triangles, quads = mesh.cell_centers(), triangles[:0], quads[:0]
            points = np.asarray(mesh.points, np.float64)
        values = {name: np.asarray(mesh.point_data[name]) for name in mesh.point_data}
    except (ValueError, IndexError, TypeError) as error:  # offsets or indices that fit nothing in the file
        raise unreadable(path, one_line(error)) from None
    if points.ndim != 2 or points.shape[1] != 3 or not len(points):
        raise RequestError(
            "mesh-without-points", f"{path} holds no points in space", seen=f"points {points.shape}", expected="(N, 3)"
        )
    if not np.isfinite(points).all():
        raise RequestError(
            "mesh-points-not-finite",
            f"{path} holds points that are not finite",
            seen=f"{int((~np.isfinite(points)).any(axis=1).sum())} of {len(points)} points",
            expected="numbers",
        )
    fitting = {name: own for name, own in values.items() if own.dtype.kind in "fiub" and len(own) == len(points)}
    return MeshFile(points, triangles, quads, fitting)


@contextmanager
def raising_what_vtk_says() -> Iterator[None]:
    """Raises a ValueError with what VTK says is wrong; it would print that, and return the part that it could read."""
    pyvista = import_pyvista()
    with pyvista.VtkErrorCatcher(send_to_logging=False) as caught:
        yield
    if said := [re.sub(r" *\(0x[0-9a-f]+\)", "", str(event.alert)) for event in caught.error_events]:
        # The pipeline says only that a reader failed, the reader why.
        raise ValueError(next((words for words in said if "returned failure for request" not in words), said[0]))


def output_of(reader: Any, time: float | None = None) -> Any:
    """Returns what a reader of pyvista makes of its file, at a time. Raises ValueError with what VTK says is wrong."""
    with raising_what_vtk_says():
        if time is None:
            reader.reader.Update()
        else:
            reader.reader.UpdateTimeStep(time)
    return import_pyvista().wrap(reader.reader.GetOutputDataObject(0))


def unreadable(path: Path, seen: str) -> RequestError:
    """Returns the refusal of a file that is no mesh, or a broken one."""
    return RequestError(
        "mesh-unreadable",
        f"{path} cannot be read as a mesh",
        seen=seen[:200],
        expected="a complete file: " + ", ".join(MESH_SUFFIXES),
        fix=f"open {path.name} in ParaView, and export the mesh again",
    )


def _faces(mesh: Any, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns triangles (T, 3) and quadrilaterals (Q, 4), with every index below `count`."""
    flat = hasattr(mesh, "n_strips")
    if flat and mesh.n_strips:
        mesh = mesh.triangulate()
    cells = mesh.GetPolys() if flat else mesh.GetCells() if hasattr(mesh, "GetCells") else None
    if cells is None or not cells.GetNumberOfCells():
        return np.empty((0, 3), np.int64), np.empty((0, 4), np.int64)
    connectivity, offsets = to_numpy(cells.GetConnectivityArray()), to_numpy(cells.GetOffsetsArray())
    kinds = (VTK_TRIANGLE, VTK_POLYGON, VTK_QUAD, VTK_PIXEL)
    faces = np.ones(len(offsets) - 1, bool) if flat else np.isin(np.asarray(mesh.celltypes), kinds)
    corners = np.diff(offsets)
    if connectivity.size and not 0 <= connectivity.min() <= connectivity.max() < count:
        raise ValueError(f"a face of point {int(connectivity.max())}, where there are {count} points")
    starts = offsets[:-1]
    triangles = [connectivity[starts[faces & (corners == 3)][:, None] + np.arange(3)]]
    quads = connectivity[starts[faces & (corners == 4)][:, None] + np.arange(4)]
    if not flat:  # a pixel has its last two corners the other way round
        pixels = np.asarray(mesh.celltypes)[faces & (corners == 4)] == VTK_PIXEL
        quads[pixels] = quads[pixels][:, [0, 1, 3, 2]]
    for start, number in zip(starts[faces & (corners > 4)], corners[faces & (corners > 4)], strict=True):
        polygon = connectivity[start : start + number]
        triangles.append(np.stack([np.broadcast_to(polygon[0], number - 2), polygon[1:-1], polygon[2:]], axis=-1))
    return np.concatenate(triangles).astype(np.int64), quads.astype(np.int64)


def to_numpy(array: Any) -> np.ndarray:
    """Returns a VTK array as a NumPy array that shares its memory."""
    from vtkmodules.util.numpy_support import vtk_to_numpy

    return np.asarray(vtk_to_numpy(array))


def read_array(path: Path) -> np.ndarray:
    """Reads the array of a .npy file, without running code. RequestError: it cannot be read."""
    try:
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise ValueError(array.dtype if isinstance(array, np.ndarray) else "several arrays")
    # NumPy parses the header as Python: a broken one raises whatever its parser does.
    except (Exception, RecursionError, MemoryError) as error:
        raise RequestError(
            "mesh-parts-unreadable",
            f"{path} cannot be read",
            seen="a file of another kind" if "pickle" in str(error) else one_line(error),  # NumPy offers to run it.
            expected="one array of numbers, saved by numpy.save",
        ) from None
    return array
