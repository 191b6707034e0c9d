"""Raw ShapeNet-Car cars: read from every kind of archive, and refused by name where something does not fit."""

import io
import resource
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from shapenet_car_files import FIRST, UNUSED, surface_mesh, volume_mesh, write_car, write_grid

from noether.data.shapenet_car_raw import EXCLUDED, list_cars, make_car, raw_cars
from noether.errors import RequestError
from tests.refusal import refusal

pytest_plugins = ("shapenet_car_fixtures",)


def the_car(source: Path):
    (car,) = raw_cars(source, lambda param, name: True)
    return car


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """The folder of a source with one car."""
    folder = tmp_path / "training_data" / "param3" / "abc"
    write_car(folder, seed=7)
    return folder


@pytest.mark.parametrize("binary", [False, True], ids=["ascii", "binary"])
def test_a_car_is_what_its_files_say(binary, tmp_path: Path) -> None:
    write_car(tmp_path / "param3" / "abc", seed=7, binary=binary)
    arrays = make_car(the_car(tmp_path))
    points, _, pressure = surface_mesh(7)
    volume, _, velocity = volume_mesh(points, 7)
    used = np.r_[:FIRST, FIRST + UNUSED : len(points)]  # press.npy must lose the same points as the surface
    assert np.array_equal(arrays["surface_points"], points[used])
    assert np.array_equal(arrays["surface_pressure"], pressure[used])
    assert np.array_equal(arrays["volume_points"], volume[: -len(points)])
    assert np.array_equal(arrays["volume_velocity"], velocity[: -len(points)])
    gaps = np.linalg.norm(volume[: -len(points), None] - points[None], axis=2)
    assert arrays["volume_sdf"] == pytest.approx(gaps.min(axis=1), abs=1e-5)  # of all 3682 points, by brute force
    nearest = points[gaps.argmin(axis=1)]
    away = nearest + arrays["volume_sdf"][:, None] * arrays["volume_normals"]
    assert away == pytest.approx(arrays["volume_points"], abs=1e-5)
    centre = points[used].mean(axis=0)
    assert (np.einsum("ij,ij->i", arrays["surface_normals"], points[used] - centre) > 0).all()
    assert {key: value.dtype for key, value in arrays.items()} == {
        key: np.dtype(np.int32 if key == "surface_quads" else np.float32) for key in arrays
    }


def as_zip(source: Path, target: Path) -> Path:
    with zipfile.ZipFile(target / "raw.zip", "w") as archive:
        for path in sorted(source.rglob("*")):
            archive.write(path, Path("mlcfd_data") / path.relative_to(source.parent))
        archive.writestr("__MACOSX/mlcfd_data/training_data/param0/._x/press.npy", "")
    return target / "raw.zip"


def as_tar(source: Path, target: Path, mode: str = "w") -> Path:
    path = target / ("raw.tar.gz" if mode == "w:gz" else "raw.tar")
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        archive.add(source, "training_data")
    return path


def as_nested(source: Path, target: Path) -> Path:
    """As it is published: a zip of a tar.gz for each param folder."""
    with zipfile.ZipFile(target / "raw.zip", "w") as archive:
        for param in sorted(source.iterdir()):
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w:gz") as inner:
                inner.add(param, param.name)
            archive.writestr(f"mlcfd_data/training_data/{param.name}.tar.gz", packed.getvalue())
    return target / "raw.zip"


ARCHIVES = {
    "folder": lambda source, target: source,
    "folder-above": lambda source, target: source.parent,
    "zip": as_zip,
    "tar": as_tar,
    "tar.gz": lambda source, target: as_tar(source, target, "w:gz"),
    "zip-of-tars": as_nested,
}


@pytest.mark.parametrize("pack", ARCHIVES.values(), ids=ARCHIVES.keys())
def test_every_kind_of_source_has_the_same_cars(pack, raw_archive: Path, tmp_path: Path) -> None:
    source = pack(raw_archive, tmp_path)
    cars = list_cars(source)
    assert cars == list_cars(raw_archive)
    assert len(cars) == 6
    assert not EXCLUDED & {name for _, name in cars}
    (car,) = raw_cars(source, lambda param, name: (param, name) == cars[3])
    expected = next(raw_cars(raw_archive, lambda param, name: (param, name) == cars[3]))
    arrays, wanted = make_car(car), make_car(expected)
    assert all(np.array_equal(arrays[key], wanted[key]) for key in wanted)


def rewrite_surface(car: Path, change) -> None:
    points, quads, pressure = surface_mesh(7)
    points, quads, pressure = change(points, quads, pressure)
    write_grid(car / "quadpress_smpl.vtk", points, quads, {"point_scalars": pressure})


def rewrite_pressure(car: Path, change) -> None:
    np.save(car / "press.npy", change(np.load(car / "press.npy")))


def rewrite_scalars(car: Path, **arrays) -> None:
    points, quads, _ = surface_mesh(7)
    write_grid(car / "quadpress_smpl.vtk", points, quads, arrays)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BROKEN = {
    "surface-missing": ("quadpress_smpl.vtk", lambda car: (car / "quadpress_smpl.vtk").unlink(), "no such file"),
    "pressure-missing": ("press.npy", lambda car: (car / "press.npy").unlink(), "no such file"),
    "surface-torn": ("quadpress_smpl.vtk", lambda car: cut(car / "quadpress_smpl.vtk"), ""),
    "volume-torn": ("hexvelo_smpl.vtk", lambda car: cut(car / "hexvelo_smpl.vtk"), ""),
    "pressure-torn": ("press.npy", lambda car: cut(car / "press.npy"), ""),
    "pressure-already-without-the-unused": (
        "press.npy",
        lambda car: np.save(car / "press.npy", np.zeros(3586, np.float32)),
        "shape (3586,)",
    ),
    "pressure-shifted": (
        "press.npy",
        lambda car: np.save(car / "press.npy", np.roll(np.load(car / "press.npy"), 96)),
        "of the spread",
    ),
    "pressure-with-the-unused-at-the-end": (
        "press.npy",
        lambda car: rewrite_pressure(car, lambda p: np.concatenate([p[:16], p[112:], p[16:112]])),
        "off 'point_scalars' in quadpress_smpl.vtk",
    ),
    "pressure-in-reverse": ("press.npy", lambda car: rewrite_pressure(car, lambda p: p[::-1]), "of the spread"),
    "pressure-of-the-other-sign": ("press.npy", lambda car: rewrite_pressure(car, lambda p: -p), "by 100% of"),
    "pressure-nan": ("press.npy", lambda car: np.save(car / "press.npy", np.full(3682, np.nan)), "not finite"),
    "surface-short-of-points": (
        "quadpress_smpl.vtk",
        lambda car: rewrite_surface(car, lambda p, q, s: (p[:-1], q[(q < 3681).all(axis=1)], s[:-1])),
        "3681 points",
    ),
    "another-number-unused": (
        "quadpress_smpl.vtk",
        lambda car: rewrite_surface(car, lambda p, q, s: (p, q[100:], s)),
        "points that some quad uses",
    ),
    "volume-of-another-car": (
        "hexvelo_smpl.vtk",
        lambda car: (
            write_car(car.parent / "other", seed=8),
            shutil.move(car.parent / "other" / "hexvelo_smpl.vtk", car / "hexvelo_smpl.vtk"),
            shutil.rmtree(car.parent / "other"),
        ),
        "of them points of the surface",
    ),
}


@pytest.mark.parametrize(("file", "harm", "seen"), BROKEN.values(), ids=BROKEN.keys())
def test_what_does_not_fit_is_refused_by_the_name_of_its_file(file, harm, seen, one: Path, tmp_path: Path) -> None:
    harm(one)
    with pytest.raises(RequestError) as refused:
        make_car(the_car(tmp_path))
    assert str(one / file) in refused.value.summary
    assert seen in refused.value.seen


UNUSED_POINTS = np.isin(np.arange(3682), np.arange(16, 112))
FITTING = {
    "fewer-digits": lambda p: {"point_scalars": np.round(p)},
    "another-unit": lambda p: {"point_scalars": p / 1.225 / 1000},
    "anything-at-unused-points": lambda p: {
        "point_scalars": np.where((np.arange(3682) >= 16) & (np.arange(3682) < 112), 1e6, p)
    },
    "other-arrays-beside": lambda p: {"ids": np.arange(3682.0), "pressure": p, "zeros": 0 * p},
    "no-pressure-in-the-mesh": lambda p: {},
    "only-zeros-in-the-mesh": lambda p: {"point_scalars": 0 * p},
}


@pytest.mark.parametrize("arrays", FITTING.values(), ids=FITTING.keys())
def test_pressures_in_the_same_order_fit(arrays, one: Path, tmp_path: Path) -> None:
    pressure = np.load(one / "press.npy")
    rewrite_scalars(one, **arrays(pressure))
    made = make_car(the_car(tmp_path))
    assert np.array_equal(made["surface_pressure"], np.delete(pressure, np.s_[16:112]))


def test_an_archive_that_is_cut_short_is_refused(raw_archive: Path, tmp_path: Path) -> None:
    path = as_tar(raw_archive, tmp_path, "w:gz")
    cut(path)
    with refusal("archive-truncated"):
        for _ in raw_cars(path, lambda param, name: True):
            pass


@pytest.mark.parametrize("source", ["/nowhere", "."], ids=["missing", "without-cars"])
def test_a_source_without_cars_is_refused(source, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no raw data|no ShapeNet-Car data"):
        list_cars(tmp_path / source)


def encrypted(path: Path) -> None:
    """Says in both headers of every member that it is encrypted."""
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(mark)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(mark, at + 4)
    path.write_bytes(content)


def oddly_compressed(path: Path) -> None:
    content = path.read_bytes()
    for mark, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        parts = content.split(mark)
        content = mark.join([parts[0], *(p[: offset - 4] + b"\x61\x00" + p[offset - 2 :] for p in parts[1:])])
    path.write_bytes(content)


def of_zips(path: Path) -> None:
    """A hundred archives, each in the next."""
    content = path.read_bytes()
    for _ in range(100):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("param0.zip", content)
        content = path.read_bytes()


def bomb(path: Path) -> None:
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("training_data/param0/a/press.npy", "w", force_zip64=True) as member,
    ):
        for _ in range(300):
            member.write(bytes(2**20))


@pytest.mark.parametrize(
    ("harm", "seen"),
    [(encrypted, "encrypted"), (oddly_compressed, "compression"), (of_zips, "in an archive"), (bomb, "256 MiB")],
)
def test_an_archive_that_nobody_publishes_is_refused_in_words(harm, seen, raw_archive: Path, tmp_path: Path) -> None:
    path = as_zip(raw_archive, tmp_path)
    harm(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RequestError) as caught:
        for _ in raw_cars(path, lambda param, name: True):
            pass
    assert seen in caught.value.seen
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 900_000, "KiB"
