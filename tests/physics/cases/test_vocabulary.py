"""Names of arrays and numbers reveal units, quantities and results; the components of a tensor may have any order."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import pyvista
from conftest import REPOSITORY
from simulated_cases import drafted, prepare

from noether.common.numbers import LENGTHS
from noether.physics.cases.case_map import (
    COMPONENTS,
    DIRECTIONS,
    ORDERS,
    SetMap,
    as_components,
    as_matrices,
    invariant,
    parse_map,
    turned,
)
from noether.physics.cases.dataset import open_cases
from noether.physics.cases.draft import draft_map
from noether.physics.cases.survey import survey_folder
from noether.physics.cases.units import factor, of_one_quantity
from noether.physics.cases.vocabulary import is_result, name_and_unit, physics_of, plain_name

WITHOUT = (
    "plain",
    "T_min",
    "q_s",
    "speed (inlet)",
    "stress (S11)",
    "open (W/(m",
    "Cd(f)",
    "Temperatura (T)",
    "drag (Re)",
)
"""Names without a unit. The last three: OpenFOAM's part of a coefficient, a symbol, pint's ronnaelementary_charge."""
UNITS = {
    **{name: (name, "") for name in WITHOUT},
    "hole radius [mm]": ("hole radius", "mm"),
    "T (°C)": ("T", "°C"),
    "S_Mises[MPa]": ("S_Mises", "MPa"),
    "flux_[W/m²]": ("flux", "W/m²"),
    "film [W/(m²·K)]": ("film", "W/(m²·K)"),
    "conductivity (W/(m K))": ("conductivity", "W/(m K)"),
    "rate (s^-1)": ("rate", "s^-1"),
    "length_mm": ("length", "mm"),
    "S11_dB": ("S11", "dB"),
    "Campo magnético B [mT]": ("Campo magnético B", "mT"),
    "Inductancia [mH]": ("Inductancia", "mH"),
    "B (T)": ("B", "T"),
    "C' [pF/m]": ("C'", "pF/m"),
    "line_pF": ("line", "pF"),
    "area [m2]": ("area", "m2"),
    "torque [Nm]": ("torque", "Nm"),  # pint reads "Nm" as number_meter
    "loss [dB/m]": ("loss", "dB/m"),
}


def test_a_unit_in_a_name_is_read() -> None:
    assert {name: name_and_unit(name) for name in UNITS} == UNITS


def test_units_are_converted_to_the_last_bit_and_only_within_a_quantity() -> None:
    assert {unit: factor(unit, "m") for unit in LENGTHS} == LENGTHS
    assert (factor("N/m^2", "Pa"), factor("kPa", "Pa"), factor("Nm", "J"), factor("µm", "m")) == (1, 1000, 1, 1e-6)
    assert (factor("Pa", "m"), factor("inlet", "m"), factor("dB/m", "m")) == (None, None, None)
    assert of_one_quantity("°F", "K")
    assert of_one_quantity("C", "K")
    assert not of_one_quantity("W", "W/m²")


@pytest.mark.parametrize(
    ("column", "result"),
    [("reaction_x [N]", True), ("pressure drop", True), ("maxTemperature", True), ("efficiency", True), ("Cd", True),
     ("hole_radius", False), ("applied force", False), ("thickness", False), ("inlet_mean_velocity", False),
     ("film coefficient [W/(m²·K)]", False),
     ("maximal_load", False), ("Eigenfrequency 1 [Hz]", True), ("frequency (Hz)", False), ("resonance", True),
     ("Inductance [mH]", True), ("radiated power [W]", True), ("electric power", False),
     ("S11_re", True), ("s1_gap", False), ("gain_dBi", True), ("again", False)],
)  # fmt: skip
def test_results_are_told_from_what_was_given(column: str, result: bool) -> None:
    assert is_result(column) is result


@pytest.mark.parametrize(
    ("arrays", "numbers", "physics"),
    [
        pytest.param([("S", 6), ("U", 3), ("E", 6)], [], "solid", id="calculix"),
        pytest.param([("U", 3), ("p", 1)], [], "flow", id="flow"),
        pytest.param([("U", 3)], [], "unknown", id="u-alone-is-velocity-or-displacement"),
        pytest.param([("U [mm]", 3)], [], "solid", id="u-in-mm"),
        pytest.param([("T (°C)", 1), ("HFL", 3)], [], "heat", id="heat"),
        pytest.param([("U", 3), ("p", 1), ("T", 1)], [], "flow", id="a-warm-flow"),
        pytest.param([("flux (mol/m2/s)", 3), ("c", 1)], [], "unknown", id="a-flux-of-matter-is-not-of-heat"),
        pytest.param([("U [knot]", 3), ("p [psi]", 1)], [], "flow", id="units-of-any-system"),
        pytest.param([("p [m²/s²]", 1), ("velocity [mol]", 3)], [], "unknown", id="units-of-something-else"),
        pytest.param([("Re(p) (Pa)", 1), ("|p| (Pa)", 1)], [], "unknown", id="a-field-of-sound-is-no-flow"),
        pytest.param([("p_re", 1), ("p", 1), ("velocity", 3)], [], "flow", id="unsteady-flow"),
        pytest.param([("s", 1)], [], "unknown", id="s-of-one-component-is-no-stress"),
        pytest.param([], ["Average Cd"], "flow", id="shapes-with-drag"),
    ],
)
def test_names_show_the_physics(arrays, numbers, physics) -> None:
    assert physics_of(arrays, numbers, is_openfoam=False) == physics


def test_names_are_written_in_ascii() -> None:
    written = {"Länge": "laenge", "débit": "debit", "σ_max": "sigma_max", "maxT": "max_t", "長": ""}
    assert {name: plain_name(name) for name in written} == written


@pytest.mark.parametrize("order", ORDERS)
def test_a_tensor_of_any_order_is_turned_as_a_matrix_is(order) -> None:
    matrices = np.random.default_rng(0).normal(size=(5, 3, 3))
    matrices = matrices + matrices.transpose(0, 2, 1)
    written = np.stack([matrices[:, "xyz".index(a), "xyz".index(b)] for a, b in ORDERS[order]], axis=1)
    wind, up = DIRECTIONS["-y"], DIRECTIONS["+z"]
    rotation = np.stack([np.cross(up, wind), up, wind])
    made = turned(rotation, 2.0, order)(written)
    assert as_matrices(made) == pytest.approx(2 * rotation @ matrices @ rotation.T)
    assert made[:, COMPONENTS.index("xy")] == pytest.approx(2 * (rotation @ matrices @ rotation.T)[:, 0, 1])
    for kind in ("von_mises", "principal"):
        assert invariant(made, "vtk", kind) == pytest.approx(2 * invariant(written, order, kind))


def test_von_mises_of_pure_shear_and_of_pressure_are_those_of_the_textbook() -> None:
    shear, pressure = np.zeros((3, 3)), -5.0 * np.eye(3)
    shear[0, 1] = shear[1, 0] = 10.0
    tensors = as_components(np.stack([shear, pressure]))
    assert invariant(tensors, "vtk", "von_mises")[:, 0] == pytest.approx([10 * np.sqrt(3), 0], abs=1e-9)
    assert invariant(tensors, "vtk", "principal")[0] == pytest.approx([10, 0, -10])


def units(own: SetMap) -> dict[str, str]:
    return {name: field.unit for name, field in own.fields.items()}


def write_solids(root: Path, count: int, arrays: dict[str, int], numbers: list[str]) -> Path:
    rng = np.random.default_rng(0)
    for index in range(count):
        folder = root / f"part_{index}"
        folder.mkdir(parents=True)
        mesh = pyvista.ImageData(dimensions=(4, 3, 3), spacing=(40, 20, 5)).cast_to_unstructured_grid()
        for name, components in arrays.items():
            mesh.point_data[name] = rng.normal(size=(mesh.n_points, components)).squeeze() + 20
        mesh.save(folder / "result.vtu")
        largest = float(np.max(mesh.point_data[next(iter(arrays))]))
        values = {name: largest if name == "hottest" else index + 1.5 for name in numbers}
        (folder / "numbers.csv").write_text(",".join(values) + "\n" + ",".join(map(str, values.values())) + "\n")
    return root


@pytest.mark.parametrize(("given", "made"), [("input.yaml", "output.yaml"), ("Data.yaml", "Results 1.yaml")])
def test_numbers_of_a_file_of_results_beside_one_of_what_was_given_are_outputs(given, made, tmp_path: Path) -> None:
    root = write_solids(tmp_path, 4, {"S": 6}, ["x"])
    for number, file in enumerate(sorted(root.rglob("numbers.csv"))):
        (file.parent / given).write_text(f"Länge [mm]: {number}\n")
        (file.parent / made).write_text(f"Länge [mm]: {number}\ndébit [l/s]: {number + 0.5}\n")
        file.unlink()
    _, about = drafted(root)
    assert (list(about.parameters), list(about.outputs)) == (["laenge"], ["debit"])
    assert about.outputs["debit"].unit == "l/s"


@pytest.mark.parametrize(("cold", "unit"), [(0, "K"), (1, "K"), (4, "°C"), (5, "°C")])
def test_a_temperature_is_in_the_unit_of_most_cases(cold: int, unit: str, tmp_path: Path) -> None:
    root = write_solids(tmp_path, 5, {"T": 1}, ["radius"])
    for number, file in enumerate(sorted(root.rglob("*.vtu"))):
        mesh = pyvista.read(file)
        mesh["T"] += 0 if number < cold else 273.15
        mesh.save(file)
    text, _ = drafted(root)
    assert parse_map(text, "m").sets["volume"].fields["temperature"].unit == unit
    assert f"{unit}, because {cold} of 5 cases go below 150" in text


def test_a_component_that_is_noise_beside_another_is_left_out(tmp_path: Path) -> None:
    names = ["reaction_x [N]", "reaction_y [N]", "reaction_z [N]", "yaw_moment [Nm]"]
    root = write_solids(tmp_path, 4, {"S": 6}, names)
    for number, file in enumerate(sorted(root.rglob("numbers.csv"))):
        file.write_text(f"{','.join(names)}\n{-7e4 + number},{8 + number},{0.1 * number},1e-3\n")
    text, _ = drafted(root)
    assert set(parse_map(text, "m").outputs) == {"reaction_x", "reaction_y", "yaw_moment"}
    assert "# reaction_z" in text


def test_a_solid_in_mm_is_prepared_by_its_draft(tmp_path: Path) -> None:
    root = write_solids(tmp_path / "in", 8, {"S": 6, "U": 3}, ["radius [mm]", "reaction_x [N]"])
    text, about = drafted(root)
    assert about.axes is None
    assert not about.constants
    assert about.length == "mm"
    assert {name: (own.unit, own.tensor) for name, own in about.sets["volume"].fields.items()} == {
        "stress": ("MPa", "vtk"), "displacement": ("mm", None),
    }  # fmt: skip
    assert (about.parameters["radius"].unit, about.outputs["reaction_x"].unit) == ("mm", "N")
    mises = '      mises: {array: "S", tensor: vtk, take: von_mises}\n'
    with_mises = text.replace("      displacement:", mises + "      displacement:")
    prepare(root, tmp_path / "out", with_mises)
    sample = open_cases(tmp_path / "out")[0][0]
    assert sample["volume_stress"].shape[1] == 6
    expected = invariant(sample["volume_stress"].numpy(), "vtk", "von_mises")[:, 0]
    assert sample["volume_mises"].numpy() == pytest.approx(expected, rel=1e-4)


def test_heat_with_odd_names_is_drafted_and_a_result_among_the_parameters_is_pointed_out(tmp_path: Path) -> None:
    root = write_solids(tmp_path / "in", 5, {"Temp (°C)": 1, "heat_flux": 3}, ["fin height (mm)", "hottest"])
    text, about = drafted(root)
    assert about.axes is None
    assert units(about.sets["volume"]) == {"temperature": "°C", "heat_flux": "W/m²"}
    assert about.length == "mm"
    (line,) = [line for line in text.splitlines() if line.startswith("  hottest:")]
    assert "the largest value of Temp (°C) in every case" in line


@pytest.mark.parametrize(
    ("scale", "name", "length"), [(1e-3, "radius_mm", "m"), (1.0, "radius_mm", "mm"), (1.0, "radius [m]", "mm")]
)
def test_the_unit_of_positions_is_told_by_measures_and_not_by_their_unit(scale, name, length, tmp_path) -> None:
    root = write_solids(tmp_path, 4, {"S": 6}, [name, "force"])
    for number, file in enumerate(sorted(root.rglob("*.vtu"))):
        mesh = pyvista.read(file)
        mesh.points *= scale
        mesh.save(file)
        radius = (20 + number) * (1e-3 if "[m]" in name else 1)
        (file.parent / "numbers.csv").write_text(f"{name},F,support\n{radius},{number},{-number}\n")
    text, _ = drafted(root)
    assert parse_map(text, "m").length == length
    assert "it is F in every case" in next(line for line in text.splitlines() if line.startswith("  support:"))


def test_numbers_of_cells_are_no_fields_do_not_choose_the_place_and_are_not_odd_in_some_cases(tmp_path: Path) -> None:
    root = write_solids(tmp_path, 10, {"S": 6}, ["radius"])
    for number, file in enumerate(sorted(root.rglob("*.vtu"))):
        mesh = pyvista.read(file)
        for name in ("MatID", "Cell ID", "cellnumber"):
            mesh.cell_data[name] = np.arange(mesh.n_cells, dtype=float)
        mesh.cell_data["región"] = np.arange(mesh.n_cells) % 3 + 1 if number else np.ones(mesh.n_cells, int)
        mesh.cell_data["Werkstoff"] = (np.arange(mesh.n_cells) % 2).astype(np.uint8)
        mesh.cell_data["density"] = np.full(mesh.n_cells, 7.8)
        mesh.save(file)
    survey = survey_folder(root)
    assert survey.odd == []
    own = parse_map(draft_map(survey), "m").sets["volume"]
    assert (own.at, set(own.fields)) == ("points", {"stress"})


def test_the_draft_says_that_the_sign_of_a_mode_cannot_be_learned(tmp_path: Path) -> None:
    root = write_solids(tmp_path, 4, {"U": 3}, ["Eigenfrequency 1 [Hz]"])
    for file in root.rglob("result.vtu"):
        for step in range(3):
            (file.parent / f"mode_{step}.vtu").write_bytes(file.read_bytes())
        file.unlink()
    text, _ = drafted(root)
    assert "The sign of a vibration mode is arbitrary" in text
    assert list(parse_map(text, "m").outputs) == ["eigenfrequency_1"]


def test_the_draft_of_heated_boards_is_prepared_as_it_is(tmp_path: Path) -> None:
    words = [sys.executable, str(REPOSITORY / "examples/heat/make_cases.py"), str(tmp_path / "in"), "--cases", "5"]
    subprocess.run(words, check=True, timeout=100, capture_output=True)
    text, about = drafted(tmp_path / "in")
    assert (about.length, about.axes, about.constants, list(about.outputs)) == ("mm", None, {}, ["hot_spot_max"])
    assert about.parameters["film_coefficient"].unit == "W/(m²·K)"
    assert units(about.sets["volume"]) == {"temperature": "°C", "heat_flux": "W/m²"}
    assert prepare(tmp_path / "in", tmp_path / "out", text).made == 5
