"""Meshes in the formats of other programs, each written by one of them; CalculiX' results as ccx2paraview has them."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import meshio
import numpy as np
import pytest
import pyvista
from processes import find_program
from simulated_cases import air, drafted

from noether.common.errors import RequestError
from noether.physics.cases.case_map import AtTime, SetMap, parse_map
from noether.physics.cases.draft import draft_map
from noether.physics.cases.mesh_blocks import read_blocks, read_times
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
    own = {"file": "{case}", "kind": "volume", "at": "points", "fields": {"t": {"array": "T"}}}
    found = read_set(path, SetMap.model_validate(own))
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
    assert refused.value.code in ("case-file-unreadable", "case-file-without-points", "no-coordinates")
    assert capfd.readouterr().err.count("\n") <= 1


HEXAHEDRON = [(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1)]
WEDGE = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1)]
TETRAHEDRON = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
EDGES = {
    "C3D20": [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4), (0, 4), (1, 5), (2, 6), (3, 7)],
    "C3D15": [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3), (1, 4), (2, 5)],
    "C3D10": [(0, 1), (1, 2), (2, 0), (0, 3), (1, 3), (2, 3)],
}
"""The middles of edges, in CalculiX' order."""
ELEMENTS = {"C3D8": HEXAHEDRON, "C3D20": HEXAHEDRON, "C3D6": WEDGE, "C3D15": WEDGE, "C3D4": TETRAHEDRON,
            "C3D10": TETRAHEDRON}  # fmt: skip
REST = """
*MATERIAL, NAME=M
*ELASTIC
210000, 0.3
*SOLID SECTION, ELSET=EALL, MATERIAL=M
*BOUNDARY
LOW, 1, 3
*STEP
*STATIC
*BOUNDARY
HIGH, 3, 3, 0.01
*NODE {0}
U
*{1} {0}
S
*END STEP
*STEP
*STATIC
*BOUNDARY
HIGH, 3, 3, 0.02
*END STEP
"""


def deck(kind: str) -> str:
    """One element of each type, on a line; the results of two steps in text (FILE) or binary (OUTPUT)."""
    nodes, elements = [], []
    for index, (name, corners) in enumerate(ELEMENTS.items()):
        own = np.array(corners, float)
        middles = [own[list(edge)].mean(axis=0) for edge in EDGES.get(name, [])]
        own = np.concatenate([own, np.reshape(middles, (-1, 3))]) + np.array([3 * index, 0, 0])
        numbers = [str(len(nodes) + place + 1) for place in range(len(own))]
        nodes += own.tolist()
        elements += [f"*ELEMENT, TYPE={name}, ELSET=EALL", ", ".join([str(index + 1), *numbers[:14]]) + ",",
                     ", ".join(numbers[14:])]  # fmt: skip
    sets = [f"*NSET, NSET={name}\n" + ",\n".join(str(i + 1) for i, node in enumerate(nodes) if node[2] == height)
            for name, height in (("LOW", 0), ("HIGH", 1))]  # fmt: skip
    lines = [f"{i + 1}, {x}, {y}, {z}" for i, (x, y, z) in enumerate(nodes)]
    elements = [line for line in elements if line]
    return "\n".join(["*NODE", *lines, *elements, *sets]) + REST.format(kind, "EL" if kind == "FILE" else "ELEMENT")


@pytest.fixture(scope="module")
def solved(tmp_path_factory) -> Path:
    find_program("ccx", "calculix-ccx")
    folder = tmp_path_factory.mktemp("ccx")
    # ccx2paraview writes one step in a thread while it fills the grid with the next, and crashes at times: it gets one.
    last, _, _ = deck("FILE").replace("3, 3, 0.01", "3, 3, 0.02").partition("*END STEP")
    for kind, text in (("FILE", deck("FILE")), ("OUTPUT", deck("OUTPUT")), ("LAST", f"{last}*END STEP\n")):
        (folder / f"{kind}.inp").write_text(text)
        subprocess.run(["ccx", kind], cwd=folder, check=True, capture_output=True, timeout=60)
    return folder


@pytest.mark.parametrize("kind", ["FILE", "OUTPUT"])
def test_results_are_those_that_others_read(kind: str, solved: Path) -> None:
    converter = Path(sys.executable).with_name("ccxToVTU")  # of ccx2paraview
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
