"""Reads a car of the raw ShapeNet-Car data and checks that its files belong together. Without torch.

ShapeNet-Car (N. Umetani and B. Bickel, Learning Three-Dimensional Flow for Interactive Aerodynamic Design, 2018):
`param{0..8}/<id>/` with `quadpress_smpl.vtk` (the surface), `hexvelo_smpl.vtk` (hexahedra around it) and
`press.npy` (a pressure per point of the surface file). The air moves at 20 m/s along +z; y is up.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from noether.common.errors import RequestError
from noether.physics.cases.mesh_files import MeshFile, read_array, read_mesh
from noether.physics.cases.surface_mesh import frontal_area, oriented, point_areas, pressure_force
from noether.physics.settings import SHAPENET_CAR_SURFACE_POINTS

SURFACE, VOLUME, PRESSURE = RAW_FILES = ("quadpress_smpl.vtk", "hexvelo_smpl.vtk", "press.npy")
RAW_SURFACE_POINTS = 3682
SURFACE_POINTS = SHAPENET_CAR_SURFACE_POINTS
MOST_VOLUME_POINTS = 28504
MOST_MISFIT = 0.1
"""Of the pressures of the two files, as a share of their spread: far above other digits, far below another order."""
Content = TypeVar("Content")


def make_car(car: Path) -> dict[str, np.ndarray]:
    """The arrays of a car from the folder of its three files.

    surface_points (3586, 3) m, surface_normals (3586, 3) outward, surface_pressure (3586,) Pa, volume_points
    (Nv, 3) m, volume_velocity (Nv, 3) m/s, volume_sdf (Nv,) m, the unsigned distance to the nearest of the 3682
    points of the surface file, volume_normals (Nv, 3), the unit direction from that point: the published seven.
    Of our own: surface_area (3586,) m² and surface_quads (F, 4) int32, reference_area (1,) m², the frontal area,
    pressure_force (3,) N and pressure_moment (3,) N·m about the origin, of the true pressure on the mesh.
    Floating point arrays are float32.

    Raises:
        RequestError: a file is missing, cannot be read, or does not fit the others; it names the file.
    """
    surface, volume, pressure, used = _read_raw(car)
    quads = oriented(surface.points, surface.quads)
    areas, normals = point_areas(surface.points, quads)
    force, moment = pressure_force(surface.points, quads, pressure)
    quads = np.searchsorted(used, quads)

    velocity = _velocity(car, volume.values, len(volume.points))
    # Coordinates are the same text in both files; the published recipe compares them as float32 too. Adding 0 makes
    # -0.0, whose bytes differ, 0.0.
    inside = set(map(bytes, surface.points.astype(np.float32) + np.float32(0)))
    outside = np.array([bytes(point) not in inside for point in volume.points.astype(np.float32) + np.float32(0)])
    points = volume.points[outside]
    shared = len(volume.points) - len(points)
    if not 1 <= len(points) <= MOST_VOLUME_POINTS or shared < SURFACE_POINTS // 2:
        seen = f"{len(volume.points)} points, {shared} of them points of the surface"
        own = f"beside the surface's own, which are the same numbers as in {SURFACE}"
        raise _refusal(car, VOLUME, seen, f"1 to {MOST_VOLUME_POINTS} {own}")
    from scipy.spatial import cKDTree  # Here: every rank imports this file, and few read raw data.

    distance, nearest = map(np.asarray, cKDTree(surface.points).query(points))
    arrays = {
        "surface_points": surface.points[used],
        "surface_normals": normals[used],
        "surface_pressure": pressure[used],
        "surface_area": areas[used],
        "volume_points": points,
        "volume_velocity": velocity[outside],
        "volume_normals": (points - surface.points[nearest]) / distance[:, None],
        "volume_sdf": distance,
        "reference_area": np.array([frontal_area(surface.points[used], quads)]),
        "pressure_force": force,
        "pressure_moment": moment,
    }
    return {key: array.astype(np.float32) for key, array in arrays.items()} | {"surface_quads": quads.astype(np.int32)}


def _read_raw(car: Path) -> tuple[MeshFile, MeshFile, np.ndarray, np.ndarray]:
    """Reads and checks the files of a car: surface, volume, the pressure, and the points that some quad uses."""
    surface, volume = (_read(car, name, read_mesh) for name in (SURFACE, VOLUME))
    pressure = np.asarray(_read(car, PRESSURE, read_array), np.float64).squeeze()
    if len(surface.points) != RAW_SURFACE_POINTS:
        raise _refusal(car, SURFACE, f"{len(surface.points)} points", f"{RAW_SURFACE_POINTS} points")
    if pressure.shape != (RAW_SURFACE_POINTS,):
        each = f"a pressure for each point of {SURFACE}, those that no quad uses included"
        raise _refusal(car, PRESSURE, f"shape {pressure.shape}", f"({RAW_SURFACE_POINTS},): {each}")
    if not np.isfinite(pressure).all():
        raise _refusal(car, PRESSURE, "values that are not finite", "numbers")
    used = np.unique(surface.quads)
    if len(used) != SURFACE_POINTS:
        seen = f"{len(used)} points that some quad uses"
        raise _refusal(car, SURFACE, seen, f"{SURFACE_POINTS} of {RAW_SURFACE_POINTS}")
    _check_alignment(car, surface.values, pressure, used)
    return surface, volume, pressure, used


def _check_alignment(car: Path, values: dict[str, np.ndarray], pressure: np.ndarray, used: np.ndarray) -> None:
    """Where the surface file holds pressures too, press.npy must give them in the same order.

    It is the order that goes wrong, not the numbers: dropping the wrong 96 points took a public reproduction from an
    error of 7 % to one of 69 %. So files written with other digits, or in another unit, fit, and what stands at the
    points that no quad uses does not matter. Of several arrays the most similar is taken for the pressures.
    """
    arrays = {name: np.asarray(array, np.float64).squeeze() for name, array in values.items()}
    misfits = {
        name: _misfit(array[used], pressure[used])
        for name, array in arrays.items()
        if array.shape == pressure.shape and np.ptp(array[used]) > 0
    }
    least, name = min(((misfit, name) for name, misfit in misfits.items()), default=(0.0, ""))
    if least > MOST_MISFIT:
        seen = f"at the {len(used)} points of quads it is off {name!r} in {SURFACE} by {least:.0%} of the spread"
        raise _refusal(
            car, PRESSURE, seen, f"the same pressures at the same points, to {MOST_MISFIT:.0%} of the spread"
        )


def _misfit(reference: np.ndarray, values: np.ndarray) -> float:
    """What is left of the spread of `values` once the best rising line of `reference` is taken away, 0..1."""
    if not np.ptp(values):
        return 1.0
    likeness = max(0.0, float(np.corrcoef(reference, values)[0, 1]))
    return float((1 - likeness**2) ** 0.5)


def _velocity(car: Path, values: dict[str, np.ndarray], count: int) -> np.ndarray:
    vectors = [np.asarray(array, np.float64) for array in values.values() if array.shape == (count, 3)]
    if len(vectors) != 1:
        raise _refusal(car, VOLUME, f"{len(vectors)} arrays of vectors at points", "one: the velocity (N, 3)")
    if not np.isfinite(vectors[0]).all():
        raise _refusal(car, VOLUME, "velocities that are not finite", "numbers")
    return vectors[0]


def _read(car: Path, name: str, reader: Callable[[Path], Content]) -> Content:
    if not (car / name).is_file():
        raise _refusal(car, name, "no such file", "the three files of every car that is not excluded")
    try:
        return reader(car / name)
    except RequestError as error:
        raise RequestError(
            "raw-shapenet-unusable", f"{car / name} cannot be used", seen=error.seen, expected=error.expected
        ) from None


def _refusal(car: Path, file: str, seen: str, expected: str) -> RequestError:
    """The refusal of a file that does not fit the others, or what the data set is."""
    return RequestError("raw-shapenet-does-not-fit", f"{car / file} does not fit", seen=seen, expected=expected)
