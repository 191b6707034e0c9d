"""The files of a folder are grouped into cases by their names and listed; prepare accepts the drafted map unchanged."""

import re
from pathlib import Path

import numpy as np
import pytest
import pyvista
from simulated_cases import (
    LAYOUTS,
    body,
    drafted,
    prepare,
    torn,
    with_nan,
    with_two_components,
    without_array,
    write_cases,
)

from noether.physics.cases.case_map import parse_map
from noether.physics.cases.dataset import open_cases, read_metadata
from noether.physics.cases.draft import draft_map, is_bookkeeping
from noether.physics.cases.survey import group_files, in_another_unit, spans_decades, survey_folder
from noether.physics.cases.tables import read_numbers
from noether.physics.cases.vocabulary import number_name
from tests.refusal import refusal

GROUPS = {
    "a-folder-each": (
        [f"run_{i}/{name}" for i in range(12) for name in ("surface.vtp", "volume.vtu", "numbers.json")],
        {"{case}/surface.vtp": 12, "{case}/volume.vtu": 12},
    ),
    "a-file-each": ([f"car{i}.stl" for i in range(5)] + ["drag.csv"], {"{case}.stl": 5}),
    "folders-of-categories": (
        [f"PressureVTK/{kind}/{kind}_{i:03d}.vtk" for kind in ("E_S_WW", "F_D_WM", "N_S_WW") for i in range(3)],
        {"PressureVTK/**/{case}.vtk": 9},
    ),
    "openfoam": (
        [f"{case}/{name}" for case in ("base", "tall", "wide") for name in ("constant/polyMesh", "300/U", "x.foam")],
        {"{case}/constant/polyMesh": 3},
    ),
    "decks-are-no-results": (
        [f"run_{i}/{name}" for i in range(4) for name in ("result.pvd", "plate.inp", "flow.pvtu")],
        {"{case}/flow.pvtu": 4, "{case}/result.pvd": 4},
    ),
    "decks-alone": (["a/m.inp", "b/m.inp"], {"{case}/m.inp": 2}),
    "a-number-in-the-name": ([f"run_{i}/a_{step:04d}.vtu" for i in range(4) for step in range(6)],
                             {"{case}/a_{step}.vtu": 4}),
    "steps-that-differ": ([f"run_{i}/{i * step}/a.vtu" for i in range(1, 5) for step in range(6)],
                          {"{case}/{step}/a.vtu": 4}),
    "numbers-in-names-are-no-pieces": ([f"wing_{n}.vtp" for n in ("2", "11", "11_2", "11_5")], {"{case}.vtp": 4}),
    "regions": ([f"run_{i}/constant/{region}/polyMesh" for i in range(2) for region in ("fluid", "solid")],
                {f"{{case}}/constant/{region}/polyMesh": 2 for region in ("fluid", "solid")}),
    "what-few-cases-have": ([f"run_{i}/a.vtu" for i in range(5)] + ["run_3/old.vtu"], {"{case}/a.vtu": 5}),
    "shapes-are-no-steps": ([f"run_{i}/part_{n}.stl" for i in range(9) for n in range(5)],
                            {f"{{case}}/part_{n}.stl": 9 for n in range(5)}),
    "a-number-of-the-case": ([f"run_{i}/flow_{i}.vtu" for i in range(9)], {"run_{case}/flow_{case}.vtu": 9}),
}  # fmt: skip


@pytest.mark.parametrize(("files", "templates"), GROUPS.values(), ids=GROUPS.keys())
def test_files_are_grouped_into_cases_and_their_steps_by_their_names(files, templates) -> None:
    assert {template: len(cases) for template, cases in group_files(files).meshes.items()} == templates


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_draft_is_taken_as_it_is(layout: str, tmp_path: Path) -> None:
    root = write_cases(tmp_path / "source", 8, scale=1000.0, turn=LAYOUTS[layout])
    text, about = drafted(root)
    assert about.length == "mm"
    assert about.axes is not None
    assert about.axes.wind + about.axes.up == layout
    assert set(about.sets["surface"].fields) == {"pressure", "wall_shear"}
    assert set(about.sets["volume"].fields) == {"velocity", "temperature"}
    assert set(about.parameters) == {"length", "inlet_wind_speed"}
    assert set(about.outputs) == {"drag"}
    done = prepare(root, tmp_path / "out", text)
    assert done.made == 8
    train, _, validation = open_cases(tmp_path / "out")
    assert len(validation) == 1
    assert float(train[0]["volume_points"].abs().max()) < 5  # in metres


def test_forces_are_not_drafted_of_a_pressure_that_is_not_in_pascal(tmp_path: Path) -> None:
    for index in range(4):
        mesh = body(1.0, 3)
        mesh.cell_data["Pressure [kPa]"] = mesh.cell_data.pop("p")
        mesh.save(tmp_path / f"run_{index}.vtp")
    text, _ = drafted(tmp_path)
    assert "# forces:" in text
    assert "kPa, not in Pa" in text
    assert parse_map(text, "cases.yaml").forces is None


def test_what_is_at_points_alone_is_offered_beside_what_is_at_cells(tmp_path: Path) -> None:
    root = write_cases(tmp_path / "source", 3)
    for path in root.glob("*/volume.vtu"):
        mesh = pyvista.read(path)
        mesh.point_data["k"] = mesh.point_data["gmsh:dim_tags"] = np.arange(mesh.n_points, dtype=float)
        mesh.save(path)
    text, _ = drafted(root, workers=0)
    assert text.count("gmsh:dim_tags") == text.count("never fields: gmsh:dim_tags") == 1
    head, _, rest = text.partition("  # points_of_volume:")
    taken = "".join(f"{line}\n" for line in rest.splitlines())
    about = parse_map(f"{head}  points_of_volume:{re.sub(r'(?m)^  # ', '  ', taken)}", "m")
    assert (about.sets["volume"].at, set(about.sets["volume"].fields)) == ("cells", {"velocity", "temperature"})
    assert (about.sets["points_of_volume"].at, set(about.sets["points_of_volume"].fields)) == ("points", {"k"})


def test_a_name_may_hold_a_digit_that_is_no_decimal(tmp_path: Path) -> None:
    root = write_cases(tmp_path / "source", 5)
    (root / "run_0").rename(root / "case1²")
    survey = survey_folder(root)
    assert "case1²" in survey.grouping.cases
    text = draft_map(survey)
    prepared = prepare(root, tmp_path / "out", text)
    assert not prepared.broken


ODD = {
    "no-file": (lambda folder: (folder / "volume.vtu").unlink(), "case run_2 without {case}/volume.vtu"),
    "no-array": (without_array, "case run_2 without p at cells"),
    "components": (with_two_components, "an unusual number of components (not 1)"),
    "nan": (with_nan, "T has values that are not finite"),
    "torn": (torn, "volume.vtu cannot be read"),
}


@pytest.mark.parametrize(("breaks", "words"), ODD.values(), ids=ODD.keys())
def test_what_is_odd_is_said(breaks, words: str, tmp_path: Path) -> None:
    root = write_cases(tmp_path / "source", 4)
    breaks(root / "run_2")
    survey = survey_folder(root)
    assert any(words in odd and "run_2" in odd for odd in survey.odd), survey.odd
    assert words.split("{")[0].split(" than")[0] in draft_map(survey)


def test_a_table_of_all_cases_is_found_by_their_names(tmp_path: Path) -> None:
    for index in range(4):
        body(1.0, 2).save(tmp_path / f"car{index}.vtp")
    rows = [f"car{index}, {20 + index}, {0.3 + index / 100}" for index in range(4)]
    (tmp_path / "all.csv").write_text("\n".join(["Design, speed, Average Cd", *rows]))
    text, about = drafted(tmp_path)
    assert about.parameters["speed"].row == "Design"
    assert about.outputs["drag_coefficient"].column == "Average Cd"
    done = prepare(tmp_path, tmp_path / "out", text)
    assert done.made == 4
    train, _, _ = open_cases(tmp_path / "out")
    assert {round(float(train[i]["speed"]), 3) for i in range(len(train))} <= {20.0, 21.0, 22.0, 23.0}


@pytest.mark.parametrize(("column", "first", "known"), [("alpha", -2, True), ("angle_deg", 0, True), ("run", 0, False)])
def test_cases_named_by_a_number_have_it_as_a_parameter(column: str, first: int, known: bool, tmp_path: Path) -> None:
    for number in range(first, first + 5):
        body(1.0, 2).save(tmp_path / f"{number}.vtp")
    rows = [f"{number},{number * number}" for number in range(first, first + 5)]
    (tmp_path / "all.csv").write_text("\n".join([f"{column},speed", *rows]))
    text, about = drafted(tmp_path)
    assert (len(about.parameters) == 2) is known
    prepare(tmp_path, tmp_path / "out", text)
    for own in read_metadata(tmp_path / "out")["cases"].values() if known else ():
        number, speed = own["parameters"].values()
        assert number**2 == speed


@pytest.mark.parametrize("content", [{}, {"notes.txt": "nothing"}], ids=["empty", "no-mesh"])
def test_a_folder_without_cases_is_refused(content: dict[str, str], tmp_path: Path) -> None:
    (root := tmp_path / "two words").mkdir()
    for name, text in content.items():
        (root / name).write_text(text)
    with refusal("no-cases-found", fix=f"ls '{root}'/*"):
        survey_folder(root)


@pytest.mark.parametrize(
    ("column", "name"),
    [("Cd", "drag_coefficient"), ("average_cl", "lift_coefficient"), ("frontal_area", "reference_area"),
     ("Aref", "reference_area"), ("magUInf", "wind_speed"), ("wind speed", "wind_speed"),
     ("slant_angle", "slant_angle"), ("area_of_the_roof", "area_of_the_roof")],
)  # fmt: skip
def test_what_coefficients_are_made_with_has_its_name_in_a_draft(column: str, name: str) -> None:
    assert number_name(column) == name


def test_the_columns_of_openfoam_are_named_without_the_brackets_of_vectors(tmp_path: Path) -> None:
    table = tmp_path / "force.dat"
    table.write_text("# Force\n# Time  (total_x total_y total_z) Cd(f)\n1 (1 2 3) 0\n2 (4 5 6) 7\n")
    assert read_numbers(table) == {"Time": 2, "total_x": 4, "total_y": 5, "total_z": 6, "Cd(f)": 7}


OF_FORMATS = [
    "gmsh:dim_tags", "gmsh_dim_tags", "gmsh:physical", "rim-gmsh:bounding_entities", "medit:ref", "nastran_ref",
    "flac3d:group", "tetgen:attribute", "avsucd:material", "cell_sets:skin", "cell_tags", "point_tags",
    "su2:tag", "vtkOriginalCellIds", "vtkGhostType", "GlobalNodeId", "PedigreeElementId", "cellID", "PointIds",
    "MaterialIds", "matid", "RegionId", "facet_ids", "procID", "Rank", "node_number", "node_num", "cell_types",
    "STLSolidLabeling", "TCoords", "Normals", "ids",
]  # fmt: skip
OF_PHYSICS = [
    "T", "mach_number", "Wave_Number", "solids", "fluids", "node_temperature", "group_velocity",
    "element_stress", "material_density",
]  # fmt: skip


@pytest.mark.parametrize(("name", "is_book"), [*((n, True) for n in OF_FORMATS), *((n, False) for n in OF_PHYSICS)])
def test_arrays_in_which_formats_keep_books_are_told_from_fields(name: str, is_book: bool) -> None:
    assert is_bookkeeping(name) == is_book


def clouds(root: Path, count: int, change: dict[int, float]) -> Path:
    """Write a plane cloud in mm for each case. `change`: factors on the positions, by the index of the case."""
    rng = np.random.default_rng(0)
    for index in range(count):
        x, y, p = rng.uniform(0, 90, (3, 50))
        places = np.stack([x, y]) * change.get(index, 1.0)
        lines = [",".join(f"{value:.6g}" for value in row) for row in zip(*places, x, -y, p, strict=True)]
        folder = root / f"cas é {index}"
        folder.mkdir(parents=True)
        names = "x [mm],y [mm],velocity_x [m/s],velocity_y [m/s],p [Pa]"
        (folder / "champs.csv").write_text("\n".join([names, *lines]))
        (folder / "entrée.json").write_text(f'{{"U [m/s]": {index + 1}}}')
    return root


def test_a_plane_cloud_has_z_0_and_vectors_of_three(tmp_path: Path) -> None:
    root = clouds(tmp_path / "in", 6, {})
    text, about = drafted(root)
    assert about.length == "mm"
    assert about.axes is not None
    assert "z" not in about.axes.wind + about.axes.up, "a plane has no wind or up along z"
    assert "entrée.json" in text
    assert {name: own.components for name, own in about.sets["points"].fields.items()} == {"pressure": 1, "velocity": 3}
    assert prepare(root, tmp_path / "out", text).made == 6
    sample = open_cases(tmp_path / "out")[0][0]
    values = sample["points_points"].numpy() @ np.linalg.inv(np.diag([1e-3] * 3))
    assert sorted(np.abs(values).max(axis=0).round(6))[0] == 0
    assert sample["points_velocity"].shape == (50, 3)


LENGTHS = {"m-as-mm": 0.001, "mm-as-m": 1000.0, "mm-as-in": 25.4, "longer": 1.3, "twenty-times": 20.0}


@pytest.mark.parametrize("times", LENGTHS.values(), ids=LENGTHS.keys())
def test_a_case_is_in_another_unit_if_that_explains_its_size(times: float) -> None:
    lengths = {f"run_{index}": 1 + 0.02 * index for index in range(9)}
    found = in_another_unit(lengths | {"odd": 1.08 * times})
    assert found == ({} if times in (1.3, 20.0) else {"odd": pytest.approx(times)})


def test_a_case_in_another_unit_is_odd_broken_and_does_not_decide_the_unit_of_all(tmp_path: Path) -> None:
    root = clouds(tmp_path / "in", 9, {4: 1000.0})
    survey = survey_folder(root)
    assert [odd.split(":")[0] for odd in survey.odd] == ["case cas é 4"]
    assert "another unit" in survey.odd[0]
    text = draft_map(survey)
    done = prepare(root, tmp_path / "out", text)
    assert (done.made, len(done.cases)) == (9, 9)
    assert any("cas é 4" in words and "by 0.001\n" in words and "--skip-broken" in words for words in done.warnings)
    done = prepare(root, tmp_path / "out", text, skip_broken=True)
    assert (done.kept, list(done.broken), len(done.cases)) == (9, ["cas é 4"], 8)
    about = read_metadata(tmp_path / "out")
    assert (len(about["cases"]), list(about["broken"])) == (8, ["cas é 4"])
    assert max(about["sets"]["points"]["high"]) < 0.1


def test_what_a_list_of_steps_names_is_read_through_the_list_alone(tmp_path: Path) -> None:
    for index in range(3):
        folder = tmp_path / f"run_{index}"
        folder.mkdir()
        entries = []
        for step in range(4):
            body(1.0, 2).save(folder / f"out_{step:03d}.vtp")
            entries.append(f'<DataSet timestep="{step / 10}" file="out_{step:03d}.vtp"/>')
        listed = f"<Collection>{''.join(entries)}</Collection>"
        (folder / "all.pvd").write_text(f'<VTKFile type="Collection" version="0.1">{listed}</VTKFile>')
    survey = survey_folder(tmp_path)
    assert [template for template, _ in survey.blocks] == ["{case}/all.pvd"]
    assert survey.steps["{case}/all.pvd"]["run_0"] == pytest.approx([0, 0.1, 0.2, 0.3])


def around_a_source(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random positions, and their distances (plus 0.02) from a point source in the middle."""
    places = np.random.default_rng(0).uniform(-1, 1, (count, 3))
    return places, np.linalg.norm(places, axis=1, keepdims=True) + 0.02


def decades(count: int) -> dict[str, tuple[np.ndarray, bool]]:
    places, away = around_a_source(count)
    hot = (away < 0.2).astype(float)
    return {
        "flux-around-a-source": (places / away**3, True),
        "density-of-absorbed-power": (1 / away**6, True),
        "pressure-that-crosses-0": (places[:, :1] / away, False),
        "noise": (np.random.default_rng(1).normal(size=(count, 6)), False),
        "nothing-but-in-one-place": (hot, False),
        "too-few-points": ((places / away**3)[:100], False),
    }


@pytest.mark.parametrize("name", decades(1))
def test_fields_that_span_decades_are_told_from_others(name: str) -> None:
    values, expected = decades(20_000)[name]
    assert spans_decades(values) is expected
    assert spans_decades(1e-9 * values) is expected


def test_the_draft_says_which_fields_span_decades(tmp_path: Path) -> None:
    places, away = around_a_source(3000)
    for number in range(5):
        cloud = pyvista.PointSet(places)
        cloud["heat_flux"], cloud["T"] = (number + 1) * places / away**3, 293 + away[:, 0]
        cloud.cast_to_unstructured_grid().save(tmp_path / f"case_{number}.vtu")
    text, _ = drafted(tmp_path)
    fields = parse_map(text, "m").sets["points"].fields
    assert {name: own.scaling for name, own in fields.items()} == {"heat_flux": "symmetric_log", "temperature": None}
    assert "spans decades in 5 of 5 cases" in text
