"""The embedded cars: the flow is exact, samples are even and reproducible, preparation is safe, files are checked."""

import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from packed_files import write_packed
from processes import is_running, wait_for
from scipy.spatial import cKDTree
from scipy.special import elliprd

import noether
from noether.common.errors import RequestError
from noether.core.data import shared_work
from noether.core.data.packed import open_packed
from noether.physics.cars import ellipsoid
from noether.physics.cars import potential_flow as flow
from noether.physics.cars.ellipsoid import EllipsoidCar, EllipsoidDataset, draw_car, make_sample, point_seed
from noether.physics.settings import EllipsoidDatasetConfig
from tests.refusal import refusal

CAR = EllipsoidCar(half_length=2.1, height=0.9, half_width=0.8, yaw=0.2)
SETTINGS = {"train_shapes": 10, "test_shapes": 3, "surface_points": 48, "volume_points": 33, "seed": 5}
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(noether.__file__).parents[1])}


def settings(**changed):
    return EllipsoidDatasetConfig(**{**SETTINGS, **changed})


@pytest.fixture(scope="module")
def sample():
    return make_sample(CAR, 500, 601, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ellipsoid")
    ellipsoid.prepare(folder, settings())
    return folder


def test_positive_yaw_turns_the_car_towards_x():
    np.testing.assert_allclose(CAR.to_world([0, 0, 1]), [np.sin(0.2), 0, np.cos(0.2)], atol=1e-15)
    np.testing.assert_allclose(CAR.to_body(CAR.to_world([1, 2, 3])), [1, 2, 3], atol=1e-14)


def test_nothing_flows_through_the_ground_or_the_car(sample):
    ground = np.random.default_rng(0).uniform([-6, 0, -6], [6, 0, 6], (500, 3))
    level = np.sum((CAR.to_body(ground) / CAR.semi_axes) ** 2, axis=-1)
    assert np.abs(CAR.velocity(ground[level > 1])[:, 1]).max() < 1e-13
    points = sample["surface_points"].astype(np.float64)
    above = CAR.velocity(points + 1e-6 * CAR.normals(points))
    assert np.abs(np.sum(above * CAR.normals(points), axis=-1)).max() < 1e-3


def test_a_car_depends_on_seed_split_and_index_alone():
    places = [(seed, split, i) for seed in (0, 1, 2**40) for split in ("train", "test") for i in (0, 1, 7)]
    assert len({draw_car(*place) for place in places}) == len(places)
    assert len({point_seed(*place) for place in places}) == len(places)
    # The same seed must give the same data on every machine. If these values change, raise FORMAT_VERSION.
    car = draw_car(0, "train", 7)
    assert (car.half_length, car.height) == pytest.approx((1.8997291745636984, 0.8700009397572086), rel=1e-14)
    assert (car.half_width, car.yaw) == pytest.approx((1.0517173732093554, 0.08206354163403418), rel=1e-14)
    assert point_seed(0, "train", 7) == 7370841094474917615


def test_a_sample_is_the_same_in_a_split_of_any_size(folder, tmp_path):
    ellipsoid.prepare(tmp_path, settings(train_shapes=4))
    few, many = (open_packed(root / "train.safetensors").arrays for root in (tmp_path, folder))
    for key in many:
        np.testing.assert_array_equal(few[key], many[key][:4])


def test_volume_points_alternate_between_the_box_and_the_body():
    points = ellipsoid.sample_volume(CAR, 8001, seed=0)
    box, near = points[0::2], points[1::2]
    upstream = (box[:, 2] < -2.5).mean()  # the share of points upstream of the car, which is a share of the volume
    air = 4 * 4.5 * 10.5 - 2 / 3 * np.pi * CAR.semi_axes.prod()
    assert upstream == pytest.approx(4 * 4.5 * 2 / air, abs=0.003)
    # The distance to the body is that to the nearest of many points on its surface.
    distance = cKDTree(ellipsoid.sample_surface(CAR, 60000, seed=1)).query(near)[0]
    assert distance.min() > 0.0009
    assert distance.max() < 0.701
    assert np.quantile(distance, [0.25, 0.5, 0.75]) == pytest.approx([0.7 / 16, 0.7 / 4, 0.7 * 9 / 16], abs=0.01)


@pytest.mark.parametrize("sample", [ellipsoid.sample_surface, ellipsoid.sample_volume])
@pytest.mark.parametrize("count", [64, 301, 777])
def test_the_first_points_are_those_of_a_smaller_number(sample, count):
    np.testing.assert_array_equal(sample(CAR, count, 3), sample(CAR, 2048, 3)[:count])


@pytest.mark.parametrize("car", [EllipsoidCar(2.6, 1.6, 1.1, s * np.pi / 12) for s in (-1, 1)], ids=["left", "right"])
def test_the_largest_cars_leave_room_in_the_box(car):
    points = ellipsoid.sample_volume(car, 4000, seed=0)
    assert ((points >= ellipsoid.BOX_LOW) & (points <= ellipsoid.BOX_HIGH)).all()


@pytest.mark.parametrize(
    "car",
    [EllipsoidCar(5.0, 1, 1), EllipsoidCar(2, 5.0, 1), EllipsoidCar(2, 1, 2.1), EllipsoidCar(2.5, 1, 1, 1.2)],
    ids=["long", "high", "wide", "across"],
)
def test_a_car_that_sticks_out_of_the_box_is_refused(car):
    with pytest.raises(ValueError, match="does not fit into the box"):
        ellipsoid.sample_volume(car, 10, seed=0)


def test_a_sample_has_the_promised_arrays(sample):
    assert {key: array.shape for key, array in sample.items()} == ellipsoid.sample_shapes(500, 601)
    assert {array.dtype for array in sample.values()} == {np.dtype(np.float32)}
    assert all(np.isfinite(array).all() for array in sample.values())
    assert sample["car"] == pytest.approx([2.1, 0.9, 0.8, 0.2])
    assert sample["reference_area"] == pytest.approx([np.pi / 2 * 0.9 * 0.8])
    assert sample["lift_coefficient"] == pytest.approx([CAR.lift_coefficient])
    assert sample["surface_area"].sum() == pytest.approx(CAR.curved_area, rel=1e-5)


def test_fields_are_exact_at_the_stored_points(sample):
    np.testing.assert_allclose(sample["volume_velocity"], CAR.velocity(sample["volume_points"]), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(sample["surface_pressure"], CAR.pressure(sample["surface_points"]), atol=1e-4)


def test_sdf_is_the_distance_to_the_nearest_surface_point(sample):
    offsets = sample["volume_points"][:, None].astype(np.float64) - sample["surface_points"]
    distances = np.linalg.norm(offsets, axis=-1)
    np.testing.assert_allclose(sample["volume_sdf"], distances.min(axis=1), rtol=1e-6)
    nearest = offsets[np.arange(601), distances.argmin(axis=1)]
    directions = nearest / np.linalg.norm(nearest, axis=-1, keepdims=True)
    np.testing.assert_allclose(sample["volume_normals"], directions, atol=1e-6)


@pytest.mark.parametrize(("count", "floor"), [(512, 0.995), (1024, 0.998), (3586, 0.9997)])
def test_integration_floor_of_the_lift_coefficient(count, floor):
    exact, summed = [], []
    for i in range(60):
        car = draw_car(0, "test", i)
        s = make_sample(car, count, 0, point_seed(0, "test", i))
        force = -np.sum(s["surface_pressure"] * s["surface_normals"][:, 1] * s["surface_area"])
        summed.append(force / (ellipsoid.DYNAMIC_PRESSURE * s["reference_area"][0]))
        exact.append(car.lift_coefficient)
    exact, error = np.array(exact), np.array(summed) - np.array(exact)
    r2 = 1 - np.sum(error**2) / np.sum((exact - exact.mean()) ** 2)
    print(f"{count} points: R² {r2:.6f}, rms error {error.std():.5f}, largest {np.abs(error).max():.5f}")
    assert r2 > floor
    assert np.abs(error).max() < 1.2 / np.sqrt(count)


def test_the_data_set_gives_tensors_that_share_the_map(folder):
    torch = pytest.importorskip("torch")
    dataset = EllipsoidDataset(folder / "train.safetensors")
    assert len(dataset) == 10
    assert [dataset.name(i) for i in (0, 9)] == ["train-0000", "train-0009"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample = dataset[7]
    car = draw_car(5, "train", 7)
    lift = 0.5 * 1.225 * 20**2 * car.lift_coefficient * car.reference_area
    assert sample.pop("pressure_force").numpy() == pytest.approx([0, lift, 0], rel=1e-5)
    assert sample.pop("pressure_moment").numpy() == pytest.approx([0, car.yawing_moment, 0], rel=1e-5)
    expected = make_sample(draw_car(5, "train", 7), 48, 33, point_seed(5, "train", 7))
    assert sample.keys() == expected.keys()
    for key, tensor in sample.items():
        assert tensor.dtype == torch.float32
        assert tensor.data_ptr() == dataset.packed.arrays[key][7].ctypes.data
        np.testing.assert_array_equal(tensor.numpy(), expected[key])


@pytest.mark.parametrize("index", [10, -11], ids=["past-the-end", "before-the-start"])
def test_a_sample_that_is_not_there_is_an_index_error(folder, index):
    for read in (EllipsoidDataset.__getitem__, EllipsoidDataset.name):
        with pytest.raises(IndexError):
            read(EllipsoidDataset(folder / "train.safetensors"), index)


def test_two_workers_make_the_same_files_as_one(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(ellipsoid, "POINTS_PER_WORKER", 1)  # without this, one worker would make all points
    started, calls, pool = [], [], shared_work.ProcessPoolExecutor
    counted = lambda n, *rest, **more: started.append(n) or pool(n, *rest, **more)  # noqa: E731
    monkeypatch.setattr(shared_work, "ProcessPoolExecutor", counted)
    ellipsoid.prepare(tmp_path, settings(), workers=2, progress=lambda done, total: calls.append((done, total)))
    assert started == [2]
    assert calls[-1] == (13, 13)
    assert calls == sorted(set(calls))
    for split in ellipsoid.SPLITS:
        name = f"{split}.safetensors"
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_only_what_is_missing_is_made(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "test.safetensors").unlink()
    before = (tmp_path / "train.safetensors").stat()
    calls = []
    for _ in range(2):
        ellipsoid.prepare(tmp_path, settings(), progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (3, 3)
    assert len(calls) == 3
    assert (tmp_path / "train.safetensors").stat().st_mtime_ns == before.st_mtime_ns
    assert (tmp_path / "test.safetensors").read_bytes() == (folder / "test.safetensors").read_bytes()


def test_neither_making_nor_checking_imports_torch(tmp_path):
    script = f"""
import sys
from pathlib import Path
from noether.physics.settings import EllipsoidDatasetConfig
from noether.physics.cars import ellipsoid
folder = Path({str(tmp_path)!r})
ellipsoid.prepare(folder, EllipsoidDatasetConfig(**{SETTINGS}))
ellipsoid.check_folder(folder)
print("torch" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("False\n", "")


PREPARER = """
import sys, time
from pathlib import Path
from noether.physics.settings import EllipsoidDatasetConfig
from noether.physics.cars import ellipsoid
folder, go, workers, train = sys.argv[1:]
print("ready", flush=True)
while not Path(go).exists():
    time.sleep(0.001)
report = lambda done, total: print("made", done, flush=True)
if __name__ == "__main__":
    sizes = {"test_shapes": 3, "surface_points": 48, "volume_points": 33, "seed": 5}
    dataset = EllipsoidDatasetConfig(train_shapes=int(train), **sizes)
    ellipsoid.prepare(Path(folder), dataset, workers=int(workers), progress=report)
"""


def start_preparer(folder, go, workers=1, train=10):
    command = [sys.executable, "-c", PREPARER, str(folder), str(go), str(workers), str(train)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def test_two_processes_that_prepare_one_folder_share_the_work(folder, tmp_path):
    target, go = tmp_path / "data", tmp_path / "go"
    processes = [start_preparer(target, go) for _ in range(2)]
    go.touch()
    made = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(map(len, map(str.splitlines, made)))[0] == 0  # one process made all of it
    files = {f"{split}.safetensors{ending}" for split in ("train", "test") for ending in ("", ".sha256")}
    assert {path.name for path in target.iterdir()} == {".lock", *files}
    for split in ellipsoid.SPLITS:
        name = f"{split}.safetensors"
        assert (target / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are looked up in /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path):
    (tmp_path / "go").touch()
    process = start_preparer(tmp_path / "data", tmp_path / "go", workers=2, train=100_000)
    assert process.stdout.readline().startswith("made")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    assert len(children) >= 2
    wait_for("their end", lambda: not any(map(is_running, map(int, children))), 10)
    assert not (tmp_path / "data" / "train.safetensors").exists()

    # The next preparation removes partial files, but those of another host only when they are an hour old.
    (partial,) = (tmp_path / "data").glob(".train.*.partial")
    others = partial.with_name(".test.safetensors.n9.1-0.partial")
    others.touch()
    ellipsoid.prepare(tmp_path / "data", settings())
    assert not partial.exists()
    assert others.exists()
    os.utime(others, (0, 0))
    (tmp_path / "data" / "test.safetensors").unlink()
    ellipsoid.prepare(tmp_path / "data", settings())
    assert not others.exists()


def test_files_of_another_order_are_not_taken_for_this_one(folder):
    with refusal("ellipsoid-of-other-settings", seen="'surface_points': '48'"):
        ellipsoid.prepare(folder, settings(surface_points=49))


def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path):
    (tmp_path / "file").touch()
    with refusal("ellipsoid-not-written", fix="XDG_CACHE_HOME"):
        ellipsoid.prepare(tmp_path / "file" / "data", settings())


@pytest.mark.parametrize("variable", ["/big/cache", "relative/is/ignored", None])
def test_cache_folder_follows_xdg(monkeypatch, variable):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if variable:
        monkeypatch.setenv("XDG_CACHE_HOME", variable)
    parent = variable if variable == "/big/cache" else "/home/ada/.cache"
    name = "train10-test3-surface48-volume33-seed5-v1"
    assert ellipsoid.cache_folder(settings()) == Path(parent, "noether", "ellipsoid", name)


def packed_again(folder, **changed):
    """Pack the test split again, without its distances (volume_sdf) and with the arrays `changed`."""
    packed = open_packed(folder / "test.safetensors")
    kept = {key: np.array(array) for key, array in packed.arrays.items() if key != "volume_sdf"}
    write_packed(packed.path, {**kept, **changed})


DAMAGES = {
    "no such folder": shutil.rmtree,
    "no test.safetensors": lambda folder: (folder / "test.safetensors").unlink(),
    "bytes": lambda folder: os.truncate(path := folder / "test.safetensors", path.stat().st_size - 1),
    "no volume_sdf": lambda folder: packed_again(folder),
    r"volume_sdf float64 \(3, 33\)": lambda folder: packed_again(folder, volume_sdf=np.zeros((3, 33))),
}


@pytest.mark.parametrize(("seen", "damage"), DAMAGES.items())
def test_a_dataset_root_that_lacks_the_data_is_refused(folder, tmp_path, damage, seen):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    ellipsoid.check_folder(copy)
    damage(copy)
    with pytest.raises(RequestError, match=seen) as error:
        ellipsoid.check_folder(copy)
    assert str(copy) in error.value.summary
    assert error.value.expected
    assert error.value.fix


SHAPES = [
    pytest.param((1.0, 1.0, 1.0), id="sphere"),
    pytest.param((0.7, 1.6, 2.6), id="tall-and-long"),
    pytest.param((1.1, 0.55, 2.6), id="flat-and-long"),
    pytest.param((2.0, 2.0, 0.3), id="disc"),
    pytest.param((0.3, 0.3, 3.0), id="needle"),
]
OBLIQUE = np.array([3.0, -5.0, 20.0])


def sphere_directions(count, seed=0):
    directions = np.random.default_rng(seed).normal(size=(count, 3))
    return directions / np.linalg.norm(directions, axis=-1, keepdims=True)


@pytest.mark.parametrize("decades", [1, 4, 8])
def test_the_elliptic_integral_is_that_of_scipy(decades):
    x, y, z = 10 ** np.random.default_rng(0).uniform(-decades, decades, (3, 20_000))
    assert np.abs(flow.carlson_rd(x, y, z) / elliprd(x, y, z) - 1).max() < 1.5e-15


@pytest.mark.parametrize("axes", SHAPES)
def test_volume_velocity_reaches_the_surface_velocity(axes):
    points = np.array(axes) * sphere_directions(500)
    on_surface = flow.surface_velocity(axes, OBLIQUE, points)

    def difference(offset):
        outside = flow.volume_velocity(axes, OBLIQUE, points * (1 + offset))
        return np.abs(outside - on_surface).max() / np.linalg.norm(OBLIQUE)

    assert difference(0) < 2e-11
    assert difference(1e-8) == pytest.approx(1e-2 * difference(1e-6), rel=1e-2)  # linear in the offset


@pytest.mark.parametrize("axes", SHAPES[:3])
def test_divergence_and_curl_vanish(axes):
    points = np.array(axes) * sphere_directions(200) * np.linspace(1.2, 4, 200)[:, None]
    stream = OBLIQUE / np.linalg.norm(OBLIQUE)
    h = 4e-3
    jacobian = np.zeros((200, 3, 3))  # [:, j, i] = ∂_j u_i, eighth-order central differences
    for j, step in enumerate(h * np.eye(3)):
        for n, weight in enumerate((4 / 5, -1 / 5, 4 / 105, -1 / 280), start=1):
            ahead, behind = (flow.volume_velocity(axes, stream, points + s * n * step) for s in (1, -1))
            jacobian[:, j] += weight * (ahead - behind) / h
    assert np.abs(jacobian).max() > 0.1  # the derivatives that cancel are not small
    assert np.abs(np.trace(jacobian, axis1=1, axis2=2)).max() < 1e-9
    assert np.abs(jacobian - jacobian.transpose(0, 2, 1)).max() < 1e-9


def test_hemisphere_on_the_ground_has_lift_eleven_sixteenths():
    assert flow.half_force_coefficients((1.7, 1.7, 1.7), (0, 0, 20))[1] == pytest.approx(11 / 16, abs=1e-14)


@pytest.mark.parametrize("axes", SHAPES)
def test_yawing_moment_is_the_quadrature_of_the_pressure_and_the_others_vanish(axes):
    stream = np.array([20 * np.sin(0.25), 0.0, 20 * np.cos(0.25)])
    axes = np.asarray(axes)
    directions, weights = flow.hemisphere_rule(160, 320)
    points = axes * directions
    cp = flow.pressure_coefficient(stream, flow.surface_velocity(axes, stream, points))
    moment = -(cp * weights) @ np.cross(points, axes.prod() * directions / axes)
    assert np.abs(moment - [0, flow.half_yawing_moment(axes, stream), 0]).max() < 1e-12


REFUSED = {
    **{f"axes {axes}": (flow.alpha, (axes,), "semi-axes must be three positive finite numbers")
       for axes in ((1, 1), (1, 0, 1), (1, -2, 1), (1, np.nan, 1))},
    **{f"{point} is inside": (flow.volume_velocity, ((1.1, 0.55, 2.6), OBLIQUE, [point, (5.0, 5.0, 5.0)]), "1 of 2 ")
       for point in ((0.0, 0.5499, 0.0), (np.nan, 3.0, 0.0))},
    **{of.__name__: (of, ((1, 1, 1), (0, 1, 20)), "along the ground")
       for of in (flow.half_force_coefficients, flow.half_yawing_moment)},
}  # fmt: skip


@pytest.mark.parametrize(("of", "arguments", "words"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_flow_is_refused(of, arguments, words):
    with pytest.raises(ValueError, match=words):
        of(*arguments)
