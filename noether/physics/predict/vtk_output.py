"""Write fields at points or on a mesh to a .vtu, .vtk or .vtp file for ParaView or `predict --mesh`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.common.atomic_write import UNFENCED
from noether.common.errors import RequestError
from noether.common.safe_open import create_plain
from noether.core.evaluate import ShownCase, to_array
from noether.core.tasks.angles import in_units
from noether.core.tasks.base import Task, by_channel
from noether.physics.cases.mesh_files import import_pyvista, raising_what_vtk_says, read_array
from noether.physics.cases.mesh_source import FACES, ShapePart, whole_mesh

if TYPE_CHECKING:  # This module imports SciPy, which training ranks do not need.
    from noether.physics.predict.shape_input import Shape

SUFFIXES = (".vtu", ".vtk", ".vtp")


def check_suffix(path: Path) -> None:
    """Raise RequestError if noether cannot write the format that a path's suffix names."""
    if path.suffix not in SUFFIXES:
        raise RequestError("unknown-suffix", f"{path.name} has a suffix whose format noether cannot write",
                           seen=path.suffix or "no suffix", expected=", ".join(SUFFIXES),
                           fix=f"--out {quote(str(path.with_suffix('.vtu')))}")  # fmt: skip


def write_fields(path: Path, points: np.ndarray, faces: np.ndarray | None, arrays: Mapping[str, np.ndarray]) -> None:
    """Write points (N, 3) with arrays (N,) or (N, C), and faces (F, 3) or (F, 4); with None, each point is a vertex.

    RequestError: the suffix is unknown, pyvista is not installed, or the file cannot be written.
    """
    check_suffix(path)
    pyvista = import_pyvista()
    points = np.asarray(points, np.float32)
    mesh = pyvista.PolyData(points) if faces is None else pyvista.PolyData.from_regular_faces(points, faces)
    if path.suffix != ".vtp":
        mesh = mesh.cast_to_unstructured_grid()
    for name, array in arrays.items():
        mesh.point_data[name] = np.ascontiguousarray(array, np.float32)
    _save(mesh, path)


def write_case_files(
    folder: Path, task: Task, shown: Sequence[ShownCase], names: Sequence[str], faces: Sequence[np.ndarray | None]
) -> list[str]:
    """Write `LABEL_NAME_SET.vtu` for each case and set of points; return the paths.

    Args:
        folder, task: the folder to write to, and the task that names the fields and their points.
        shown: the cases. If several cases have the same label, such as worst, the second is called worst-2.
        faces: for each case, the faces of its surface points, or None if unknown. names: the names of all samples.
    """
    written = []
    for (label, place, position, physical, batch), own_faces in zip(shown, faces, strict=True):
        stem = f"{label if place == 1 else f'{label}-{place}'}_{names[position]}"
        for points in dict.fromkeys(field.points for field in task.fields.values()):
            arrays: dict[str, np.ndarray] = {}
            for name in (name for name, field in task.fields.items() if field.points == points):
                both = in_units(task.fields[name], physical[name][0], by_channel(batch[name][0]))
                arrays |= field_arrays(name, *(np.squeeze(to_array(one)) for one in both))
            path = folder / f"{stem}_{points.removesuffix('_points')}.vtu"
            write_fields(path, to_array(batch[points][0]), own_faces if points.startswith("surface") else None, arrays)
            written.append(str(path))
    return written


def write_on_shape(
    path: Path, source: Path, shape: "Shape", arrays: Mapping[str, np.ndarray], part: ShapePart = FACES
) -> None:
    """Write a copy of a mesh file with further arrays. The copy keeps the unit, axes, cells and arrays of the file.

    If the source is a .npy file, write its points with the arrays.

    path: the file to write.
    source: the file from which `shape` was read. The arrays are NaN where the shape lacks a point or cell of the file.
    arrays: arrays by name, (N,) or (N, C), with one row per point of the shape.
    part: the part of the source from which the shape was read. If it is "cells", the arrays become cell data.
    RequestError: as for `write_fields`; or `path` is a .vtp file, but the mesh is neither a surface nor a point set.
    """
    if source.suffix == ".npy":
        return write_fields(path, read_array(source)[shape.rows], shape.faces, arrays)
    check_suffix(path)
    pyvista = import_pyvista()
    mesh = whole_mesh(source, part)
    if isinstance(mesh, pyvista.PointSet):
        mesh = mesh.cast_to_polydata()
    if path.suffix == ".vtp" and not isinstance(mesh, pyvista.PolyData):
        raise RequestError("suffix-without-cells", f"{path.name} cannot hold the cells of {source.name}",
                           seen=path.suffix, expected="the suffix .vtu or .vtk",
                           fix=f"--out {quote(str(path.with_suffix('.vtu')))}")  # fmt: skip
    if path.suffix == ".vtu" and not isinstance(mesh, pyvista.UnstructuredGrid):
        mesh = mesh.cast_to_unstructured_grid()
    data, count = (mesh.cell_data, mesh.n_cells) if part.at == "cells" else (mesh.point_data, mesh.n_points)
    for name, array in arrays.items():
        whole = np.full((count, *array.shape[1:]), np.nan, np.float32)
        whole[shape.rows] = array
        data[name] = whole
    _save(mesh, path)


def _save(mesh: Any, path: Path) -> None:
    """Save a mesh atomically: write a temporary file, then rename it. RequestError: the file cannot be written."""
    try:
        made = UNFENCED.partial(path)
        partial = made.with_name(f"{made.name}{path.suffix}")  # VTK chooses the format by the suffix.
        create_plain(partial).close()  # If the folder is not writable, this raises the reason; VTK gives none.
        try:
            with raising_what_vtk_says():
                mesh.save(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise RequestError("output-not-written", f"cannot write {path}", seen=f"{type(error).__name__}: {error}",
                           expected="a writable folder") from None  # fmt: skip


def field_arrays(name: str, prediction: np.ndarray, truth: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of a field for a file, by name: the prediction and, with a truth, also the truth and error."""
    arrays = {f"{name}_prediction": prediction}
    return arrays if truth is None else {**arrays, name: truth, f"{name}_error": prediction - truth}
