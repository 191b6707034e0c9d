"""Meshes in the formats that other programs write, each written by one of them."""

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import meshio
import numpy as np
import pytest
import pyvista
from processes import find_program
from simulated_cases import air

from noether.common.errors import RequestError
from noether.physics.cases.case_map import SetMap, parse_map
from noether.physics.cases.draft import draft_map
from noether.physics.cases.mesh_blocks import read_blocks
from noether.physics.cases.mesh_source import read_set
from noether.physics.cases.survey import survey_folder
from noether.physics.cases.tables import read_columns
from tests.refusal import refusal


def image(path: Path) -> None:
    mesh = pyvista.ImageData(dimensions=(5, 4, 3))
    _with_fields(mesh).save(path)


def by_meshio(path: Path, form: str | None = None) -> None:
    mesh = pyvista.to_meshio(_with_fields(air(1.0, 6)))
    mesh.cell_data = {}
    meshio.write(path, mesh, file_format=form)


def pieces(path: Path) -> None:
    from vtkmodules.vtkIOParallelXML import vtkXMLPUnstructuredGridWriter

    writer = vtkXMLPUnstructuredGridWriter()
    writer.SetInputData(_with_fields(air(1.0, 6)))
    writer.SetFileName(str(path))
    writer.SetNumberOfPieces(1)
    writer.Write()


def _with_fields(mesh):
    mesh.clear_data()
    mesh.point_data["T"] = 300 + np.asarray(mesh.points)[:, 0]
    return mesh


WRITERS: dict[str, Callable[[Path], None]] = {
    ".vti": image, ".pvtu": pieces, ".plt": partial(by_meshio, form="tecplot"), ".xdmf": by_meshio,
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
    find_program("gmsh", "gmsh")
    (tmp_path / "box.geo").write_text('SetFactory("OpenCASCADE"); Box(1) = {0, 0, 0, 1, 2, 3};')
    subprocess.run(["gmsh", "-3", "-o", f"case{suffix}", "box.geo"], cwd=tmp_path, check=True, capture_output=True,
                   timeout=60)  # fmt: skip
    (block,) = read_blocks(tmp_path / f"case{suffix}")
    assert np.ptp(np.asarray(block.mesh.points), axis=0) == pytest.approx([1, 2, 3], rel=1e-4)


def as_paraview_writes(path: Path, cloud: pyvista.PolyData) -> None:
    from vtkmodules.vtkCommonDataModel import vtkTable
    from vtkmodules.vtkIOCore import vtkDelimitedTextWriter

    table, writer = vtkTable(), vtkDelimitedTextWriter()
    vectors = {"U": cloud.point_data["U"], "Points": cloud.points}
    columns = {f"{name}:{i}": values[:, i] for name, values in vectors.items() for i in range(3)}
    for name, values in {"p": cloud.point_data["p"], **columns}.items():
        table.AddColumn(pyvista.convert_array(np.array(values), name))
    writer.SetInputData(table)
    writer.SetFileName(str(path))
    writer.Write()


def as_a_spreadsheet_does(path: Path, cloud: pyvista.PolyData) -> None:
    names = ["X (m)", "Y (m)", "Z (m)", "p", "U[i]", "U[j]", "U[k]", "Region"]
    rows = [*np.column_stack([cloud.points, cloud.point_data["p"], cloud.point_data["U"]])]
    lines = [";".join(names), *[";".join(f"{value:.7g}".replace(".", ",") for value in row) + ";air" for row in rows]]
    path.write_text("\n".join(["# Export", "# Solver: XY, 26.1", "# Date: 12.03.2026", "", "# Time = 3 s", *lines]))


def with_other_names(path: Path, cloud: pyvista.PolyData) -> None:
    rows = np.column_stack([cloud.point_data["p"], cloud.points, cloud.point_data["U"]])
    np.savetxt(path, rows, delimiter=",", comments="% ", header="Model\np,east,north,height,Ux,Uy,Uz")


CLOUDS = {
    "paraview": (as_paraview_writes, []),
    "spreadsheet": (as_a_spreadsheet_does, []),
    "other-names": (with_other_names, ["east", "north", "height"]),
}


@pytest.mark.parametrize(("write", "coordinates"), CLOUDS.values(), ids=CLOUDS)
def test_a_cloud_of_points_is_read_from_csv(write, coordinates: list[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for case in ("a", "b", "c"):
        cloud = pyvista.PolyData(rng.random((9, 3)))
        cloud.point_data["p"], cloud.point_data["U"] = rng.random(9), rng.random((9, 3))
        (tmp_path / case).mkdir()
        write(tmp_path / case / "cloud.csv", cloud)
        (tmp_path / case / "inlet.csv").write_text(f"speed,x,y,z\n{len(case)},1,2,3")
    fields = {"p": {"array": "p"}, "u": {"array": "U", "components": 3}}
    own = SetMap.model_validate({"file": "{case}/cloud.csv", "kind": "points", "fields": fields})
    found = read_set(tmp_path / "c" / "cloud.csv", own.model_copy(update={"coordinates": coordinates}))
    assert found.points == pytest.approx(np.asarray(cloud.points), rel=1e-5)
    assert found.fields["u"] == pytest.approx(np.asarray(cloud.point_data["U"]), rel=1e-5)
    if coordinates:  # nobody can guess
        with refusal("no-coordinates"):
            read_set(tmp_path / "c" / "cloud.csv", own)
        return
    survey = survey_folder(tmp_path, workers=0)
    assert survey.grouping.numbers.keys() == {"{case}/inlet.csv"}
    drafted = parse_map(draft_map(survey), "m").sets["points"]
    assert (drafted.file, {field.array for field in drafted.fields.values()}) == (own.file, {"p", "U"})


def test_columns_of_one_name_are_one_only_where_they_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "same.csv").write_text("x,y,T,x\n0,1,20,0\n1,1,30,1\n")
    assert list(read_columns(tmp_path / "same.csv")) == ["x", "y", "T"]
    (tmp_path / "other.csv").write_text("x,y,T,T\n0,1,20,0\n1,1,30,1\n")
    with refusal("columns-of-one-name"):
        read_columns(tmp_path / "other.csv")


@pytest.mark.parametrize(
    "suffix",
    [".msh", ".inp", ".bdf", ".med", ".exo", ".vti", ".pvd", ".vtkhdf", ".xdmf", ".series", ".plt", ".frd", ".csv"],
)
def test_a_file_of_other_bytes_is_refused_in_words(suffix: str, tmp_path: Path, capfd) -> None:
    path = tmp_path / f"case{suffix}"
    path.write_bytes(b"neither\x00 this nor that\n" * 40)
    with pytest.raises(RequestError) as refused:
        read_blocks(path)
    assert refused.value.code in (
        "case-file-unreadable", "case-file-without-points", "no-coordinates",
    )  # fmt: skip
    assert capfd.readouterr().err.count("\n") <= 1
