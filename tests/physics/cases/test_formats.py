"""Meshes in the formats of other programs are read; results of CalculiX are read as by ccx2paraview."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import pyvista
from processes import find_program
from simulated_cases import drafted

from noether.physics.cases.case_map import AtTime, SetMap, parse_map
from noether.physics.cases.draft import draft_map
from noether.physics.cases.mesh_blocks import read_blocks, read_times
from noether.physics.cases.mesh_source import read_set
from noether.physics.cases.survey import survey_folder
from noether.physics.cases.tables import read_columns
from tests.refusal import refusal


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


CLOUDS = [(as_paraview_writes, []), (as_a_spreadsheet_does, []), (with_other_names, ["east", "north", "height"])]


@pytest.mark.parametrize(("write", "coordinates"), CLOUDS)
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
    if coordinates:  # without the setting, they are unknown
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


DECK = Path(__file__).with_name("elements.inp").read_text()
"""A deck with one element of each type, in a row; it requests results of two steps as text."""


@pytest.fixture(scope="module")
def solved(tmp_path_factory) -> Path:
    find_program("ccx", "calculix-ccx")
    folder = tmp_path_factory.mktemp("ccx")
    # ccx2paraview gets only one step: given two, it fills the grid while a thread still writes it, and may crash.
    last, _, _ = DECK.replace("3, 3, 0.01", "3, 3, 0.02").partition("*END STEP")
    binary = DECK.replace("FILE", "OUTPUT").replace("*EL OUTPUT", "*ELEMENT OUTPUT")
    for kind, text in (("FILE", DECK), ("OUTPUT", binary), ("LAST", f"{last}*END STEP\n")):
        (folder / f"{kind}.inp").write_text(text)
        subprocess.run(["ccx", kind], cwd=folder, check=True, capture_output=True, timeout=60)
    return folder


@pytest.mark.parametrize("kind", ["FILE", "OUTPUT"])
def test_results_are_those_that_others_read(kind: str, solved: Path) -> None:
    converter = Path(sys.executable).with_name("ccxToVTU")  # a program of ccx2paraview
    subprocess.run([converter, "LAST.frd"], cwd=solved, check=True, capture_output=True, timeout=60)
    theirs = pyvista.read(solved / "LAST.vtu")
    assert read_times(solved / f"{kind}.frd") == [1, 2]
    (block,) = read_blocks(solved / f"{kind}.frd")
    assert block.mesh.points == pytest.approx(theirs.points)
    for own, name in (("DISP", "U"), ("STRESS", "S")):
        values = np.asarray(theirs.point_data[name])
        assert block.mesh.point_data[own] == pytest.approx(values, abs=1e-5 * np.abs(values).max())
    volumes = np.abs(block.mesh.compute_cell_sizes()["Volume"])
    assert sorted(volumes) == pytest.approx([1 / 6, 1 / 6, 1 / 2, 1 / 2, 1, 1])
    first = read_blocks(solved / f"{kind}.frd", step=AtTime(time=1))[0].mesh.point_data["DISP"]
    assert 2 * first == pytest.approx(np.asarray(block.mesh.point_data["DISP"]), abs=1e-6)


@pytest.mark.parametrize("tiny", ["1.00000E-100", "-1.00000E-100"])
def test_numbers_that_touch_each_other_are_two(tiny: str, solved: Path, tmp_path: Path) -> None:
    text = (solved / "FILE.frd").read_text().replace("1.00000E+00 0.00000E+00", f"1.00000E+00{tiny}", 1)
    (tmp_path / "case.frd").write_text(text)
    (block,) = read_blocks(tmp_path / "case.frd")
    assert block.mesh.points[1].tolist() == pytest.approx([1, float(tiny), 0], abs=0)


def test_the_draft_knows_the_fields(solved: Path, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        shutil.copy(solved / "FILE.frd", tmp_path / name / "plate.frd")
        shutil.copy(solved / "FILE.inp", tmp_path / name / "plate.inp")
    _, about = drafted(tmp_path, workers=0)
    assert about.sets["volume"].file == "{case}/plate.frd"
    assert {name: own.tensor for name, own in about.sets["volume"].fields.items()} == {
        "displacement": None, "stress": "vtk"}  # fmt: skip


@pytest.mark.parametrize("kind", ["FILE", "OUTPUT"])
@pytest.mark.parametrize("part", [0.02, 0.3, 0.6, 0.99])
def test_a_torn_file_is_refused(part: float, kind: str, solved: Path, tmp_path: Path) -> None:
    whole = (solved / f"{kind}.frd").read_bytes()
    (tmp_path / "torn.frd").write_bytes(whole[: int(part * len(whole))])
    with refusal("case-file-unreadable"):
        read_blocks(tmp_path / "torn.frd")
