"""Maps that do not fit are refused with the key that is wrong."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from simulated_cases import MAP

from noether.common.errors import RequestError
from noether.physics.cases.case_map import map_text, parse_map, ready_maps
from noether.physics.cases.layout import find_cases
from tests.refusal import refusal


def changed(**keys) -> str:
    return yaml.safe_dump({**yaml.safe_load(MAP), **keys})


SURFACE = yaml.safe_load(MAP)["sets"]["surface"]
WRONG = {
    "not-yaml": ("sets: [", "cases.yaml is not a map"),
    "wind-along-up": (changed(axes={"wind": "+x", "up": "-x"}), "one axis"),
    "no-such-unit": (changed(length="furlong"), "furlong"),
    "reserved-field": (changed(sets={"surface": {**SURFACE, "fields": {"area": {"array": "p"}}}}), "fields.area"),
    "capital-letters": (changed(sets={"Surface": SURFACE}), "Surface"),
    "times-nothing": (changed(sets={"surface": {**SURFACE, "fields": {"p": {"array": "p", "times": "rho"}}}}), "'rho'"),
    "distance-to-nothing": (changed(sets={"surface": {**SURFACE, "distance_to": "hull"}}), "'hull'"),
    "forces-of-nothing": (changed(forces={"set": "surface", "pressure": "cp"}), "forces"),
    "forces-in-kpa": (MAP.replace("array: p, unit: Pa", "array: p, unit: kPa"), "forces: pressure is in kPa"),
    "forces-of-km/h": (MAP.replace("unit: m/s}", "unit: km/h}", 1), "forces: wind_speed is in km/h"),
    "sets-alike": (changed(sets={"surface": SURFACE, "surface_2": SURFACE}), "rename one"),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_map_that_does_not_fit_is_refused_by_its_key(text: str, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_map(text, "cases.yaml")
    assert words in str(refused.value)


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
