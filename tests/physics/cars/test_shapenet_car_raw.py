"""Raw ShapeNet-Car cars: read as they are, and refused by the name of the file where something does not fit."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from shapenet_car_files import FIRST, UNUSED, surface_mesh, volume_mesh, write_car, write_grid

from noether.common.errors import RequestError
from noether.physics.cars.shapenet_car_raw import make_car


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """The folder of one car."""
    folder = tmp_path / "training_data" / "param3" / "abc"
    write_car(folder, seed=7)
    return folder


@pytest.mark.parametrize("binary", [False, True], ids=["ascii", "binary"])
def test_a_car_is_what_its_files_say(binary, tmp_path: Path) -> None:
    write_car(tmp_path / "param3" / "abc", seed=7, binary=binary)
    arrays = make_car(tmp_path / "param3" / "abc")
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


def rewrite_surface(car: Path, change) -> None:
    points, quads, pressure = surface_mesh(7)
    points, quads, pressure = change(points, quads, pressure)
    write_grid(car / "quadpress_smpl.vtk", points, quads, {"point_scalars": pressure})


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
        make_car(one)
    assert str(one / file) in refused.value.summary
    assert seen in refused.value.seen


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
    made = make_car(one)
    assert np.array_equal(made["surface_pressure"], np.delete(pressure, np.s_[16:112]))
