"""Plates really solved by CalculiX: drafted as a solid, and their tensors are those of the solver."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY
from processes import find_program
from simulated_cases import drafted, prepare

from noether.physics.cases.dataset import open_cases

EXAMPLE = REPOSITORY / "examples" / "plates" / "make_cases.py"


@pytest.fixture(scope="module")
def solved(tmp_path_factory) -> Path:
    find_program("gmsh", "gmsh")
    find_program("ccx", "calculix-ccx")
    pytest.importorskip("ccx2paraview")
    out = tmp_path_factory.mktemp("plates") / "cases"
    subprocess.run([sys.executable, str(EXAMPLE), str(out), "--cases", "4", "--size", "16"], timeout=300, check=True)
    return out


@pytest.mark.slow
def test_the_draft_of_solved_plates_is_prepared_as_it_is(solved: Path, tmp_path: Path) -> None:
    text, about = drafted(solved)
    assert (about.axes, about.length, about.constants) == (None, "mm", {})
    assert set(about.outputs) == {"reaction_x", "reaction_y"}, "plates are pulled in their plane"
    assert set(about.parameters) == {"length", "width", "thickness", "hole_x", "hole_y", "hole_radius", "stretch",
                                     "shear"}  # fmt: skip
    fields = about.sets["volume"].fields
    assert (fields["displacement"].unit, fields["stress"].unit, fields["stress"].tensor) == ("mm", "MPa", "vtk")
    own = '      own_mises: {array: "S", tensor: vtk, take: von_mises}\n'
    done = prepare(solved, tmp_path, text.replace("      displacement:", own + "      displacement:"))
    assert done.made == 4
    sample = open_cases(tmp_path)[0][0]
    theirs = sample["volume_von_mises"]
    assert float((sample["volume_own_mises"] - theirs).abs().max() / theirs.max()) < 1e-3


@pytest.mark.slow
def test_cases_that_are_there_are_not_made_again(solved: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in solved.rglob("*.vtu")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(solved), "--cases", "4", "--size", "16"],
        timeout=100,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "4 cases are there, 0 to make" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in solved.rglob("*.vtu")} == before
