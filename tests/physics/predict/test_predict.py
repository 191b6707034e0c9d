"""`noether predict` applies a trained model to users' meshes and points, in their axes and units."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import pyvista
import torch
from shapenet_car_files import surface_mesh, unit_sphere, write_car

from noether import load_run
from noether.common.numbers import LENGTHS
from noether.config.compose import load_config
from noether.core.data.layout import CAR_SPACE, FRONTAL, FRONTAL_WITHOUT_YAW
from noether.core.models.build import build_model
from noether.core.precision import Precision
from noether.core.tasks.angles import as_pair
from noether.physics.cars.ellipsoid import EllipsoidCar
from noether.physics.cases.case_map import AxesMap
from noether.physics.cases.dataset import CasesDataset
from noether.physics.cases.mesh_source import FACES, ShapePart, read_part
from noether.physics.cases.surface_mesh import Holes, area_vectors, find_holes, triangles
from noether.physics.fields.fields import FieldsTask
from noether.physics.predict.inference import TrainedModel
from noether.physics.predict.shape_input import (
    FileAxes,
    Shape,
    as_trained,
    check_range,
    open_surface_warnings,
    read_points,
    read_shape,
    shown_by,
)
from noether.physics.predict.vtk_output import write_fields, write_on_shape
from tests.refusal import refusal

pytest_plugins = ("shapenet_car_runs",)

SMALL_RUN = Path(__file__).with_name("small_runs") / "upt"


@pytest.fixture
def read_here(monkeypatch) -> None:
    """Read meshes in this process; tests/physics/cases/test_mesh_files.py tests the separate process."""
    monkeypatch.setattr("noether.physics.predict.shape_input.read_mesh_apart", read_part)


def plain_stl(path: Path, points: np.ndarray, cells: np.ndarray) -> None:
    """Write ASCII STL in the style of a CAD program, with a name, capitals, indentation and zero normals."""
    lines = ["solid Body 1  (exported)"]
    for a, b, c in points[cells]:
        lines += ["  facet normal 0.0 0.0 0.0", "    outer loop"]
        lines += [f"      vertex {x:.9e} {y:.9e} {z:.9e}" for x, y, z in (a, b, c)]
        lines += ["    endloop", "  endfacet"]
    path.write_text("\n".join([*lines, "endsolid Body 1  (exported)", ""]))


def binary_stl(path: Path, points: np.ndarray, cells: np.ndarray) -> None:
    record = np.zeros(len(cells), [("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("more", "<u2")])
    record["corners"] = points[cells]
    path.write_bytes(b"made by hand".ljust(80) + np.array([len(cells)], "<u4").tobytes() + record.tobytes())


def with_pyvista(path: Path, points: np.ndarray, cells: np.ndarray) -> None:
    pyvista.PolyData.from_regular_faces(points, cells).save(path)


def ascii_stl_with_blank_line(path: Path, points: np.ndarray, cells: np.ndarray) -> None:
    plain_stl(path, points, cells)
    path.write_text(path.read_text().replace("endsolid", "\nendsolid"))


def with_field_data_in_words(path: Path, points: np.ndarray, cells: np.ndarray) -> None:
    mesh = pyvista.PolyData.from_regular_faces(points, cells)
    mesh.field_data["made by"] = ["a program", "of another house"]
    mesh.point_data["part"] = np.array(["body"] * len(points))
    mesh.point_data["pressure"] = points[:, 0]
    mesh.save(path)


def write_surface(path: Path, points: np.ndarray, cells: np.ndarray) -> None:
    write_fields(path, points, cells, {"pressure": points[:, 0]})


POINTS, QUADS, _ = surface_mesh(9)
WRITERS = {
    "ascii.stl": plain_stl,
    "binary.stl": binary_stl,
    "blank-line.stl": ascii_stl_with_blank_line,
    "mesh.ply": with_pyvista,
    "mesh.obj": with_pyvista,
    "field-data.vtk": with_field_data_in_words,
    "own-output.vtu": write_surface,
    "own-output.vtk": write_surface,
    "own-output.vtp": write_surface,
}


@pytest.mark.usefixtures("read_here")
@pytest.mark.parametrize(("name", "write"), WRITERS.items(), ids=WRITERS.keys())
def test_a_mesh_is_read_whoever_wrote_it(name, write, tmp_path: Path) -> None:
    write(tmp_path / name, POINTS.astype(np.float64), triangles(QUADS)[:, ::-1])  # with normals that point inwards
    shape = read_shape(tmp_path / name)
    assert len(shape.points) == 3586  # equal corners are merged, and unused points dropped
    assert np.einsum("ij,ij->i", shape.normals, shape.points - shape.points.mean(axis=0)).min() > 0
    if "field-data" in name:
        assert set(shape.values) == {"pressure"}
    thinned = as_trained(shape, shown_by(shape, 500))
    assert thinned.points.shape == thinned.normals.shape == (500, 3)
    assert {name: len(values) for name, values in thinned.values.items()} == dict.fromkeys(shape.values, 500)


def ball() -> tuple[np.ndarray, np.ndarray]:
    """Return the points and triangles of a closed body."""
    points, quads = unit_sphere()
    return points, triangles(quads)


@pytest.mark.usefixtures("read_here")
@pytest.mark.parametrize(
    ("faces", "holes"),
    [
        (lambda cells: cells, None),
        (lambda cells: cells[1:], "round 1 hole"),
        (lambda cells: np.delete(cells, np.arange(0, len(cells), 9), axis=0), "holes of about"),
    ],
    ids=["closed", "one-face-missing", "every-ninth-face-missing"],
)
def test_an_open_surface_is_named_with_the_area_that_is_missing(faces, holes, tmp_path: Path) -> None:
    closed = ball()
    with_pyvista(tmp_path / "body.ply", closed[0], faces(closed[1]))
    words = open_surface_warnings(tmp_path / "body.ply", read_shape(tmp_path / "body.ply"))
    assert bool(words) == (holes is not None)
    assert holes is None or holes in words[0]


@pytest.mark.usefixtures("read_here")
def test_faces_without_an_area_are_refused(tmp_path: Path) -> None:
    with_pyvista(tmp_path / "line.vtp", np.array([[0.0, 0, 0], [1, 0, 0], [2, 0, 0]]), np.array([[0, 1, 2]]))
    with refusal("shape-without-faces", seen="1 faces of area 0"):
        read_shape(tmp_path / "line.vtp")


def test_the_area_of_holes() -> None:
    points, cells = ball()
    gone = cells[::9]
    missing = np.linalg.norm(area_vectors(points, gone), axis=1).sum()
    found = find_holes(points, np.delete(cells, np.arange(0, len(cells), 9), axis=0))
    assert found.area == pytest.approx(missing, rel=1e-3)
    assert find_holes(points, cells) == Holes(0, 0, 0.0)


WINDINGS = {
    "patches-that-share-no-points": (
        lambda p, f: (p[f].reshape(-1, 3), np.arange(f.size).reshape(-1, 3)),
        Holes(0, 0, 0.0),
    ),
    "some-faces-turned-over": (
        lambda p, f: (p, np.where(np.arange(len(f))[:, None] < 1, f[:, ::-1], f)),
        Holes(0, 0, 0.0, 3),
    ),
    "one-of-two-bodies-inside-out": (
        lambda p, f: (np.concatenate([p, p + 3]), np.concatenate([f, f[:, ::-1] + len(p)])),
        Holes(0, 0, 0.0, 0, 0, 1),
    ),
    "some-faces-twice": (lambda p, f: (p, np.concatenate([f, f[:5]])), Holes(0, 0, 0.0, 0, 5)),
}


@pytest.mark.parametrize(("change", "found"), WINDINGS.values(), ids=WINDINGS.keys())
def test_a_surface_in_pieces_is_closed_and_one_that_is_wound_two_ways_is_named(change, found) -> None:
    points, faces = change(*ball())
    assert find_holes(points, faces) == found
    words = open_surface_warnings(Path("body.stl"), Shape.of_mesh(points, faces))
    assert len(words) == (found.against > 0) + (found.twice > 0) + (found.inwards > 0)


CAR = EllipsoidCar(half_length=2.2, height=1.2, half_width=0.9, yaw=0.17)
SPAN = {"area": {"low": [1.7], "high": [1.7]}}
AREAS = {
    "rule-of-the-built-in-cars": ({"area": FRONTAL_WITHOUT_YAW}, {}, {}, 2 * CAR.reference_area),
    "shadow-7-percent-larger": ({"area": FRONTAL}, {}, {}, 2.138 * CAR.reference_area),
    "given": ({"area": FRONTAL}, SPAN, {"area": 3.0}, 3.0),
    "the-same-in-every-case": ({}, SPAN, {}, 1.7),
    "of-each-case-and-not-given": ({}, {"area": {"low": [1.7], "high": [1.8]}}, {}, None),
    "of-an-old-checkpoint": ({}, {}, {}, None),
}


@pytest.mark.parametrize(("rules", "seen", "given", "area"), AREAS.values(), ids=AREAS)
def test_a_coefficient_is_on_the_reference_area_that_its_samples_have(rules, seen, given, area) -> None:
    points, faces = ball()
    shape = Shape.of_mesh(CAR.to_world(points * CAR.semi_axes), faces)  # The whole car.
    task = FieldsTask(
        {"surface_pressure": {"points": "surface_points"}},
        scalars={"lift": {"direction": [0.0, 1.0, 0.0], "dynamic_pressure": 245.0, "reference_area": "area"}},
    )
    task.space, task.reference_areas, task.seen.numbers = CAR_SPACE, rules, seen
    trained = TrainedModel(None, None, task, None, None)
    assert trained.case_numbers(shape, given) == ({} if area is None else {"area": pytest.approx(area, rel=0.02)})
    words = trained.lacking_words(shape, ["surface_pressure"], given)
    assert [text.endswith("--set area=NUMBER") for text in words] == ([True] if area is None else [])


LOW, HIGH = np.array([-1.0, 0, -2]), np.array([1.0, 1.5, 2])
BOX = np.array(np.meshgrid([-0.9, 0.9], [0, 1.4], [-1.9, 1.9])).reshape(3, -1).T


@pytest.mark.parametrize(
    ("factor", "shift", "fix"),
    [*((1 / LENGTHS[unit], 0, f"--scale {LENGTHS[unit]:g}") for unit in ("mm", "cm", "in")),
     (1e-3, 0, "--scale 1000"), (1, 10, "move and rotate"), (0.2, 0, "a shape as large as")],
    ids=["mm", "cm", "inches", "km", "elsewhere", "a-fifth-which-no-unit-explains"],
)  # fmt: skip
def test_what_the_model_knows_nothing_of_is_refused(factor, shift, fix) -> None:
    with refusal(fix=fix):
        check_range(Path("car.stl"), BOX * factor + shift, LOW, HIGH)


@pytest.mark.parametrize("unit", ["m", "in", "cm"])
def test_the_unit_that_fits_is_named_where_training_was_in_mm(unit: str) -> None:
    with refusal("shape-size", summary=f"is its unit of length {unit}?") as refused:
        check_range(Path("car.stl"), BOX / LENGTHS[unit] * 0.001, LOW, HIGH, scale=0.001)
    assert refused.value.fix == f"--scale {LENGTHS[unit]:g}"


def test_what_reaches_beyond_training_is_warned_of() -> None:
    assert check_range(Path("car.stl"), BOX, LOW, HIGH) == []
    (words,) = check_range(Path("car.stl"), BOX * [1, 1, 1.4], LOW, HIGH)
    assert "beyond the training range along z" in words


@pytest.mark.parametrize(
    ("array", "seen"),
    [(np.zeros((5, 2)), "shape (5, 2)"), (np.full((5, 3), np.nan), "values that are not finite"),
     (np.zeros((0, 3)), "shape (0, 3)")],
    ids=["2d", "nan", "none"],
)  # fmt: skip
def test_points_that_are_none_are_refused(array, seen: str, tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", array)
    with refusal("shape-not-points", seen=seen):
        read_points(tmp_path / "p.npy")


@pytest.mark.parametrize(
    ("model", "count", "words"),
    [("transolver_small", 500, "no surface_normals"), ("upt_small", 20, "64 supernodes cannot be taken from 20")],
)
def test_points_that_lack_what_the_model_reads_are_refused(model, count, words, tmp_path: Path) -> None:
    points = torch.from_numpy(POINTS[np.unique(QUADS)].astype(np.float32))  # corners of faces
    air = points + torch.tensor([0.0, 2.0, 0.0])
    fields = {"surface_pressure": points[:, 0], "volume_velocity": air}
    config = load_config([f"model={model}"])
    task = FieldsTask(**config.task.options())
    task.fit([{"surface_points": points, "volume_points": air, **fields}])
    built = build_model(config.model.kind, **config.model.options())
    cpu = torch.device("cpu")
    trained = TrainedModel(config, built, task, cpu, Precision("float32", "cpu"))
    np.save(tmp_path / "points.npy", POINTS[:count])
    shape = read_shape(tmp_path / "points.npy")
    with refusal(seen=words):
        trained.predict_shape(trained.shape_batch(shape, {}, {}), 100)


@pytest.mark.slow
def test_the_test_split_has_the_metrics_of_evaluate_from_its_own_files(shapenet_run, raw_archive, noether, tmp_path):
    evaluated = json.loads((shapenet_run.folder / "result.json").read_text())
    found = []
    for car in sorted((raw_archive / "param0").iterdir()):
        out = tmp_path / f"{car.name}.vtu"
        done = noether(
            "predict", str(shapenet_run.folder), "--mesh", str(car / "quadpress_smpl.vtk"),
            "--truth", str(car / "press.npy"), "--out", str(out), "--chunk", "1000",
        )  # fmt: skip
        assert done.code == 0, done.err
        mesh = pyvista.read(out)
        error, truth = mesh.point_data["surface_pressure_error"], mesh.point_data["surface_pressure"]
        used = np.isfinite(error)  # a point without a face has no value
        found.append(float(np.linalg.norm(error[used]) / np.linalg.norm(truth[used])))
        assert "drag coefficient:" in done.out
    assert np.mean(found) == pytest.approx(evaluated["metrics"]["surface_pressure/relative_l2"], rel=1e-4)


@pytest.mark.slow
def test_a_finer_mesh_of_another_program_and_points_in_the_air(noether, tmp_path: Path) -> None:
    plain_stl(tmp_path / "car.stl", POINTS.astype(np.float64) * 1000, triangles(QUADS))
    np.save(tmp_path / "air.npy", air := np.random.default_rng(0).uniform([-1, 1.9, -3], [1, 3.5, 3], (700, 3)) * 1000)
    asked = ("predict", str(SMALL_RUN), "--mesh", str(tmp_path / "car.stl"))
    refused = noether(*asked)
    assert (refused.code, "--scale 0.001" in refused.err) == (2, True)
    done = noether(*asked, "--scale", "0.001", "--volume", str(tmp_path / "air.npy"), "--out", str(tmp_path / "o.vtp"))
    assert done.code == 0, done.err
    assert "--out" not in done.err
    for name, field, shape in (("o.vtp", "surface_pressure", (3586,)), ("o_volume.vtp", "volume_velocity", (700, 3))):
        mesh = pyvista.read(tmp_path / name)
        assert set(mesh.point_data.keys()) == {f"{field}_prediction"}
        found = mesh.point_data[f"{field}_prediction"]
        assert found.shape == shape
        assert np.isfinite(found).all()
    assert pyvista.read(tmp_path / "o.vtp").n_cells == len(triangles(QUADS))
    np.testing.assert_allclose(pyvista.read(tmp_path / "o_volume.vtp").points, air, rtol=1e-6, err_msg="in mm, too")


def test_an_array_of_the_mesh_that_cannot_be_the_truth_of_its_field_is_named(noether, tmp_path: Path) -> None:
    write_fields(tmp_path / "car.vtp", POINTS, QUADS, {"surface_pressure": np.zeros((len(POINTS), 3))})
    done = noether("predict", str(SMALL_RUN), "--mesh", str(tmp_path / "car.vtp"), "--out", str(tmp_path / "o.vtp"))
    assert done.code == 0, done.err
    assert "surface_pressure is not compared" in " ".join(done.out.split())
    assert "relative L2" not in done.out


@pytest.mark.slow
def test_wrong_files_are_refused_in_words(noether, tmp_path: Path) -> None:
    write_car(tmp_path / "car", seed=3)
    run = shutil.copytree(SMALL_RUN, tmp_path / "run")
    torn = tmp_path / "torn.stl"
    torn.write_bytes(b"solid nothing")
    np.save(tmp_path / "one.npy", np.zeros(1))
    np.save(tmp_path / "of-cells.npy", np.zeros(4000))
    (tmp_path / "empty.vtp").touch()
    (tmp_path / "table.csv").write_text("p\n1\n")
    np.save(tmp_path / "vectors.npy", np.zeros((3682, 3)))
    car = ["--mesh", str(tmp_path / "car" / "quadpress_smpl.vtk"), "--truth"]
    for words, message in (
        (["--mesh", "/nowhere.stl"], "no file /nowhere.stl"),
        (["--mesh", str(tmp_path / "car")], r"fix\s+ls \S*/car\s"),
        (["--mesh", str(tmp_path / "empty.vtp")], "an empty file"),
        ([*car, str(tmp_path / "table.csv")], "a file of another kind"),
        (["--mesh", str(torn), "--set", "wind_speed: 32"], "--set wind_speed=NUMBER"),
        ([], "--mesh is needed"),
        (["--mesh", str(torn), "--out", "x.png"], "has a suffix whose format noether cannot write"),
        (["--mesh", str(torn)], r"torn.stl (cannot be read|has no triangles|holds no points)"),
        ([*car, str(tmp_path / "one.npy")], r"shape \(1,\)"),
        ([*car, str(tmp_path / "of-cells.npy")], r"shape \(4000,\)"),
        ([*car, str(tmp_path / "vectors.npy")], r"shape \(3682, 3\)"),
    ):
        done = noether("predict", str(run), *words)
        assert (done.code, "Traceback" in done.err) == (2, False), done.err
        assert re.search(message, done.err), done.err
    assert not (run / "logs").exists(), "`predict` must not write logs to the run's folder"


@pytest.mark.usefixtures("read_here")
def test_meshes_of_every_format_are_read_and_written_with_all_their_points(tmp_path: Path) -> None:
    grid = pyvista.ImageData(dimensions=(4, 3, 2), spacing=(1, 2, 3))
    grid.save(tmp_path / "box.vti")
    pyvista.ImageData(dimensions=(4, 3, 1)).save(tmp_path / "plane.vti")
    np.savez(tmp_path / "cloud.npz", points=grid.points, t=np.arange(grid.n_points))
    rows = [",".join(map(str, point)) for point in grid.points]
    (tmp_path / "cloud.csv").write_text("\n".join(["x,y,z", *rows]))
    for name, out in (("box.vti", "o.vtu"), ("cloud.npz", "o.vtu"), ("cloud.csv", "o.vtu"), ("cloud.csv", "o.vtp")):
        shape = read_shape(tmp_path / name, part=ShapePart("points"))
        write_on_shape(tmp_path / out, tmp_path / name, shape, {"p": shape.points[:, 0]})
        made = pyvista.read(tmp_path / out)
        assert np.asarray(made.points) == pytest.approx(np.asarray(grid.points)), name
        assert made.point_data["p"] == pytest.approx(np.asarray(grid.points)[:, 0]), name
    plane = read_shape(tmp_path / "plane.vti")
    assert plane.areas.sum() == pytest.approx(6)  # its cells are pixels, whose corners have another order in VTK


def test_a_cloud_is_read_by_the_coordinates_of_the_map(tmp_path: Path) -> None:
    (tmp_path / "cloud.csv").write_text("east,north,height,x,y\n1,2,3,0,0\n4,5,6,0,0\n")
    text = "sets: {p: {file: '{case}.csv', kind: points, coordinates: [east, north, height], fields: {x: {array: x}}}}"
    metadata = {"map": text, "axes": None, "parameters": {}, "outputs": {}, "fields": {"p_x": {"components": 1}},
                "sets": {}, "constants": {}}  # fmt: skip
    own = CasesDataset(tmp_path, [], metadata).about()["space"]["sets"]["p"]
    task = SimpleNamespace(space={"sets": {"p": own}})
    part = TrainedModel.part_of(SimpleNamespace(task=task), "p_points")
    shape = read_shape(tmp_path / "cloud.csv", part=part)
    np.testing.assert_array_equal(shape.points, [[1, 2, 3], [4, 5, 6]])
    write_on_shape(tmp_path / "out.vtp", tmp_path / "cloud.csv", shape, {"p": shape.points[:, 0]}, part)
    np.testing.assert_array_equal(pyvista.read(tmp_path / "out.vtp").points, shape.points)


BLOCKS = [(ShapePart("cells"), {"solid"}), (FACES, {"floor", "lid"}), (ShapePart(patches=("l*",)), {"lid"})]


@pytest.mark.parametrize(("part", "names"), BLOCKS, ids=["the-only-one-of-its-kind", "all-faces", "by-name"])
def test_of_several_blocks_those_are_read_and_written_that_the_map_means(part, names, tmp_path: Path) -> None:
    source, blocks = tmp_path / "all.vtm", pyvista.MultiBlock()
    blocks["solid"] = pyvista.ImageData(dimensions=(4, 3, 2)).cast_to_unstructured_grid()
    blocks["floor"], blocks["lid"] = pyvista.Plane(i_resolution=3), pyvista.Plane(i_resolution=2, j_resolution=5)
    for name in ("solid", "floor", "lid"):
        blocks[name].point_data["p"] = np.asarray(blocks[name].points)[:, 0]
    blocks.save(source)
    shape = read_shape(source, part=part)
    points = sum(blocks[name].n_cells if part.at == "cells" else blocks[name].n_points for name in names)
    assert len(shape.points) == points
    write_on_shape(tmp_path / "out.vtu", source, shape, {"q": shape.points[:, 0]}, part)
    made = pyvista.read(tmp_path / "out.vtu")
    assert made.n_cells == sum(blocks[name].n_cells for name in names)
    of_cells = part.at == "cells"
    places = np.asarray(made.cell_centers().points if of_cells else made.points)
    assert (made.cell_data if of_cells else made.point_data)["q"] == pytest.approx(places[:, 0])
    assert made.point_data["p"] == pytest.approx(np.asarray(made.points)[:, 0])
    with refusal("shape-of-several-blocks", seen="solid, floor, lid"):
        read_shape(source, part=ShapePart("points", ("wing",)))


ROTATION = AxesMap(wind="-y", up="+z").rotation()
FILES = {"rotation": ROTATION.tolist(), "metres": 0.001, "words": "wind -y, up +z"}


def test_fields_come_back_in_the_axes_of_the_shape() -> None:
    files = FileAxes.of({"files": FILES}, "files", {"phase": (0.0, 360.0)})
    rng = np.random.default_rng(0)
    vectors, tensors = rng.normal(size=(5, 3)), rng.normal(size=(5, 9))
    np.testing.assert_allclose(files.points(np.array([[0, -1.0, 0]])), [[0, 0, 1]], atol=1e-12)
    angles = np.array([0.0, 1.0, 179.0, 181.0, 359.0])
    given = {"phase": 0.7 * as_pair(angles, (-180, 180)), "v": files.points(vectors), "p": vectors[:, 0], "t": tensors}
    back = files.back({**given, "force": ROTATION @ vectors[0]})
    np.testing.assert_allclose(back["v"], vectors)
    np.testing.assert_allclose(back["p"], vectors[:, 0])
    np.testing.assert_allclose(back["phase"], angles, atol=1e-9)
    np.testing.assert_allclose(back["force"], vectors[0])
    np.testing.assert_allclose(back["t"].reshape(5, 3, 3), ROTATION.T @ tensors.reshape(5, 3, 3) @ ROTATION, atol=1e-12)


@pytest.mark.parametrize(("space", "axes"), [({}, "files"), ({"files": FILES}, "model")])
def test_without_them_nothing_is_turned(space, axes) -> None:
    own = FileAxes.of(space, axes, {})
    assert (own.metres, own.words) == (1.0, "")
    np.testing.assert_array_equal(own.rotation, np.eye(3))


def test_a_prediction_in_the_files_axes_is_that_in_the_models() -> None:
    run = load_run(SMALL_RUN)
    rng = np.random.default_rng(0)
    points, air = rng.uniform([-0.8, 0, -2], [0.8, 1.2, 2], (64, 3)), rng.uniform([-1, 1.5, -3], [1, 3, 3], (50, 3))
    expected = run.predict(points, volume=air)
    run.trained.task.space["files"] = FILES
    found = run.predict(points @ ROTATION, volume=air @ ROTATION)
    np.testing.assert_allclose(found["surface_pressure"], expected["surface_pressure"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["volume_velocity"], expected["volume_velocity"] @ ROTATION, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found["points"], points @ ROTATION)
    again = run.predict(points, volume=air, axes="model")
    np.testing.assert_array_equal(again["volume_velocity"], expected["volume_velocity"])


def test_prepared_cases_say_what_their_files_were() -> None:
    rest = "sets: {s: {file: '{case}.vtp', kind: surface}}, outputs: {drag: {file: '{case}.csv', column: drag}}"
    for text, expected in ((f"{{axes: {{wind: -y, up: +z}}, length: mm, {rest}}}", FILES), (f"{{{rest}}}", None)):
        metadata = {"map": text, "axes": None, "parameters": {}, "outputs": {}, "fields": {}, "sets": {},
                    "constants": {}}  # fmt: skip
        assert CasesDataset(Path(), [], metadata).about()["space"].get("files") == expected
