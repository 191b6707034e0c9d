"""Fields at points or on a mesh → a file that ParaView opens: .vtu and .vtk through meshio, .vtp written here.

meshio opens .vtu and .vtk again with every array; it does not know .vtp (PolyData).
"""

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from noether.errors import RequestError

SUFFIXES = (".vtu", ".vtk", ".vtp")


def check_suffix(path: Path) -> None:
    """Refuses a name whose suffix is no format that can be written. RequestError."""
    if path.suffix not in SUFFIXES:
        raise RequestError(
            f"{path.name} names no format that can be written",
            seen=path.suffix or "no suffix",
            expected=", ".join(SUFFIXES),
            fix=f"{path.with_suffix('.vtu')}",
        )


def write_fields(path: Path, points: np.ndarray, faces: np.ndarray | None, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes points (N, 3) with arrays (N,) or (N, C); faces (F, 3) or (F, 4), or None: a vertex for each point.

    Raises:
        RequestError: the suffix is no known format, or the file cannot be written.
    """
    check_suffix(path)
    points = np.asarray(points, np.float32)
    cells = np.arange(len(points))[:, None] if faces is None else faces
    kind = {1: "vertex", 3: "triangle", 4: "quad"}[cells.shape[1]]
    values = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".vtp":
            partial.write_text(_poly_data(points, cells, values))
        else:
            import meshio

            mesh = meshio.Mesh(points, [(kind, cells.astype(np.int64))], point_data=values)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                mesh.write(partial, file_format="vtk42" if path.suffix == ".vtk" else "vtu")
        partial.replace(path)
    except OSError as error:
        raise RequestError(
            f"cannot write {path}", seen=f"{type(error).__name__}: {error}", expected="a folder that can be written"
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def _poly_data(points: np.ndarray, cells: np.ndarray, arrays: Mapping[str, np.ndarray]) -> str:
    """PolyData in VTK's XML, as text (https://docs.vtk.org/en/latest/vtk_file_formats/vtkxml_file_format.html)."""
    kind = "Verts" if cells.shape[1] == 1 else "Polys"
    ends = np.arange(1, len(cells) + 1) * cells.shape[1]
    body = [_data_array("Points", points)]
    lines = [
        '<?xml version="1.0"?>',
        '<VTKFile type="PolyData" version="1.0" byte_order="LittleEndian" header_type="UInt64">',
        "<PolyData>",
        f'<Piece NumberOfPoints="{len(points)}" NumberOfVerts="{len(cells) if kind == "Verts" else 0}" '
        f'NumberOfLines="0" NumberOfStrips="0" NumberOfPolys="{len(cells) if kind == "Polys" else 0}">',
        "<PointData>",
        *(_data_array(name, array) for name, array in arrays.items()),
        "</PointData>",
        "<Points>",
        *body,
        "</Points>",
        f"<{kind}>",
        _data_array("connectivity", cells.ravel()),
        _data_array("offsets", ends),
        f"</{kind}>",
        "</Piece>",
        "</PolyData>",
        "</VTKFile>",
    ]
    return "\n".join(lines) + "\n"


def _data_array(name: str, array: np.ndarray) -> str:
    whole = array.dtype.kind == "i"
    numbers = " ".join(map(str, array.ravel().tolist())) if whole else " ".join(f"{x:.9g}" for x in array.ravel())
    components = array.shape[1] if array.ndim > 1 else 1
    kind = "Int64" if whole else "Float32"
    return (
        f'<DataArray type="{kind}" Name="{name}" NumberOfComponents="{components}" format="ascii">\n'
        f"{numbers}\n</DataArray>"
    )
