"""Meshes in the formats that other programs write, each written by one of them."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import meshio
import numpy as np
import pytest
import pyvista
from simulated_cases import air

from noether.data.cases.case_map import SetMap
from noether.data.cases.grouping import group_files
from noether.data.cases.mesh_source import read_blocks, read_set
from noether.errors import RequestError


def image(path: Path) -> None:
    mesh = pyvista.ImageData(dimensions=(5, 4, 3))
    _with_fields(mesh).save(path)


def rectilinear(path: Path) -> None:
    _with_fields(pyvista.RectilinearGrid(*(np.linspace(0, 1, count) for count in (5, 4, 3)))).save(path)


def structured(path: Path) -> None:
    _with_fields(pyvista.ImageData(dimensions=(5, 4, 3)).cast_to_structured_grid()).save(path)


def unstructured(path: Path) -> None:
    _with_fields(air(1.0, 6)).save(path)


def by_meshio(path: Path) -> None:
    mesh = pyvista.to_meshio(_with_fields(air(1.0, 6)))
    mesh.cell_data = {}
    meshio.write(path, mesh)


def exodus(path: Path) -> None:
    from vtkmodules.vtkIOExodus import vtkExodusIIWriter

    writer = vtkExodusIIWriter()
    writer.SetInputData(_with_fields(air(1.0, 6)))
    writer.SetFileName(str(path))
    writer.Write()


def pieces(path: Path) -> None:
    from vtkmodules.vtkIOParallelXML import vtkXMLPUnstructuredGridWriter

    writer = vtkXMLPUnstructuredGridWriter()
    writer.SetInputData(_with_fields(air(1.0, 6)))
    writer.SetFileName(str(path))
    writer.SetNumberOfPieces(1)
    writer.Write()


def times(path: Path) -> None:
    """A series of two steps, of which the last counts."""
    steps = []
    for step, factor in enumerate((0.0, 1.0)):
        mesh = _with_fields(air(1.0, 6))
        mesh.point_data["T"] = factor * mesh.point_data["T"]
        mesh.save(path.with_name(f"{path.stem}_{step}.vtu"))
        steps.append(f'<DataSet timestep="{step}" part="0" file="{path.stem}_{step}.vtu"/>')
    path.write_text(f'<VTKFile type="Collection" version="0.1"><Collection>{"".join(steps)}</Collection></VTKFile>')


def _with_fields(mesh):
    mesh.clear_data()
    mesh.point_data["T"] = 300 + np.asarray(mesh.points)[:, 0]
    return mesh


WRITERS: dict[str, Callable[[Path], None]] = {
    ".vti": image, ".vtr": rectilinear, ".vts": structured, ".vtkhdf": unstructured, ".pvtu": pieces, ".pvd": times,
    ".exo": exodus, ".xdmf": by_meshio, ".med": by_meshio, ".vtk": unstructured,
}  # fmt: skip


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_volume_with_a_field_is_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"case{suffix}"
    WRITERS[suffix](path)
    found = read_set(path, SetMap.model_validate(
        {"file": "{case}", "kind": "volume", "at": "points", "fields": {"t": {"array": "T"}}}
    ))  # fmt: skip
    assert found.fields["t"][:, 0] == pytest.approx(300 + found.points[:, 0], rel=1e-5)
    assert len(found.points) > 50


def test_the_mesh_of_nastran_is_read(tmp_path: Path) -> None:
    by_meshio(tmp_path / "case.bdf")
    (block,) = read_blocks(tmp_path / "case.bdf")
    assert np.ptp(np.asarray(block.mesh.points), axis=0) == pytest.approx(np.ptp(air(1.0, 6).points, axis=0), rel=1e-4)


@pytest.mark.parametrize("suffix", [".msh", ".inp"])
def test_the_mesh_of_a_deck_is_read(suffix: str, tmp_path: Path) -> None:
    if shutil.which("gmsh") is None:
        pytest.skip("no gmsh: apt-get install gmsh")
    (tmp_path / "box.geo").write_text('SetFactory("OpenCASCADE"); Box(1) = {0, 0, 0, 1, 2, 3};')
    subprocess.run(["gmsh", "-3", "-o", f"case{suffix}", "box.geo"], cwd=tmp_path, check=True, capture_output=True,
                   timeout=60)  # fmt: skip
    (block,) = read_blocks(tmp_path / f"case{suffix}")
    assert np.ptp(np.asarray(block.mesh.points), axis=0) == pytest.approx([1, 2, 3], rel=1e-4)


@pytest.mark.parametrize("suffix", [".msh", ".inp", ".bdf", ".med", ".exo", ".vti", ".pvd", ".vtkhdf", ".xdmf"])
def test_a_file_of_other_bytes_is_refused_in_words(suffix: str, tmp_path: Path, capfd) -> None:
    path = tmp_path / f"case{suffix}"
    path.write_bytes(b"neither\x00 this nor that\n" * 40)
    with pytest.raises(RequestError) as refused:
        read_blocks(path)
    assert refused.value.code in ("case-file-unreadable", "case-file-without-points")
    assert capfd.readouterr().err.count("\n") <= 1


def test_pieces_and_decks_are_no_meshes_of_their_own() -> None:
    files = [f"run_{i}/{name}" for i in range(4) for name in
             ("result.pvd", "result_0.vtu", "result_1.vtu", "plate.inp", "flow.pvtu", "flow/flow_0.vtu")]  # fmt: skip
    assert sorted(group_files(files).meshes) == ["{case}/flow.pvtu", "{case}/result.pvd"]
    assert sorted(group_files(["a/m.inp", "b/m.inp"]).meshes) == ["{case}/m.inp"]
