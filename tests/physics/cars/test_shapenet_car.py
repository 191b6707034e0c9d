"""ShapeNet-Car is prepared from raw and published files, split, and trained on; faulty files are refused by name."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import pyvista
import torch
from conftest import REPOSITORY, TINY
from processes import halve
from shapenet_car_files import FIRST, UNUSED, prepare_cars, surface_mesh, volume_mesh, write_car, write_grid

from noether.common.errors import RequestError
from noether.physics.cars.shapenet_car import (
    FOLDER_COUNTS,
    PUBLISHED,
    PUBLISHED_STATISTICS,
    differing_statistics,
    make_car,
    open_shapenet_car,
    published_order,
    split_indices,
)
from tests.refusal import refusal

pytest_plugins = ("shapenet_car_runs",)
PLAN = ("plan", "--hp", "{configs}/train_shapenet.yaml")
PREPARE = ("data", "prepare", "shapenet_car")
MISTAKES = {
    "unknown-kind": (("data", "prepare", "shapenet-car", "x", "y"), "prepare x y --map shapenet_car"),
    "too-few-words": (PREPARE, "noether data prepare shapenet_car SOURCE OUT"),
    "no-source": ((*PREPARE, "/nowhere", "y"), "/nowhere holds no ShapeNet-Car data"),
    "workers-superscript": ((*PREPARE, "x", "y", "--workers", "²"), "--workers takes a whole number"),
    "more-supernodes-than-points": ((*PLAN, "model.supernodes=4000"), "model.supernodes=3586"),
    "more-points": ((*PLAN, "dataset.points_per_update={{surface: 4000}}"), "more than the 3586 surface points"),
}
FITTING = {
    "fewer-digits": lambda p: {"point_scalars": np.round(p)},
    "anything-at-unused-points": lambda p: {"point_scalars": np.r_[p[:16], np.full(96, 1e6), p[112:]]},
    "other-arrays-beside": lambda p: {"ids": np.arange(3682.0), "pressure": p, "zeros": 0 * p},
    "no-pressure-in-the-mesh": lambda p: {},
}


@pytest.fixture
def source(published: Path, tmp_path: Path) -> Path:
    """Return a copy of the published data that a test may change."""
    return Path(shutil.copytree(published, tmp_path / "source"))


def test_a_sample_is_what_the_files_say(raw_archive: Path, prepared: Path) -> None:
    train, test = open_shapenet_car(prepared, "param0")
    assert (len(train), len(test)) == (4, 2)
    car = sorted((raw_archive / "param1").iterdir())[1]
    assert train.name(1) == f"param1-{car.name}"
    sample, wanted = {key: value.numpy() for key, value in train[1].items()}, make_car(car)
    quads = wanted.pop("surface_quads")
    assert sample.keys() == wanted.keys()
    sets = ("surface", "volume")
    rows = {name: [np.lexsort(own[f"{name}_points"].T) for own in (sample, wanted)] for name in sets}
    for key, array in wanted.items():
        kept, own = rows.get(key.partition("_")[0], (slice(None), slice(None)))
        assert np.array_equal(sample[key][kept], array[own]), key
    faces = train.faces(1)
    assert np.array_equal(sample["surface_points"][faces], wanted["surface_points"][quads])


def test_the_published_folder_trains_without_forces(published: Path, prepared: Path, tmp_path: Path) -> None:
    prepare_cars(published, tmp_path)
    train, _ = open_shapenet_car(tmp_path, "param0")
    of_the_raw, _ = open_shapenet_car(prepared, "param0")
    sample, wanted = train[0], of_the_raw[0]
    assert sample.keys() == PUBLISHED.keys()
    assert all(torch.equal(sample[key], wanted[key]) for key in PUBLISHED)
    assert train.faces(0) is None


@pytest.mark.parametrize("old", ["published", "packed"])
def test_what_was_not_prepared_is_refused_with_the_line_that_does(old, published, tmp_path: Path, noether) -> None:
    (tmp_path / "shapenet_car.safetensors").write_bytes(b"")
    root = published if old == "published" else tmp_path
    done = noether("plan", "dataset=shapenet_car", f"dataset_root={root}")
    assert done.code == 2
    assert f"noether data prepare shapenet_car {root if old == 'published' else 'ARCHIVE'} FOLDER" in done.err


BROKEN = {
    "torn": ("volume_points.pt", lambda path: path.write_bytes(path.read_bytes()[:-200]), ""),
    "not-a-tensor": ("volume_sdf.pt", lambda path: torch.save({"a": 1}, path), "dict"),
    "96-points-too-many": ("surface_pressure.pt", lambda path: torch.save(torch.zeros(3682), path), "shape (3682,)"),
    "nan": ("volume_velocity.pt", lambda path: torch.save(torch.full((125, 3), torch.nan), path), "375 values"),
}


@pytest.mark.parametrize(("file", "harm", "seen"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_car_is_named(file, harm, seen, source: Path, tmp_path: Path) -> None:
    path = sorted((source / "preprocessed" / "param1").iterdir())[1] / file
    harm(path)
    with refusal(seen=seen) as refused:
        prepare_cars(source, tmp_path / "out")
    assert refused.value.summary.endswith(f"{path} cannot be used")
    assert not (tmp_path / "out" / "dataset.json").exists()
    assert len(prepare_cars(source, tmp_path / "out", skip_broken=True).cases) == 5


def test_missing_files_are_all_named_before_anything_is_read(source: Path, tmp_path: Path) -> None:
    cars = sorted((source / "preprocessed" / "param1").iterdir())[:2]
    for car in cars:
        (car / "surface_pressure.pt").unlink()
    with refusal("shapenet-file-unusable") as refused:
        prepare_cars(source, tmp_path / "out")
    assert all(str(car) in refused.value.seen for car in cars)


def test_the_order_is_the_published_one() -> None:
    cars = ["param1/2b", "param0/10", "param0/9", "param1/10a"]
    assert published_order(cars) == ["param0/10", "param0/9", "param1/10a", "param1/2b"]


def test_the_split_randperm189_is_the_published_one() -> None:
    params = [f"param{i}" for i, count in enumerate(FOLDER_COUNTS) for _ in range(count)]
    train, test = split_indices(params, "randperm189")
    assert (len(train), len(test)) == (700, 189)
    assert {550, 592, 229, 547, 62, 464, 798, 836} <= set(test)
    train, test = split_indices(params, "param0")
    assert (len(train), test) == (789, list(range(100)))


def test_a_split_that_the_cars_do_not_have_is_refused() -> None:
    wanted = {"randperm189": ("param0", "needs all cars"), "param0": ("param1", "needs cars in param0")}
    for split, (param, words) in wanted.items():
        with pytest.raises(RequestError, match=words):
            split_indices([param] * 5, split)


def test_statistics_are_held_against_the_published_ones() -> None:
    arrays = {
        key: {"channels": [{"mean": mean, "std": std} for mean, std in zip(means, deviations, strict=True)]}
        for key, (means, deviations) in PUBLISHED_STATISTICS.items()
    }
    assert differing_statistics(arrays) == []
    arrays["volume_velocity"]["channels"][2]["mean"] += 1
    (words,) = differing_statistics(arrays)
    assert words.startswith("volume_velocity[2]: mean 18.546, std 5.85035; published 17.546")


@pytest.mark.slow
def test_the_commands_from_archive_to_description(raw_archive: Path, noether, tmp_path: Path) -> None:
    out = tmp_path / "car"
    tried = noether("data", "prepare", "shapenet_car", str(raw_archive), str(out), "--dry-run")
    assert "6 cases, 0 of them complete" in tried.out
    assert not out.exists()
    archive = shutil.make_archive(str(tmp_path / "raw"), "zip", raw_archive.parent, "training_data")
    done = noether("data", "prepare", "shapenet_car", archive, str(out), "--workers", "1", code=0)
    assert "6 cases prepared" in done.out
    assert "param1 has 3 of 99 cars" in done.out
    assert f"noether train dataset=shapenet_car dataset_root={out}" in " ".join(done.out.split())
    again = noether("data", "prepare", "shapenet_car", archive, str(out))
    assert "0 cases prepared, 6 were already up to date" in again.out
    described = noether("data", "describe", "--json", "dataset=shapenet_car", f"dataset_root={out}")
    about = json.loads(described.out)
    assert (about["train"]["samples"], about["test"]["samples"]) == (4, 2)
    assert about["train"]["arrays"]["surface_pressure"]["shape"] == "(3586,)"
    assert "4 of the 789 training cars are here" in about["notes"][0]


def test_the_embedded_data_set_is_described_too(noether) -> None:
    done = noether("data", "describe", "--hp", str(TINY), "--json")
    about = json.loads(done.out)
    assert (about["train"]["samples"], about["test"]["samples"]) == (20, 5)
    assert about["train"]["arrays"]["surface_points"]["shape"] == "(48, 3)"
    assert about["notes"] == []


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_answered_in_words_and_write_nothing(words, message, noether, tmp_path: Path) -> None:
    words = [word.format(configs=REPOSITORY / "configs") for word in words]
    done = noether(*words, cwd=tmp_path, PYTHONPATH=str(REPOSITORY))
    assert done.code == 2, done.out + done.err
    assert message in done.out + done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def one(tmp_path: Path) -> Path:
    folder = tmp_path / "training_data" / "param3" / "abc"
    write_car(folder, seed=7)
    return folder


@pytest.mark.parametrize("binary", [False, True], ids=["ascii", "binary"])
def test_a_car_is_what_its_files_say(binary, tmp_path: Path) -> None:
    write_car(tmp_path / "param3" / "abc", seed=7, binary=binary)
    arrays = make_car(tmp_path / "param3" / "abc")
    points, _, pressure = surface_mesh(7)
    volume, _, velocity = volume_mesh(points, 7)
    used = np.r_[:FIRST, FIRST + UNUSED : len(points)]  # the surface and press.npy must lose the same unused points
    assert np.array_equal(arrays["surface_points"], points[used])
    assert np.array_equal(arrays["surface_pressure"], pressure[used])
    assert np.array_equal(arrays["volume_points"], volume[: -len(points)])
    assert np.array_equal(arrays["volume_velocity"], velocity[: -len(points)])
    gaps = np.linalg.norm(volume[: -len(points), None] - points[None], axis=2)
    assert arrays["volume_sdf"] == pytest.approx(gaps.min(axis=1), abs=1e-5)  # over all 3682 points
    nearest = points[gaps.argmin(axis=1)]
    away = nearest + arrays["volume_sdf"][:, None] * arrays["volume_normals"]
    assert away == pytest.approx(arrays["volume_points"], abs=1e-5)
    centre = points[used].mean(axis=0)
    assert (np.einsum("ij,ij->i", arrays["surface_normals"], points[used] - centre) > 0).all()
    for key, value in arrays.items():
        assert value.dtype == np.dtype(np.int32 if key == "surface_quads" else np.float32), key


def rewritten(change):
    """Return a function that rewrites a car's surface file, after `change` has altered points, quads and pressures."""

    def harm(car: Path) -> None:
        points, quads, pressure = change(*surface_mesh(7))
        write_grid(car / "quadpress_smpl.vtk", points, quads, {"point_scalars": pressure})

    return harm


def pressed(change):
    """Return a function that changes the pressures in press.npy."""
    return lambda car: np.save(car / "press.npy", change(np.load(car / "press.npy")))


def of_another_car(car: Path) -> None:
    write_car(car.parent / "other", seed=8)
    shutil.move(car.parent / "other" / "hexvelo_smpl.vtk", car / "hexvelo_smpl.vtk")
    shutil.rmtree(car.parent / "other")


SURFACE, VOLUME = "quadpress_smpl.vtk", "hexvelo_smpl.vtk"
BROKEN_RAW = {
    "surface-missing": (SURFACE, lambda car: (car / SURFACE).unlink(), "no such file"),
    "volume-torn": (VOLUME, lambda car: halve(car / VOLUME), ""),
    "pressure-already-without-the-unused": ("press.npy", pressed(lambda p: p[96:]), "shape (3586,)"),
    "pressure-shifted": ("press.npy", pressed(lambda p: np.roll(p, 96)), "of the spread"),
    "pressure-nan": ("press.npy", pressed(lambda p: np.full(3682, np.nan)), "not finite"),
    "short-of-points": (SURFACE, rewritten(lambda p, q, s: (p[:-1], q[q.max(axis=1) < 3681], s[:-1])), "3681 points"),
    "another-number-unused": (SURFACE, rewritten(lambda p, q, s: (p, q[100:], s)), "points that some quad uses"),
    "volume-of-another-car": (VOLUME, of_another_car, "of them points of the surface"),
}


@pytest.mark.parametrize(("file", "harm", "seen"), BROKEN_RAW.values(), ids=BROKEN_RAW.keys())
def test_what_does_not_fit_is_refused_by_the_name_of_its_file(file, harm, seen, one: Path, tmp_path: Path) -> None:
    harm(one)
    with refusal(summary=str(one / file), seen=seen):
        make_car(one)


@pytest.mark.parametrize("arrays", FITTING.values(), ids=FITTING.keys())
def test_pressures_in_the_same_order_fit(arrays, one: Path, tmp_path: Path) -> None:
    pressure = np.load(one / "press.npy")
    points, quads, _ = surface_mesh(7)
    write_grid(one / SURFACE, points, quads, arrays(pressure))
    made = make_car(one)
    assert np.array_equal(made["surface_pressure"], np.delete(pressure, np.s_[16:112]))


@pytest.mark.slow
def test_the_documented_command_trains_and_reports_both_fields(shapenet_run) -> None:
    result = json.loads((shapenet_run.folder / "result.json").read_text())
    assert set(result["fields"]) == {"surface_pressure", "volume_velocity"}
    metrics, velocity = result["metrics"], "volume_velocity"
    assert 0 < metrics["surface_pressure/pooled_relative_l2"] < 1.5
    mse = np.mean([metrics[f"{velocity}/{component}/mse"] for component in "xyz"])
    assert metrics[f"{velocity}/mse"] == pytest.approx(mse, rel=1e-6)
    assert metrics[f"{velocity}/max"] == pytest.approx(max(metrics[f"{velocity}/{one}/max"] for one in "xyz"))
    assert set(result["baselines"]) == {"mean_field", "nearest_shape"}
    drag = result["scalars"]["drag_coefficient"]
    assert drag["dynamic_pressure"] == 245.0
    assert drag["density"] == 1.225
    assert drag["speed"] == pytest.approx(20.0)
    assert "(first: 1.72 m²)" in drag["reference_area"]
    assert 0 < metrics["drag_coefficient/floor_mae"] < 1e-3  # error of a sum over points
    assert "pitching_moment_coefficient" in result["scalars"]
    assert "the true field integrated on these points" in shapenet_run.out
    assert (shapenet_run.folder / "report.html").is_file()


@pytest.mark.slow
def test_a_split_is_evaluated_again_with_files_for_paraview(shapenet_run, noether) -> None:
    done = noether("evaluate", str(shapenet_run.folder), "--split", "train", "--vtk", "--json", code=0)
    result = json.loads(done.out)
    for path in map(Path, result["files"]):
        mesh = pyvista.read(path)
        field = "surface_pressure" if "_surface" in path.name else "volume_velocity"
        assert {field, f"{field}_prediction", f"{field}_error"} == set(mesh.point_data.keys())
        error = mesh.point_data[f"{field}_prediction"] - mesh.point_data[field]
        assert np.allclose(error, mesh.point_data[f"{field}_error"], atol=1e-5)
        assert set(mesh.celltypes) == {pyvista.CellType.QUAD if "_surface" in path.name else pyvista.CellType.VERTEX}
    worst = next(path for path in result["files"] if Path(path).name.startswith("worst") and "_surface" in path)
    mesh = pyvista.read(worst)
    error, truth = (np.linalg.norm(mesh.point_data[f"surface_pressure{part}"]) for part in ("_error", ""))
    assert error / truth >= result["metrics"]["surface_pressure/relative_l2"] - 1e-6


@pytest.mark.slow
def test_forces_not_to_be_had_and_a_damaged_car_are_said(shapenet_run, prepared, published, noether, tmp_path) -> None:
    root = tmp_path / "published"
    prepare_cars(published, root)
    config = tmp_path / "run" / "config.yaml"
    shutil.copytree(shapenet_run.folder, tmp_path / "run")
    config.write_text(config.read_text().replace(str(prepared), str(root)))
    done = noether("evaluate", str(tmp_path / "run"), code=0)
    assert "drag coefficient: it cannot be integrated: the samples hold no surface_area" in done.out
    broken = next((root / "cases").glob("param1-*")) / "volume.safetensors"
    broken.write_bytes(broken.read_bytes()[:-4] + b"xxxx")
    done = noether("train", "--hp", str(config), f"output_path={tmp_path}/runs")
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert str(broken) in done.err
