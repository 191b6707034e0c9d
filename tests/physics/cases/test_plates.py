"""Plates really solved by CalculiX: drafted as a solid, and their tensors are those of the solver."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import pyvista
from conftest import REPOSITORY
from processes import find_program

from noether.physics.cases.case_map import parse_map
from noether.physics.cases.dataset import open_cases
from noether.physics.cases.draft import draft_map
from noether.physics.cases.prepare import prepare_cases
from noether.physics.cases.survey import survey_folder

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
    text = draft_map(survey_folder(solved))
    about = parse_map(text, "m")
    assert (about.axes, about.length, about.constants) == (None, "mm", {})
    assert set(about.outputs) == {"reaction_x", "reaction_y"}, "plates are pulled in their plane"
    assert set(about.parameters) == {"length", "width", "thickness", "hole_x", "hole_y", "hole_radius", "stretch",
                                     "shear"}  # fmt: skip
    fields = about.sets["volume"].fields
    assert (fields["displacement"].unit, fields["stress"].unit, fields["stress"].tensor) == ("mm", "MPa", "vtk")
    own = '      own_mises: {array: "S", tensor: vtk, take: von_mises}\n'
    done = prepare_cases(solved, tmp_path, text.replace("      displacement:", own + "      displacement:"), "m",
                         workers=1, skip_broken=False)  # fmt: skip
    assert done.made == 4
    sample = open_cases(tmp_path)[0][0]
    theirs = sample["volume_von_mises"]
    assert float((sample["volume_own_mises"] - theirs).abs().max() / theirs.max()) < 1e-3


@pytest.mark.slow
def test_cases_that_are_there_are_not_made_again(solved: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in solved.rglob("*.vtu")}
    done = subprocess.run([sys.executable, str(EXAMPLE), str(solved), "--cases", "4", "--size", "16"],
                          timeout=100, check=True, capture_output=True, text=True)  # fmt: skip
    assert "4 cases are there, 0 to make" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in solved.rglob("*.vtu")} == before


@pytest.mark.slow
def test_a_prediction_on_an_unseen_plate_overlays_the_solvers_result_node_by_node(
    solved: Path, noether, tmp_path: Path
) -> None:
    for words in (
        ("data", "inspect", solved, "--out", "cases.yaml"),
        ("data", "prepare", solved, "prepared", "--map", "cases.yaml"),
        ("train", "dataset=cases", "dataset_root=prepared", "output_path=runs", "run_id=plates", "accelerator=cpu",
         "trainer.max_updates=20", "tracker.tensorboard=false", "tracker.report=false"),
    ):  # fmt: skip
        done = noether(*map(str, words), cwd=tmp_path)
        assert done.code == 0, done.out + done.err
    about = json.loads((tmp_path / "prepared" / "dataset.json").read_text())
    (unseen,) = about["splits"]["test"]
    parameters = ",".join(f"{name}={value}" for name, value in about["cases"][unseen]["parameters"].items())
    own = solved / unseen / "result.vtu"
    done = noether("predict", "runs/plates", "--mesh", str(own), "--set", parameters, "--out", "p.vtu", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    solution, overlay = pyvista.read(own), pyvista.read(tmp_path / "p.vtu")
    assert np.array_equal(overlay.points, solution.points)  # in mm, in the solver's order
    assert np.array_equal(overlay.cells, solution.cells)
    assert all(np.array_equal(overlay[name], solution[name]) for name in ("U", "S", "S_Mises"))
    metrics = json.loads((tmp_path / "runs" / "plates" / "result.json").read_text())["metrics"]
    for field, array in (("displacement", "U"), ("stress", "S"), ("von_mises", "S_Mises")):
        error = np.linalg.norm(overlay[f"volume_{field}_prediction"] - solution[array]) / np.linalg.norm(
            solution[array]
        )
        # Of this one case, in the solver's units and components, it is the error that the run measured itself.
        assert error == pytest.approx(metrics[f"volume_{field}/relative_l2"], rel=1e-3)
