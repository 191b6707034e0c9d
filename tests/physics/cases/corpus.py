"""Write the binary files of the corpus of cases with VTK, meshio and Gmsh.

All meshes consist of unit cubes or unit squares with T = 1, 2, … at cells or points, so counts and sizes are known.
"""

import gzip
import os
import subprocess
from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pyvista
from processes import find_program
from vtkmodules.vtkFiltersParallel import vtkExtractPolyDataPiece, vtkExtractUnstructuredGridPiece
from vtkmodules.vtkIOExodus import vtkExodusIIWriter
from vtkmodules.vtkIOHDF import vtkHDFWriter
from vtkmodules.vtkIOParallelXML import vtkXMLPPolyDataWriter, vtkXMLPUnstructuredGridWriter

HERE = Path(__file__).parent


def numbered(mesh: Any, at: str = "cells") -> Any:
    """Return the mesh with the field T = 1, 2, … at its cells or points, and without other fields."""
    mesh.clear_data()
    data, count = (mesh.cell_data, mesh.n_cells) if at == "cells" else (mesh.point_data, mesh.n_points)
    data["T"] = np.arange(1.0, count + 1)
    return mesh


def image(n: int) -> pyvista.ImageData:
    return pyvista.ImageData(dimensions=(n + 1,) * 3)


def cubes(n: int, at: str = "cells") -> pyvista.UnstructuredGrid:
    """Return a mesh of n × n × n unit cubes."""
    return numbered(image(n).cast_to_structured_grid().cast_to_unstructured_grid(), at)


def squares(n: int, at: str = "cells") -> pyvista.PolyData:
    """Return a plane mesh of n × n unit squares."""
    plane = pyvista.ImageData(dimensions=(n + 1, n + 1, 1)).cast_to_structured_grid().cast_to_unstructured_grid()
    return numbered(pyvista.PolyData(plane.points, faces=plane.cells), at)


def run(folder: Path, package: str, *command: str, **environ: str) -> None:
    subprocess.run([find_program(command[0], package), *command[1:]], cwd=folder, check=True, capture_output=True,
                   timeout=60, env=os.environ | environ)  # fmt: skip


def by_pyvista(folder: Path, name: str, n: int = 3, at: str = "cells") -> None:
    """Write a binary file in the format of its suffix, with a regular mesh, cubes or squares."""
    suffix = Path(name).suffix
    if suffix == ".vti":
        mesh = numbered(image(n), at)
    elif suffix == ".vtr":
        mesh = numbered(pyvista.RectilinearGrid(*([np.arange(n + 1.0)] * 3)), at)
    elif suffix == ".vts":
        mesh = numbered(image(n).cast_to_structured_grid(), at)
    else:
        mesh = squares(n, at) if suffix in (".vtp", ".ply") else cubes(n, at)
    mesh.save(folder / name)


def by_vtk(folder: Path, name: str, n: int = 3, at: str = "cells", kind: str = "volume") -> None:
    """Write .vtkhdf or, for any other suffix, Exodus, to which VTK adds the ids of elements and nodes."""
    writer = vtkHDFWriter() if name.endswith(".vtkhdf") else vtkExodusIIWriter()
    writer.SetInputData(cubes(n, at) if kind == "volume" else squares(n, at).cast_to_unstructured_grid())
    writer.SetFileName(str(folder / name))
    writer.Write()


def in_pieces(folder: Path, name: str, n: int = 4, pieces: int = 3, ghosts: int = 0) -> None:
    """Write a .pvtu or .pvtp in pieces, as ParaView does. `ghosts`: layers of its neighbours' cells in each piece."""
    is_flat = name.endswith(".pvtp")
    part = vtkExtractPolyDataPiece() if is_flat else vtkExtractUnstructuredGridPiece()
    part.SetInputData(squares(n) if is_flat else cubes(n))
    part.SetCreateGhostCells(ghosts > 0)
    writer = vtkXMLPPolyDataWriter() if is_flat else vtkXMLPUnstructuredGridWriter()
    writer.SetInputConnection(part.GetOutputPort())
    writer.SetFileName(str(folder / name))
    writer.SetNumberOfPieces(pieces)
    writer.SetEndPiece(pieces - 1)
    writer.SetGhostLevel(ghosts)
    writer.Write()


def cgns(folder: Path) -> None:
    """Write a stored file of the CGNS library, with eight hexahedra at three times."""
    (folder / "flow.cgns").write_bytes(gzip.decompress((HERE / "steps.cgns.gz").read_bytes()))


def by_meshio(folder: Path, name: str, form: str | None = None, at: str = "points", n: int = 2) -> None:
    """Write cubes and n squares of their skin, with T at cells or points; T is 900 at the squares' cells."""
    grid = cubes(n, at)
    skin = np.array([[i, i + 1, i + n + 2, i + n + 1] for i in range(n)])
    cells = [("hexahedron", grid.cells_dict[pyvista.CellType.HEXAHEDRON]), ("quad", skin)]
    values = {"T": np.asarray(grid.point_data["T"])} if at == "points" else {}
    in_cells = {"T": [np.asarray(grid.cell_data["T"]), np.full(n, 900.0)]} if at == "cells" else {}
    mesh = meshio.Mesh(np.asarray(grid.points, float), cells, point_data=values, cell_data=in_cells)
    before = Path.cwd()
    os.chdir(folder)  # meshio writes the arrays of an .xdmf to the working directory
    try:
        meshio.write(name, mesh, file_format=form)
    finally:
        os.chdir(before)


def by_gmsh(folder: Path, n: int, groups: str = "", form: str = "msh41", every: bool = False) -> None:
    """Write a unit cube: n³ hexahedra, 6 n² quadrilaterals, 12 n lines, 8 points; `every`: also those in no group."""
    (folder / "box.geo").write_text(f"""
SetFactory("OpenCASCADE"); Box(1) = {{0, 0, 0, 1, 1, 1}};
Transfinite Curve {{:}} = {n + 1}; Transfinite Surface {{:}}; Recombine Surface {{:}}; Transfinite Volume {{:}};
{groups}
Mesh.SaveAll = {int(every)};
""")
    run(folder, "gmsh", "gmsh", "-3", "-format", form, "-o", "box.msh", "box.geo")
    (folder / "box.geo").unlink()
