"""CalculiX' results, as ccx writes them in text and in binary, against what ccx2paraview makes of them."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import pyvista
from processes import find_program
from simulated_cases import drafted

from noether.physics.cases.case_map import AtTime
from noether.physics.cases.mesh_blocks import read_blocks, read_times
from tests.refusal import refusal

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
