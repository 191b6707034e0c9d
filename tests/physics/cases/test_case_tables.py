"""Tables written by spreadsheets and scripts: numbers of each case, and values at a mesh's points."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openpyxl
import pytest
import pyvista
from simulated_cases import body, drafted, prepare

from noether.physics.cases.case_map import NumberMap, parse_map
from noether.physics.cases.dataset import open_cases
from noether.physics.cases.draft import draft_map
from noether.physics.cases.prepare import plan_cases
from noether.physics.cases.survey import Survey, survey_folder
from noether.physics.cases.tables import case_key, case_number, read_table, read_values
from tests.refusal import refusal

ROWS = [{"id": "1", "speed [m/s]": "20.5", "Cd": "3.1e-1"}, {"id": "2", "speed [m/s]": "-21", "Cd": ""}]
TEXTS = {
    "commas": b"id,speed [m/s],Cd\n1, 20.5 ,3.1e-1\n2,-21,\n",
    "spaces and an empty line": b"id , speed [m/s] , Cd\n\n1 , 20.5 , 3.1e-1\n2 , -21 ,\n",
    "semicolons and decimal commas": b"id;speed [m/s];Cd\n1;20,5;3,1e-1\n2;-21;\n",
    "tabs and decimal commas": b"id\tspeed [m/s]\tCd\n1\t20,5\t3,1e-1\n2\t-21\t\n",
    "semicolons and decimal points": b"id;speed [m/s];Cd\r\n1;20.5;3.1e-1\r\n2;-21;\r\n",
    "Excel's first line": b"sep=;\nid;speed [m/s];Cd\n1;20,5;3,1e-1\n2;-21;\n",
    "a mark of UTF-8": b"\xef\xbb\xbfid;speed [m/s];Cd\n1;20,5;3,1e-1\n2;-21;\n",
    "UTF-16": "id\tspeed [m/s]\tCd\n1\t20,5\t3,1e-1\n2\t-21\t\n".encode("utf-16"),
    "a comment's mark": b"# id, speed [m/s], Cd\n1, 20.5, 3.1e-1\n2, -21\n",
    "a block of comments": b"# Solver 26.1; 3;4,5\n# x\n\nid;speed [m/s];Cd\n1;20,5;3,1e-1\n2;-21;\n",
    "a block that ends in the names": b"% Model: a.mph\n% Nodes: 2\n% id,speed [m/s],Cd\n1, 20.5, 3.1e-1\n2, -21\n",
    "quotes": b'"id","speed [m/s]","Cd"\n"1","20.5","3.1e-1"\n"2","-21",""\n',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_table_is_read_whatever_separates_it(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(text)
    rows = [{**ROWS[1], **row} if len(row) < 3 else row for row in read_table(tmp_path / "t.csv")]
    assert rows == ROWS


def test_a_separator_within_a_name_is_none(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,speed (mean; m/s)\n1,20\n2,21\n")
    assert read_table(tmp_path / "t.csv")[1] == {"id": "2", "speed (mean; m/s)": "21"}


def test_a_table_of_a_code_page_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("Fall;T [°C]\n1;20,5\n".encode("cp1252"))
    assert read_table(tmp_path / "t.csv") == [{"Fall": "1", "T [°C]": "20.5"}]


def write_book(path: Path, *rows: list[object]) -> None:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.create_sheet("notes").append(["not read"])
    book.save(path)


def test_a_workbook_is_read(tmp_path: Path) -> None:
    write_book(tmp_path / "t.xlsx", [], ["id", "speed [m/s]", "Cd", None], [1.0, 20.5, 0.31], [2, -21, None])
    read = [{name: row[name] for name in ROWS[0]} for row in read_table(tmp_path / "t.xlsx")]
    assert read == [{**ROWS[0], "Cd": "0.31"}, ROWS[1]]


UNREADABLE = {
    "decimal commas between commas": ("t.csv", b"id,Cd\n1,0,31\n", "row-longer-than-names"),
    "two columns of one name": ("t.csv", b"id,Cd,Cd\n1,0.3,0.4\n", "columns-of-one-name"),
    "no workbook": ("t.xlsx", b"id,Cd\n1,0.3\n", "table-unreadable"),
    "half a workbook": ("t.xlsx", b"PK\x03\x04 and no more", "table-unreadable"),
}


@pytest.mark.parametrize(("name", "content", "code"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_table_that_could_be_read_wrongly_is_refused(name: str, content: bytes, code: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with refusal(code):
        read_table(tmp_path / name)


def test_a_changed_table_is_read_again(tmp_path: Path) -> None:
    for speed in ("20", "21"):
        (tmp_path / "t.csv").write_text(f"id,speed\n1,{speed}\n")
        (tmp_path / "t.csv").touch()
        about = NumberMap(file="t.csv", row="id", unit="m/s")
        assert case_number(about, "speed", "1", tmp_path) == float(speed)


@pytest.mark.parametrize(
    ("text", "case", "same"),
    [("7", "007", True), ("7", "_7", True), ("run_7", "run_7", True), ("7", "run_7", False), ("17", "7", False),
     ("", "7", False), ("-7", "7", False), ("-7", "-7", True)],
)  # fmt: skip
def test_a_case_is_known_by_its_name_or_number(text: str, case: str, same: bool) -> None:
    assert (case_key(text) == case_key(case)) is same


def survey_with(tmp_path: Path, write: Callable[[Path], None]) -> Survey:
    for index in range(4):
        body(1.0, 2).save(tmp_path / f"car{index}.vtp")
    write(tmp_path)
    return survey_folder(tmp_path)


def csv(text: str) -> Callable[[Path], None]:
    return lambda root: (root / "all.csv").write_text(text) and None


def with_car2(*rows: str) -> Callable[[Path], None]:
    return csv("\n".join(["name;Cd", "car0;0,3", "car1;0,31", *rows, "car3;0,33", ""]))


def one_unreadable(root: Path) -> None:
    for index in range(4):
        (root / f"car{index}.json").write_text('{"v": 1}' if index else "{")


ODD = {
    "no row": (with_car2(), "case car2 without a row in all.csv (column name)"),
    "two rows": (with_car2("car2;0,3", "car2;0,4"), "case car2 with several rows in all.csv (column name)"),
    "no number": (with_car2("car2;failed"), "case car2 without a number for Cd in all.csv"),
    "not a number": (with_car2("car2;nan"), "case car2 without a number for Cd in all.csv"),
    "no names": (csv("key;Cd\na;0,3\nb;0,31\n"), "all.csv is not used: no column has the names of the cases"),
    "unreadable": (one_unreadable, "case car0: no {case}.json"),
    "another sheet": (
        lambda root: write_book(root / "all.xlsx", ["n", "v"], *([f"car{i}", i] for i in range(4))),
        "all.xlsx: only the first sheet is read, not notes",
    ),
    "no table": (csv("name,Cd\ncar0,0,3\ncar1,0,31\n"), "all.csv has a row with more values than columns"),
}


@pytest.mark.parametrize(("write", "words"), ODD.values(), ids=ODD)
def test_what_is_odd_about_a_table_is_said(write: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    survey = survey_with(tmp_path, write)
    assert any(words in odd for odd in survey.odd), survey.odd
    assert words in draft_map(survey)


def test_an_empty_cell_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("case;v\na;1\nb;\n")
    with refusal("not-a-number", seen="an empty cell"):
        case_number(NumberMap(file="t.csv", row="case"), "v", "b", tmp_path)


HEAD = "Knoten;u_x [mm];u_y [mm];u_z [mm];Vergleichsspannung [MPa]\n"


def write_shells(root: Path, suffix: str, at: str) -> Path:
    """Write cases whose tables give positions in mm as displacements, in shuffled rows and with decimal commas."""
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
    assert prepare(root, tmp_path / "out", text).made == 6
    sample = open_cases(tmp_path / "out")[0][0]
    np.testing.assert_allclose(sample["surface_displacement"], 1000 * sample["surface_points"], atol=1e-5)  # mm from m
    table = root / "Dach 2" / "Werte.csv"
    table.write_text(table.read_text() + "\n")
    assert [job.case for job in plan_cases(root, tmp_path / "out", parse_map(text, "m"))[0]] == ["Dach 2"]


def test_points_of_an_stl_have_no_order_and_it_says_so(tmp_path: Path) -> None:
    survey = survey_folder(write_shells(tmp_path, ".stl", "points"))
    assert not survey.values
    assert ["STL keeps no order of points" in words for words in survey.odd] == [True]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    root = write_shells(tmp_path / "in", ".ply", "points")
    text, _ = drafted(root)
    table = root / "Dach 3" / "Werte.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    with refusal("values-do-not-fit"):
        prepare(root, tmp_path / "out", text)
    table.unlink()
    with refusal("values-missing"):
        prepare(root, tmp_path / "out", text)


def test_a_table_without_numbers_of_its_rows_is_taken_in_its_own_order(tmp_path: Path) -> None:
    table = tmp_path / "values.csv"
    table.write_text("T,q:0,q:1,q:2\n3,1,2,3\n1,4,5,6\n1,7,8,9\n")
    found = {name: own.tolist() for name, own in read_values(table).items()}
    assert found == {"T": [3, 1, 1], "q": [[1, 2, 3], [4, 5, 6], [7, 8, 9]]}


def test_rows_that_are_numbered_from_any_number_on_are_put_in_order(tmp_path: Path) -> None:
    table = tmp_path / "values.csv"
    table.write_text("node,T\n1003,3.5\n1001,1.5\n1002,2.5\n")
    assert {name: own.tolist() for name, own in read_values(table).items()} == {"T": [1.5, 2.5, 3.5]}
