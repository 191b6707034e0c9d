"""Which points, cells and values does a mesh file hold? Read through meshio, or refused in words."""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from noether.errors import RequestError


@dataclass(frozen=True)
class MeshFile:
    """What a file holds: points (N, 3), faces by corners (triangles, quads), and arrays with a row per point."""

    points: NDArray[np.float64]
    triangles: NDArray[np.int64]
    quads: NDArray[np.int64]
    values: dict[str, np.ndarray]


def read_mesh(path: Path, file_format: str | None = None) -> MeshFile:
    """Reads a mesh in any format that meshio knows: legacy VTK (unstructured grids), VTU, STL, PLY, OBJ, ...

    Raises:
        RequestError: the file is missing, cut short, not of a known format, or not finite.
    """
    if not path.is_file():
        raise RequestError(f"no mesh file {path}", seen="no such file", expected="a mesh that meshio reads")
    import meshio

    said = io.StringIO()
    try:
        # meshio prints its refusals and then leaves the program.
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            mesh = meshio.read(path, file_format)
    except (Exception, SystemExit) as error:  # whatever a parser raises on bytes that are not its format
        # Its own words for an unknown type are a list of all that it knows.
        seen = " ".join(str(error).split()) if not isinstance(error, SystemExit) else " ".join(said.getvalue().split())
        raise RequestError(
            f"{path} cannot be read as a mesh",
            seen=(seen or type(error).__name__)[:200],
            expected="a whole file: .vtk (UNSTRUCTURED_GRID), .vtu, .stl, .ply or .obj",
            fix=f"meshio info {path}      (or export the mesh again)",
        ) from None
    points = np.asarray(mesh.points, np.float64)
    if points.ndim != 2 or points.shape[1] != 3 or not len(points):
        raise RequestError(f"{path} holds no points in space", seen=f"points {points.shape}", expected="(N, 3)")
    if not np.isfinite(points).all():
        raise RequestError(
            f"{path} holds points that are not finite",
            seen=f"{int((~np.isfinite(points)).any(axis=1).sum())} of {len(points)} points",
            expected="numbers",
        )
    faces = {kind: [block.data for block in mesh.cells if block.type == kind] for kind in ("triangle", "quad")}
    triangles, quads = (
        np.concatenate([np.empty((0, corners), np.int64), *faces[kind]]).astype(np.int64)
        for kind, corners in (("triangle", 3), ("quad", 4))
    )
    for cells in (triangles, quads):
        if cells.size and not 0 <= cells.min() <= cells.max() < len(points):
            raise RequestError(
                f"{path} has a face of points that are not there",
                seen=f"point {int(cells.max())}",
                expected=f"indices below {len(points)}",
            )
    return MeshFile(points, triangles, quads, {name: np.asarray(values) for name, values in mesh.point_data.items()})
