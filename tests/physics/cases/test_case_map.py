"""An invalid map is refused with the faulty key; each ready-made map fits the files of its data set."""

from pathlib import Path

import numpy as np
import pytest
import pyvista
import yaml
from simulated_cases import MAP, air, body, prepare

from noether.common.errors import RequestError
from noether.physics.cases.case_map import FieldMap, map_text, parse_map, ready_maps, turned
from noether.physics.cases.dataset import open_cases
from noether.physics.cases.layout import find_cases
from noether.physics.cases.prepare import prepare_cases
from tests.refusal import refusal


def changed(**keys) -> str:
    return yaml.safe_dump({**yaml.safe_load(MAP), **keys})


def of_field(words: str) -> str:
    return f'sets: {{body: {{file: "{{case}}.vtu", kind: volume, fields: {{s: {{array: S, {words}}}}}}}}}'


SURFACE = yaml.safe_load(MAP)["sets"]["surface"]
WRONG = {
    "not-yaml": ("sets: [", "cases.yaml:2 is not valid YAML"),
    "wind-along-up": (changed(axes={"wind": "+x", "up": "-x"}), "one axis"),
    "no-such-unit": (changed(length="furlong"), "furlong"),
    "reserved-field": (changed(sets={"surface": {**SURFACE, "fields": {"area": {"array": "p"}}}}), "fields.area"),
    "capital-letters": (changed(sets={"Surface": SURFACE}), "Surface"),
    "times-nothing": (changed(sets={"surface": {**SURFACE, "fields": {"p": {"array": "p", "times": "rho"}}}}), "'rho'"),
    "distance-to-nothing": (changed(sets={"surface": {**SURFACE, "distance_to": "hull"}}), "'hull'"),
    "forces-of-nothing": (changed(forces={"set": "surface", "pressure": "cp"}), "forces"),
    "forces-in-kpa": (MAP.replace("array: p, unit: Pa", "array: p, unit: kPa"), "forces: pressure is in kPa"),
    "forces-of-km/h": (MAP.replace("unit: m/s}", "unit: km/h}", 1), "forces: wind_speed is in km/h"),
    "predicts-nothing": ('sets: {body: {file: "{case}.stl", kind: surface}}', "nothing to predict"),
    "a-list-for-a-length": (changed(length=[1]), "length cannot be [1]: expected a text or a number"),
    "a-fraction-of-a-mapping": (changed(split={"test": {}}), "split.test cannot be {}: expected a number or a list"),
    "no-such-kind": (
        MAP.replace("kind: surface", "kind: shell", 1),
        "cannot be shell: expected one of surface, volume",
    ),
    "no-such-key": (changed(lenght="mm"), "unknown key lenght, did you mean length?"),
    "no-kind": (MAP.replace("kind: surface", "", 1).replace(", ,", ","), "kind is not set"),
    "turns-backwards": (of_field("period: [180, -180]"), "period"),
    "an-angle-of-two": (of_field("period: [0, 360], components: 2"), "period"),
    "taken-of-no-tensor": (of_field("take: von_mises"), "take"),
    "a-tensor-of-three": (of_field("tensor: vtk, components: 3"), "tensor"),
    "no-such-order": (of_field("tensor: nastran"), "tensor"),
    "sets-alike": (changed(sets={"surface": SURFACE, "surface_2": SURFACE}), "rename one"),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_map_that_does_not_fit_is_refused_by_its_key(text: str, words: str) -> None:
    with refusal("invalid-yaml" if text == "sets: [" else "map-does-not-fit") as refused:
        parse_map(text, "cases.yaml")
    assert words in str(refused.value)
    assert "nput should" not in str(refused.value), "the error has a sentence of pydantic"


def test_a_length_may_have_any_unit_and_a_force_any_spelling_of_its_own() -> None:
    assert parse_map(changed(length="µm"), "m").metres == 1e-6
    assert parse_map(MAP.replace("array: p, unit: Pa", "array: p, unit: N m^-2"), "m").forces


def test_a_map_is_a_file_or_the_name_of_a_ready_one(tmp_path: Path) -> None:
    assert {"openfoam", "ahmedml", "drivaerml", "drivaernetpp", "shapenet_car"} == set(ready_maps())
    for name in ready_maps():
        assert parse_map(map_text(name), name).sets
    (tmp_path / "m.yaml").write_text(MAP)
    assert map_text(str(tmp_path / "m.yaml")) == MAP
    with pytest.raises(RequestError) as refused:
        map_text("openfaom")
    assert "--map openfoam" in refused.value.fix


def test_a_file_of_several_sets_is_expected_once(tmp_path: Path) -> None:
    twice = {"surface": SURFACE, "tail": SURFACE | {"fields": {}}}
    with refusal("no-file-fits-map") as caught:
        find_cases(tmp_path, parse_map(changed(sets=twice), "cases.yaml"))
    assert caught.value.expected == SURFACE["file"]


@pytest.mark.parametrize("wind", ["+x", "-x", "+y", "-y", "+z", "-z"])
@pytest.mark.parametrize("up", ["+x", "-y", "+z"])
def test_the_axes_are_turned_and_not_mirrored(wind: str, up: str) -> None:
    if wind[1] == up[1]:
        return
    rotation = parse_map(changed(axes={"wind": wind, "up": up}), "m").rotation
    sign = {"+": 1, "-": -1}
    vector = {name: sign[name[0]] * np.eye(3)["xyz".index(name[1])] for name in (wind, up)}
    assert np.allclose(rotation @ vector[wind], [0, 0, 1])
    assert np.allclose(rotation @ vector[up], [0, 1, 0])
    assert np.linalg.det(rotation) == pytest.approx(1)
    about = parse_map(changed(axes={"wind": wind, "up": up}), "m")
    for tensor, usual in ((None, "x y z"), (None, "0 1 2 3 4 5 6 7 8"), ("vtk", "xx yy zz xy yz xz")):
        names, count = usual.split(), len(usual.split())
        own = about.component_names(FieldMap(array="a", tensor=tensor), count)
        # Rotate one component at a time: the largest result must be at the place of that component's name.
        assert [own[int(np.abs(values).argmax())] for values in turned(rotation, tensor=tensor)(np.eye(count))] == names


def renamed(mesh, names: dict[str, str]):
    for old, new in names.items():
        mesh.cell_data[new] = mesh.cell_data[old]
    for name in [name for name in mesh.cell_data.keys() if name not in names.values()]:  # noqa: SIM118 - changes it
        del mesh.cell_data[name]
    return mesh


def write_runs(root: Path, runs: tuple[int, ...], metres: float, mean: str, **tables: str) -> None:
    """Write, for each run N, a folder with boundary_N.vtp, volume_N.vtu and tables."""
    for run in runs:
        (folder := root / f"run_{run}").mkdir()
        length = metres + run / 100
        renamed(body(length), {"p": f"p{mean}", "wss": f"wallShearStress{mean}"}).save(folder / f"boundary_{run}.vtp")
        grid = air(length)
        grid.cell_data["p"] = grid.cell_data["T"]
        renamed(grid, {"U": f"U{mean}", "p": f"p{mean}"}).save(folder / f"volume_{run}.vtu")
        for name, text in tables.items():
            (folder / f"{name}_{run}.csv").write_text(text)


def ahmedml(root: Path) -> None:
    tables = {"force_mom": "cd, cl\n0.3, 0.1\n", "geo_parameters": "height, width\n0.3, 0.4\n"}
    write_runs(root, (1, 2, 3, 10, 20), 1, "Mean", **tables)
    for folder in root.iterdir():
        number = folder.name.removeprefix("run_")
        body(1.0).extract_surface(algorithm="dataset_surface").triangulate().save(folder / f"ahmed_{number}.stl")
        (folder / "slices").mkdir()
        body(1.0, 1).save(folder / "slices" / f"xNormal_{number}.vtp")


def drivaerml(root: Path) -> None:
    names = "lRef,aRef,forcesCoR,lRefRef,aRefRef,forcesCoRRef"
    reference = f"{names}\n2.79,2.298,(1.402 0 -0.3176),2.78618,2.17,(1.4 0 -0.3)\n"
    tables = {"force_mom": "Cd,Cl,Clf,Clr,Cs\n0.27,-0.05,-0.1,0.1,0.02\n", "geo_ref": reference}
    write_runs(root, (1, 2, 4, 100), 4, "MeanTrim", **tables)


def drivaernetpp(root: Path) -> None:
    rows = ["Design,Average Cd,Std Cd"]
    for kind in ("E_S_WWC_WM", "F_D_WM_WW"):
        (root / "PressureVTK" / kind).mkdir(parents=True)
        for number in range(1, 5):
            mesh = body(4 + number / 10).triangulate().cell_data_to_point_data()
            del mesh.point_data["wss"]
            mesh.save(root / "PressureVTK" / kind / f"{kind}_{number:03d}.vtk")
            rows.append(f"{kind}_{number:03d},{0.25 + number / 100},0.001")
    (root / "DrivAerNetPlusPlus_Cd_8k_Updated.csv").write_text("\n".join(rows) + "\n")


LAYOUTS = {
    "ahmedml": (ahmedml, 5, {"surface_pressure", "surface_wall_shear", "volume_velocity", "drag_coefficient"}, "10"),
    "drivaerml": (drivaerml, 4, {"surface_pressure", "volume_pressure", "reference_area", "friction_force"}, "100"),
    "drivaernetpp": (drivaernetpp, 8, {"surface_pressure", "surface_area", "drag_coefficient"}, "F_D_WM_WW_003"),
}


@pytest.mark.parametrize(("name", "layout"), LAYOUTS.items(), ids=LAYOUTS.keys())
def test_a_ready_map_takes_the_published_layout(name: str, layout, tmp_path: Path) -> None:
    write, count, keys, case = layout
    (tmp_path / "source").mkdir()
    write(tmp_path / "source")
    done = prepare_cases(tmp_path / "source", tmp_path / "out", map_text(name), name, workers=1, skip_broken=False)
    assert done.made == count
    train, test, _ = open_cases(tmp_path / "out")
    assert case in [*train.cases, *test.cases]
    sample = train[0]
    assert keys <= set(sample)
    assert np.isfinite(sample["surface_normals"].numpy()).all()
    # The wind is along z, as is the longest side of the body.
    extent = np.ptp(sample["surface_points"].numpy(), axis=0)
    assert extent.argmax() == 2
    if name == "drivaernetpp":
        numbers = {train.cases[i]: float(train[i]["drag_coefficient"]) for i in range(len(train))}
        assert all(value == pytest.approx(0.25 + int(case[-3:]) / 100) for case, value in numbers.items())


def test_formats_of_several_blocks(tmp_path: Path) -> None:
    """Blocks are patches: those of the body become numbered parts, and the block of air belongs to the other set."""
    for index in range(4):
        blocks = pyvista.MultiBlock({"hull": body(1.0), "wing": body(0.5, 2), "air": air(1.0 + index / 10)})
        (tmp_path / "source").mkdir(exist_ok=True)
        blocks.save(tmp_path / "source" / f"case{index}.vtm")
    text = """
sets:
  surface: {file: "{case}.vtm", kind: surface, patches: [hull, "w*"], fields: {pressure: {array: p, unit: Pa}}}
  volume: {file: "{case}.vtm", kind: volume, fields: {velocity: {array: U, unit: m/s}}}
split: {test: [case3], validation: 0}
"""
    done = prepare(tmp_path / "source", tmp_path / "out", text)
    assert done.splits == {"train": ["case0", "case1", "case2"], "validation": [], "test": ["case3"]}
    train, _, _ = open_cases(tmp_path / "out")
    assert train.metadata["sets"]["surface"]["parts"] == ["hull", "wing"]
    counts = np.bincount(train[0]["surface_part"].numpy())
    assert counts.tolist() == [body(1.0).n_cells, body(0.5, 2).n_cells]
