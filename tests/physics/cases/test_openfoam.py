"""In cases that OpenFOAM or CalculiX has solved, the prepared forces and tensors match those of the solver."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY
from processes import find_program
from simulated_cases import drafted, prepare

from noether.physics.cases.case_map import map_text
from noether.physics.cases.dataset import open_cases
from noether.physics.cases.mesh_blocks import read_blocks, read_times
from noether.physics.cases.prepare import prepare_cases
from noether.physics.cases.tables import read_numbers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]
CASES, ITERATIONS = 4, 150
EXAMPLE = REPOSITORY / "examples" / "openfoam" / "make_cases.py"
WORDS = ["--cases", str(CASES), "--mesh", "tiny", "--iterations", str(ITERATIONS), "--spread", "1"]


@pytest.fixture(scope="module")
def solved(tmp_path_factory) -> Path:
    find_program("simpleFoam", "openfoam")
    out = tmp_path_factory.mktemp("openfoam") / "cases"
    subprocess.run([sys.executable, str(EXAMPLE), str(out), "--jobs", "2", *WORDS], timeout=900)
    assert len(list(out.glob("case_*"))) == CASES
    return out


@pytest.fixture(scope="module")
def prepared(solved: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("prepared")
    text = map_text("openfoam").replace("split: {test: 0.15", "split: {test: 0.25")
    prepare_cases(solved, out, text, "openfoam", workers=1, skip_broken=False)
    return out


def test_the_map_of_the_page_prepares_them(solved: Path, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "own-data.md").read_text()
    shown = next(text for text in re.findall(r"(?ms)^```yaml\n(.*?)^```$", page) if "sets:" in text)
    text = shown.replace("split: {test: 0.15", "split: {test: 0.25")
    assert prepare_cases(solved, tmp_path, text, "docs/own-data.md", workers=1, skip_broken=False).made == CASES
    assert {"surface_wall_shear", "wind_speed", "drag_coefficient", "friction_force"} <= set(open_cases(tmp_path)[0][0])


def force_of(path: Path) -> np.ndarray:
    """Return the last total, pressure and friction forces (3, 3) in a force.dat (N, wind along x, up along z)."""
    row = path.read_text().splitlines()[-1].replace("(", " ").replace(")", " ").split()
    return np.array(row[1:], float).reshape(3, 3)


def test_integrated_forces_agree_with_the_solver(solved: Path, prepared: Path) -> None:
    """Pressure forces, friction forces and the drag coefficient each agree to 0.5 %."""
    train, test, _ = open_cases(prepared)
    for data, index in [(train, i) for i in range(len(train))] + [(test, i) for i in range(len(test))]:
        sample = {key: value.numpy().astype(float) for key, value in data[index].items()}
        folder = solved / data.cases[index]
        _, pressure, friction = force_of(folder / "postProcessing/forces/0/force.dat")
        for own, theirs in ((sample["pressure_force"], pressure), (sample["friction_force"], friction)):
            in_house = np.array([theirs[1], theirs[2], theirs[0]])
            assert own == pytest.approx(in_house, abs=0.005 * np.linalg.norm(in_house))
        solver = read_numbers(folder / "postProcessing/forceCoeffs/0/coefficient.dat")
        dynamic = 0.5 * 1.225 * sample["wind_speed"][0] ** 2 * sample["reference_area"][0]
        drag = (sample["pressure_force"] + sample["friction_force"])[2] / dynamic
        assert drag == pytest.approx(solver["Cd"], rel=0.005)
        assert sample["drag_coefficient"][0] == pytest.approx(solver["Cd"], rel=1e-6)
        # The sums over the points of a sample, which tasks use, agree, too.
        summed = -(sample["surface_pressure"] * sample["surface_area"]) @ sample["surface_normals"]
        assert summed == pytest.approx(sample["pressure_force"], rel=1e-3, abs=1e-3 * np.linalg.norm(summed))
        shear = sample["surface_area"] @ sample["surface_wall_shear"]
        assert shear == pytest.approx(sample["friction_force"], rel=1e-3, abs=1e-3 * np.linalg.norm(shear))


def test_the_air_around_the_body_is_all_there(prepared: Path) -> None:
    sample = open_cases(prepared)[0][0]
    # The air fills half of a tunnel of 6 × 2 × 1.2 m, without half of the body.
    assert float(sample["volume_cell_volume"].sum()) == pytest.approx(7.2 - 0.07, rel=0.01)
    assert float(sample["volume_points"][:, 0].min()) > 0
    assert float(sample["volume_velocity"][:, 2].mean()) > 0.7 * float(sample["wind_speed"])


def test_the_draft_of_openfoam_cases_finds_the_body(solved: Path) -> None:
    _, about = drafted(solved)
    assert about.sets["surface"].patches == ["body"]
    assert about.sets["surface"].fields["wall_shear"].scale == -1
    assert about.sets["volume"].patches == ["internalMesh"]
    assert {"drag_coefficient", "lift_coefficient"} <= set(about.outputs)
    assert {"slant_angle", "wind_speed", "reference_area"} <= set(about.parameters)
    assert about.forces is not None


@pytest.mark.nightly
def test_the_steps_of_openfoam_and_of_what_it_writes_for_others_are_read(solved: Path, tmp_path: Path) -> None:
    case = Path(shutil.copytree(solved / "case_0000", tmp_path / "case"))
    half = shutil.copytree(case / str(ITERATIONS), case / str(ITERATIONS // 2))
    whole = (half / "p").read_bytes()
    at_cells, boundary = whole.index(b"internalField"), whole.rindex(b"boundaryField")
    (half / "p").write_bytes(whole[:at_cells] + b"internalField uniform 7;\n" + whole[boundary:])
    for converter in ("foamToVTK", "foamToEnsight"):
        subprocess.run([converter, "-time", f"{ITERATIONS // 2},{ITERATIONS}"], cwd=case, check=True, timeout=100,
                       capture_output=True, env={"WM_PROJECT_DIR": "/usr/share/openfoam", **os.environ})  # fmt: skip
    for name in ("constant/polyMesh", "VTK/case.vtm.series", "EnSight/case.case"):
        assert read_times(case / name)[-2:] == [ITERATIONS // 2, ITERATIONS], name
        first, last = (read_blocks(case / name, None, step)[0].mesh.cell_data["p"] for step in (-2, "last"))
        assert (set(first), len(set(last)) > 100) == ({7}, True), name


def test_made_cases_are_kept_and_a_torn_one_is_made_again(solved: Path) -> None:
    words = [sys.executable, str(EXAMPLE), str(solved), *WORDS]
    again = subprocess.run(words, timeout=900, capture_output=True, text=True)
    assert ", 0 to make" in again.stdout


@pytest.mark.nightly
def test_the_study_trains_on_them_and_goes_on_where_it_stopped(solved: Path, tmp_path: Path) -> None:
    """The study makes metrics, a table and pictures after one update of one model; a second start repeats nothing."""
    words = [sys.executable, str(EXAMPLE.with_name("study.py")), str(solved), str(tmp_path), "--models", "upt",
             "--seeds", "1", "--few", "0", "--length", "0.0005", "trainer.effective_batch_size=2",
             "dataset.geometry_points=128",
             "dataset.points_per_update={surface: 64, volume: 64}"]  # fmt: skip
    first = subprocess.run(words, timeout=900, capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "1 of 1  upt-0: surface pressure" in first.stdout
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["cases"] == {"train": 2, "validation": 1, "test": 1}
    run = figures["runs"]["upt-0"]
    assert set(run["fields"]) == {"surface_pressure", "surface_wall_shear", "volume_velocity", "volume_pressure"}
    assert set(run["baselines"]) == {"mean_field", "nearest_shape", "nearest_case", "plain_network"}
    assert run["cpu_minutes"] > 0
    table = (tmp_path / "table.md").read_text()
    assert "| UPT |" in table
    assert "| nearest shape |" in table
    pictures = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert pictures == {"study-coefficients.webp", "study-surface.webp", "study-wake.webp"}
    again = subprocess.run(words, timeout=900, capture_output=True, text=True)
    assert (again.returncode, "1 of 1 runs are finished" in again.stdout) == (0, True)
    assert json.loads((tmp_path / "figures.json").read_text())["runs"] == figures["runs"]


PLATES = REPOSITORY / "examples" / "plates" / "make_cases.py"


@pytest.fixture(scope="module")
def plates(tmp_path_factory) -> Path:
    find_program("gmsh", "gmsh")
    find_program("ccx", "calculix-ccx")
    pytest.importorskip("ccx2paraview")
    out = tmp_path_factory.mktemp("plates") / "cases"
    make_plates(out)
    return out


def make_plates(out: Path) -> str:
    words = [sys.executable, str(PLATES), str(out), "--cases", "4", "--size", "16"]
    return subprocess.run(words, timeout=300, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_the_draft_of_solved_plates_is_prepared_as_it_is(plates: Path, tmp_path: Path) -> None:
    text, about = drafted(plates)
    assert (about.axes, about.length, about.constants) == (None, "mm", {})
    assert set(about.outputs) == {"reaction_x", "reaction_y"}, "plates have no reaction out of their plane"
    assert set(about.parameters) == {"length", "width", "thickness", "hole_x", "hole_y", "hole_radius", "stretch",
                                     "shear"}  # fmt: skip
    fields = about.sets["volume"].fields
    assert (fields["displacement"].unit, fields["stress"].unit, fields["stress"].tensor) == ("mm", "MPa", "vtk")
    own = '      own_mises: {array: "S", tensor: vtk, take: von_mises}\n'
    done = prepare(plates, tmp_path, text.replace("      displacement:", own + "      displacement:"))
    assert done.made == 4
    sample = open_cases(tmp_path)[0][0]
    theirs = sample["volume_von_mises"]
    assert float((sample["volume_own_mises"] - theirs).abs().max() / theirs.max()) < 1e-3


def test_cases_that_are_there_are_not_made_again(plates: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in plates.rglob("*.vtu")}
    assert "4 cases exist, 0 to make" in make_plates(plates)
    assert {path: path.stat().st_mtime_ns for path in plates.rglob("*.vtu")} == before
