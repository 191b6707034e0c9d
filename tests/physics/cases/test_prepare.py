"""Cases become samples in SI units and standard axes; with any number of processes, no sample is left incomplete."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import pyvista
from processes import wait_for
from simulated_cases import (
    LAYOUTS,
    MAP,
    prepare,
    torn,
    with_nan,
    with_two_components,
    without_array,
    write_case,
    write_cases,
)

from noether.common.errors import RequestError
from noether.common.processes import this_process
from noether.core.data.packed import digest_of
from noether.core.data.shared_work import surviving_map
from noether.physics.cases import prepare as claims_module
from noether.physics.cases.case_map import parse_map
from noether.physics.cases.dataset import CasesDataset, check_cases, open_cases
from noether.physics.cases.mesh_blocks import read_blocks
from noether.physics.cases.prepare import FOLDER, Claims, plan_cases, prepare_cases
from tests.refusal import refusal


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_cases(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def prepared(source: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("prepared")
    prepare(source, out)
    return out


def samples(out: Path) -> dict[str, dict[str, np.ndarray]]:
    train, test, _ = open_cases(out)
    return {data.cases[i]: {key: value.numpy() for key, value in data[i].items()}
            for data in (train, test) for i in range(len(data))}  # fmt: skip


def test_a_sample_holds_what_its_contract_says(source: Path, prepared: Path) -> None:
    sample = samples(prepared)["run_1"]
    mesh, grid = pyvista.read(source / "run_1/surface.vtp"), pyvista.read(source / "run_1/volume.vtu")
    surface, volume = mesh.n_cells, grid.n_cells
    shapes = {
        "surface_points": (surface, 3), "surface_normals": (surface, 3), "surface_area": (surface,),
        "surface_pressure": (surface,), "surface_wall_shear": (surface, 3),
        "volume_points": (volume, 3), "volume_cell_volume": (volume,), "volume_sdf": (volume,),
        "volume_normals": (volume, 3), "volume_velocity": (volume, 3), "volume_temperature": (volume,),
        "wind_speed": (1,), "drag": (1,), "pressure_force": (3,), "pressure_moment": (3,),
        "friction_force": (3,), "friction_moment": (3,),
    }  # fmt: skip
    assert {key: value.shape for key, value in sample.items()} == shapes
    assert {value.dtype for value in sample.values()} == {np.dtype("float32")}
    assert sample["surface_area"].sum() == pytest.approx(mesh.area, rel=1e-5)
    assert sample["volume_cell_volume"].sum() == pytest.approx(grid.volume, rel=1e-5)
    assert sample["wind_speed"] == 31
    middle = sample["surface_points"].mean(axis=0)
    assert np.einsum("ij,ij->i", sample["surface_normals"], sample["surface_points"] - middle).min() > 0
    # The standard axes have wind along z and up along y, so x of the files becomes z, and z becomes y.
    assert sample["surface_points"][:, 2].max() == pytest.approx(mesh.points[:, 0].max(), rel=0.1)
    assert sample["volume_velocity"][:, 2].mean() == pytest.approx(grid.cell_data["U"][:, 0].mean(), rel=1e-5)
    assert np.allclose(np.linalg.norm(sample["volume_normals"], axis=1), 1, atol=1e-5)


def test_rows_of_a_set_belong_together(source: Path, prepared: Path) -> None:
    """All arrays of a set are shuffled in the same order."""
    sample, mesh = samples(prepared)["run_0"], pyvista.read(source / "run_0/surface.vtp")
    _, y, z = sample["surface_points"].T
    length = 0.8
    assert np.allclose(sample["surface_pressure"], 100 - 300 * z / length + 20 * y, atol=1e-3)
    assert not np.allclose(sample["surface_pressure"], mesh.cell_data["p"], atol=1)
    assert sorted(sample["surface_pressure"]) == pytest.approx(sorted(mesh.cell_data["p"]), rel=1e-4)


def test_forces_are_the_integrals_of_the_fields(prepared: Path) -> None:
    sample = samples(prepared)["run_2"]
    pressure, area, normals = (sample[f"surface_{key}"] for key in ("pressure", "area", "normals"))
    assert sample["pressure_force"] == pytest.approx(-(pressure * area) @ normals, rel=1e-4, abs=1e-3)
    assert sample["friction_force"] == pytest.approx(area @ sample["surface_wall_shear"], rel=1e-4)
    lever = np.cross(sample["surface_points"], -(pressure * area)[:, None] * normals).sum(axis=0)
    assert sample["pressure_moment"] == pytest.approx(lever, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(("length", "scale"), [("mm", 1000.0), ("cm", 100.0), (0.5, 2.0)], ids=["mm", "cm", "number"])
def test_units_and_axes_make_the_same_samples(length, scale, prepared: Path, tmp_path: Path) -> None:
    root = write_cases(tmp_path / "source", scale=scale, turn=LAYOUTS["-y+z"])
    text = MAP.replace("length: m", f"length: {length}").replace("wind: +x", "wind: -y")
    prepare(root, tmp_path / "out", text)
    for case, expected in samples(prepared).items():
        for key, values in samples(tmp_path / "out")[case].items():
            if key == "volume_normals":
                continue  # two surface points may be equally near to a cell
            assert np.allclose(values, expected[key], rtol=1e-3, atol=2e-4 * max(1, np.abs(expected[key]).max())), key


def test_millimetres_without_a_unit_are_refused_with_the_line_to_write(tmp_path: Path) -> None:
    root = write_cases(tmp_path / "source", 3, scale=1000.0)
    with pytest.raises(RequestError, match=r"case run_0.* m long") as refused:
        prepare(root, tmp_path / "out", MAP.replace("length: m\n", ""))
    assert "length: mm" in refused.value.fix


def at_points(folder: Path) -> None:
    pyvista.read(folder / "surface.vtp").cell_data_to_point_data().save(folder / "surface.vtp")


def no_cells(folder: Path) -> None:
    points = pyvista.read(folder / "volume.vtu").points
    pyvista.UnstructuredGrid(np.empty(0, int), np.empty(0, np.uint8), points).save(folder / "volume.vtu")


def with_numbers(text: str):
    return lambda folder: (folder / "numbers.json").write_text(text)


BROKEN = {
    "no-file": (lambda folder: (folder / "volume.vtu").unlink(), "no file for the set volume"),
    "no-array": (without_array, "no array 'p'"),
    "at-points": (at_points, "at: points"),
    "nan": (with_nan, "T in"),
    "torn": (torn, "volume.vtu cannot be read"),
    "no-cells": (no_cells, "volume.vtu has no"),
    "components": (with_two_components, "2 components"),
    "no-number": (with_numbers('{"drag": 1}'), "inlet.wind_speed"),
    "number-not-finite": (with_numbers('{"drag": NaN, "inlet": {"wind_speed": 1}}'), "not finite"),
    "empty-mesh": (lambda folder: pyvista.PolyData().save(folder / "surface.vtp"), "surface.vtp"),
}  # fmt: skip


@pytest.mark.parametrize(("breaks", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_case_is_named_and_the_rest_goes_on_when_asked(breaks, words, source: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(source, tmp_path / "source"))
    breaks(root / "run_3")
    text = MAP.replace("{array: p, unit: Pa}", "{array: p, unit: Pa, components: 1}")
    with refusal(words="run_3", fix="--skip-broken") as refused:
        prepare(root, tmp_path / "out", text)
    assert words in str(refused.value)
    assert not (tmp_path / "out" / "dataset.json").exists()
    done = prepare(root, tmp_path / "out", text, skip_broken=True)
    assert set(done.broken) == {"run_3"}
    assert done.made + done.kept == 5
    assert "run_3" not in samples(tmp_path / "out")
    assert "run_3" in json.loads((tmp_path / "out" / "dataset.json").read_text())["broken"]


def test_what_is_there_and_current_is_kept(source: Path, tmp_path: Path) -> None:
    root, out = Path(shutil.copytree(source, tmp_path / "source")), tmp_path / "out"
    assert (prepare(root, out).made, prepare(root, out).kept) == (6, 6)
    os.utime(root / "run_1" / "volume.vtu", (1, 1))  # as if the file had changed
    (out / "cases" / "run_2" / "surface.safetensors").unlink()
    (out / "cases" / "run_4" / "case.json").write_text("{")
    (out / "cases" / f".run_9.{socket.gethostname()}.{2**22 + 1}-ab.partial").mkdir()  # as a killed process leaves it
    done = prepare(root, out)
    assert (done.made, done.kept) == (3, 3)
    assert sorted(path.name for path in (out / "cases").iterdir()) == [f"run_{i}" for i in range(6)]
    numbers = json.loads((root / "run_3" / "numbers.json").read_text())
    (root / "run_3" / "numbers.json").write_text(json.dumps({**numbers, "drag": numbers["drag"] + 1}))
    assert [job.case for job in plan_cases(root, out, parse_map(MAP, "m"))[0]] == ["run_3"]
    prepare(root, out)


REMADE = {
    "another-unit-of-a-field": ("unit: K", "unit: degC", 0),
    "a-scaling-of-a-field": ("unit: K", "unit: K, scaling: symmetric_log", 0),
    "another-split": ("seed: 1", "seed: 2", 0),
    "another-length": ("length: m", "length: mm", 6),
}


@pytest.mark.parametrize(("old", "new", "count"), REMADE.values(), ids=REMADE)
def test_a_changed_map_prepares_only_what_it_changes(old, new, count: int, source: Path, prepared: Path) -> None:
    assert old in MAP
    assert len(plan_cases(source, prepared, parse_map(MAP.replace(old, new), "m"))[0]) == count


def test_all_cases_that_lack_something_are_told_at_once(source: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(source, tmp_path / "source"))
    (root / "run_1" / "volume.vtu").unlink()
    (root / "run_4" / "numbers.json").write_text('{"drag": 1}')
    (root / "run_5" / "numbers.json").write_text('{"inlet": {}}')  # lacks its parameter and its output
    without_array(root / "run_0")
    torn(root / "run_2")
    with_two_components(root / "run_3", "volume.vtu", "T", binary=False)
    text = re.sub(r"(?m)^split:.*$", "split: {test: [run_1, rum_2], validation: [run_3]}", MAP)
    with refusal("no-such-array") as told:
        prepare(root, tmp_path / "out", text.replace("{array: T, unit: K}", "{array: T, unit: K, components: 1}"))
    lines = told.value.seen.splitlines()
    assert [re.findall(r"run_\d", line)[0] for line in lines] == [
        "run_0", "run_1", "run_2", "run_3", "run_4", "run_5", "run_5", "run_2"]  # fmt: skip
    assert "rum_2 (did you mean run_2?)" in lines[-1]
    assert not (tmp_path / "out").exists()


def test_a_name_of_a_split_that_no_case_has_is_refused_or_said(source: Path, tmp_path: Path) -> None:
    text = re.sub(r"(?m)^split:.*$", "split: {test: [run_1, rum_2], validation: [run_3]}", MAP)
    with refusal("split-names-no-case") as refused:
        prepare(source, tmp_path / "out", text)
    (said,) = prepare(source, tmp_path / "out", text, skip_broken=True).warnings
    assert "rum_2 (did you mean run_2?)" in refused.value.seen == said


def test_what_vtk_says_of_a_file_is_told_without_the_addresses_of_its_objects(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "volume.vtu"
    path.write_bytes((source / "run_0" / "volume.vtu").read_bytes()[:-900])
    with refusal("case-file-unreadable", words=str(path)) as refused:
        read_blocks(path)
    assert "0x" not in str(refused.value)


def test_the_store_is_the_same_whatever_the_number_of_processes(source: Path, prepared: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path / "out", workers=2)
    for path in sorted(prepared.rglob("*.safetensors")):
        assert (tmp_path / "out" / path.relative_to(prepared)).read_bytes() == path.read_bytes()


def crashes_on_three(item: int) -> int:
    if item == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    return 2 * item


def test_a_case_that_crashes_its_reader_is_named_and_the_others_go_on() -> None:
    found = dict(surviving_map(crashes_on_three, range(8), 2))
    assert {item: result for item, result in found.items() if item != 3} == {i: 2 * i for i in range(8) if i != 3}
    assert isinstance(found[3], RequestError)
    assert "died" in found[3].summary


def test_a_case_that_was_stopped_in_the_middle_is_not_there(source: Path, tmp_path: Path, monkeypatch) -> None:
    jobs, *_ = plan_cases(source, tmp_path / "out", parse_map(MAP, "m"))
    monkeypatch.setattr("noether.physics.cases.make_case.write_case_file", lambda folder, about: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        jobs[0].make()
    assert list((tmp_path / "out" / "cases").iterdir()) == []


def test_training_is_refused_where_a_case_is_gone(prepared: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(prepared, tmp_path / "out"))
    assert check_cases(out)["sets"].keys() == {"surface", "volume"}
    shutil.rmtree(out / "cases" / "run_0")
    with pytest.raises(RequestError, match="case run_0"):
        check_cases(out)
    (out / "dataset.json").write_text('{"format_version": 99, "splits": {"train": []}}')
    with refusal("case-format-version"):
        check_cases(out)


def test_a_case_with_most_points_keeps_a_random_part(source: Path, tmp_path: Path) -> None:
    text = MAP.replace("kind: volume\n", "kind: volume\n    most_points: 50\n")
    prepare(source, tmp_path / "out", text)
    assert {len(sample["volume_points"]) for sample in samples(tmp_path / "out").values()} == {50}


def test_units_that_cannot_be_are_said(source: Path, tmp_path: Path) -> None:
    text = MAP.replace("{array: p, unit: Pa}", "{array: p, unit: Pa, scale: 1.0e-5}")
    warnings = prepare(source, tmp_path / "out", text).warnings
    assert any("surface_pressure reaches only" in words for words in warnings)


def test_positions_far_from_the_origin_and_what_is_the_same_everywhere_are_said(tmp_path: Path) -> None:
    for index in range(4):
        write_case(tmp_path / "source" / f"run_{index}", index)
        for name in ("surface.vtp", "volume.vtu"):
            mesh = pyvista.read(path := tmp_path / "source" / f"run_{index}" / name)
            mesh.points = np.add(mesh.points, [5e5, 5.4e6, 0], dtype=np.float64)
            mesh.cell_data.update({"wss": np.tile([0, 0, 2.0], (mesh.n_cells, 1))})
            mesh.save(path)
    said = "\n".join(prepare(tmp_path / "source", tmp_path / "out").warnings)
    assert "surface_points spans" in said
    assert "32-bit numbers are 0.5 apart" in said
    assert "surface_wall_shear is 0, 2, 0 everywhere" in said


def test_implausible_cases_differ_in_components(tmp_path: Path) -> None:
    root = write_cases(tmp_path / "source", 4)
    with_two_components(root / "run_2")
    with refusal("case-components-differ"):
        prepare(root, tmp_path / "out", re.sub("(?m)^forces:.*$", "", MAP))


def test_cases_in_folders_of_folders(tmp_path: Path) -> None:
    for index in range(4):
        write_case(tmp_path / "source" / f"set_{index % 2}" / f"run_{index}", index)
    text = re.sub('"({case}/[a-z]+.vt)', r'"**/\1', MAP).replace('"{case}/numbers', '"*/{case}/numbers')
    assert prepare(tmp_path / "source", tmp_path / "out", text).made == 4
    assert isinstance(open_cases(tmp_path / "out")[0], CasesDataset)


CASES = 6
PROGRAM = """
import json, sys
from pathlib import Path
from noether.physics.cases.prepare import prepare_cases
done = prepare_cases(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], "map", workers=1, skip_broken=True)
print(json.dumps({"made": done.made, "others": done.others, "broken": sorted(done.broken)}))
"""


def start(lacking_one: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, lacking_one, out, MAP], stdout=subprocess.PIPE, text=True)


def content(out: Path) -> dict[str, str]:
    files = [path for path in out.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(out)): digest_of(path) for path in files}


@pytest.fixture(scope="module")
def lacking_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_cases(tmp_path_factory.mktemp("source"), CASES)
    (root / "run_4" / "volume.vtu").unlink()
    return root


@pytest.fixture(scope="module")
def alone(lacking_one: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("alone")
    prepare_cases(lacking_one, out, MAP, "map", workers=1, skip_broken=True)
    return content(out)


def test_two_processes_make_each_case_once_and_what_one_would_have_made(lacking_one, alone, tmp_path: Path) -> None:
    found = [json.loads(one.communicate(timeout=240)[0]) for one in [start(lacking_one, tmp_path) for _ in range(2)]]
    assert sum(one["made"] for one in found) == CASES - 1
    for one in found:
        assert (one["made"] + one["others"], one["broken"]) == (CASES - 1, ["run_4"])
    assert content(tmp_path) == alone


def test_the_cases_of_a_killed_process_are_taken_over(lacking_one, alone, tmp_path: Path) -> None:
    killed = start(lacking_one, tmp_path)
    wait_for("a claim", lambda: list((tmp_path / FOLDER).glob("*")), 120)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert list((tmp_path / FOLDER).glob("*"))
    prepare_cases(lacking_one, tmp_path, MAP, "map", workers=1, skip_broken=True)
    assert content(tmp_path) == alone


def elsewhere(out: Path, **other: str) -> Path:
    (out / FOLDER).mkdir(exist_ok=True)
    claim = out / FOLDER / "run_1-1"
    claim.write_text(json.dumps({"map": "m", **this_process(), "host": "another-host", **other}))
    return claim


def test_a_claim_of_another_host_holds_while_its_time_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "EXPIRED", 0.05)
    claim = elsewhere(tmp_path)
    with Claims(tmp_path, "m") as own:
        for beat in range(4):
            os.utime(claim, (beat, beat))
            assert not own.take("run_1")
            time.sleep(0.06)
        assert own.take("run_1")
        with Claims(tmp_path, "m") as late:
            assert not late.take("run_1")
    assert not list((tmp_path / FOLDER).iterdir())


def test_two_maps_do_not_share_a_folder(tmp_path: Path) -> None:
    elsewhere(tmp_path, map="another")
    with Claims(tmp_path, "m") as own, refusal("store-prepared-by-another-map"):
        own.take("run_1")
