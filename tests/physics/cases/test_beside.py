"""A table without coordinates beside a mesh, with a row for each of its points or cells, holds its fields."""

import json
from pathlib import Path

import numpy as np
import pytest
import pyvista

from noether.physics.cases.beside import read_values
from noether.physics.cases.case_map import parse_map
from noether.physics.cases.dataset import open_cases
from noether.physics.cases.draft import draft_map
from noether.physics.cases.prepare import plan_cases, prepare_cases
from noether.physics.cases.survey import survey_folder
from tests.refusal import refusal

HEAD = "Knoten;u_x [mm];u_y [mm];u_z [mm];Vergleichsspannung [MPa]\n"


def write_shells(root: Path, suffix: str, at: str) -> Path:
    """Cases whose displacement is their place in mm; rows are in random order, and numbered, with decimal commas."""
    rng = np.random.default_rng(0)
    for number in range(6):
        folder = root / f"Dach {number}"
        folder.mkdir(parents=True)
        mesh = pyvista.Plane(i_resolution=4 + number, j_resolution=5).triangulate()
        mesh.clear_data()
        mesh = mesh.cast_to_unstructured_grid() if suffix == ".vtu" else mesh
        mesh.save(folder / f"shape{suffix}")
        places = np.asarray(mesh.points if at == "points" else mesh.cell_centers().points)
        rows = [";".join([str(k + 1), *(f"{value:.6f}".replace(".", ",") for value in (*places[k], 2 * k))])
                for k in rng.permutation(len(places))]  # fmt: skip
        (folder / "Werte.csv").write_text(HEAD + "\n".join(rows) + "\n")
        (folder / "input.json").write_text(json.dumps({"load_kPa": number + 1.0}))
    return root


@pytest.mark.parametrize(
    ("suffix", "at"), [(".ply", "points"), (".vtu", "points"), (".vtp", "cells"), (".stl", "cells")]
)
def test_they_are_drafted_and_prepared_in_the_order_of_the_mesh(suffix: str, at: str, tmp_path: Path) -> None:
    root = write_shells(tmp_path / "in", suffix, at)
    survey = survey_folder(root)
    assert not survey.odd
    text = draft_map(survey)
    own = parse_map(text, "m").sets["surface"]
    assert (own.values, own.at, set(own.fields)) == ("{case}/Werte.csv", at, {"displacement", "vergleichsspannung"})
    assert prepare_cases(root, tmp_path / "out", text, "m", workers=1, skip_broken=False).made == 6
    sample = open_cases(tmp_path / "out")[0][0]
    np.testing.assert_allclose(sample["surface_displacement"], 1000 * sample["surface_points"], atol=1e-5)  # mm, m
    table = root / "Dach 2" / "Werte.csv"
    table.write_text(table.read_text() + "\n")
    assert [job.case for job in plan_cases(root, tmp_path / "out", parse_map(text, "m"))[0]] == ["Dach 2"]


def test_points_of_an_stl_have_no_order_and_it_says_so(tmp_path: Path) -> None:
    survey = survey_folder(write_shells(tmp_path, ".stl", "points"))
    assert not survey.values
    assert ["STL keeps no order of points" in words for words in survey.odd] == [True]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    root = write_shells(tmp_path / "in", ".ply", "points")
    text = draft_map(survey_folder(root))
    table = root / "Dach 3" / "Werte.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    with refusal("values-do-not-fit"):
        prepare_cases(root, tmp_path / "out", text, "m", workers=1, skip_broken=False)
    table.unlink()
    with refusal("values-missing"):
        prepare_cases(root, tmp_path / "out", text, "m", workers=1, skip_broken=False)


def test_a_table_without_numbers_of_its_rows_is_taken_in_its_own_order(tmp_path: Path) -> None:
    table = tmp_path / "values.csv"
    table.write_text("T,q:0,q:1,q:2\n3,1,2,3\n1,4,5,6\n1,7,8,9\n")
    found = read_values(table)
    assert {name: own.tolist() for name, own in found.items()} == {
        "T": [3, 1, 1], "q": [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
    }  # fmt: skip


def test_rows_that_are_numbered_from_any_number_on_are_put_in_order(tmp_path: Path) -> None:
    table = tmp_path / "values.csv"
    table.write_text("node,T\n1003,3.5\n1001,1.5\n1002,2.5\n")
    assert {name: own.tolist() for name, own in read_values(table).items()} == {"T": [1.5, 2.5, 3.5]}
