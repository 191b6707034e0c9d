"""Reads a car from the raw ShapeNet-Car archive and checks that its files belong together. Without torch.

ShapeNet-Car (N. Umetani and B. Bickel, Learning Three-Dimensional Flow for Interactive Aerodynamic Design, 2018):
`param{0..8}/<id>/` with `quadpress_smpl.vtk` (the surface), `hexvelo_smpl.vtk` (hexahedra around it) and
`press.npy` (a pressure per point of the surface file). The air moves at 20 m/s along +z; y is up.
"""

import lzma
import re
import shutil
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, TypeVar, cast

import numpy as np

from noether.config.dataset import SHAPENET_CAR_SURFACE_POINTS
from noether.data.mesh_files import MeshFile, read_array, read_mesh
from noether.data.surface_mesh import frontal_area, oriented, point_areas, pressure_force
from noether.errors import RequestError

SURFACE, VOLUME, PRESSURE = RAW_FILES = ("quadpress_smpl.vtk", "hexvelo_smpl.vtk", "press.npy")
FOLDER_COUNTS = (100, 99, 97, 100, 100, 96, 100, 98, 99)
"""Cars of param0 to param8, without the excluded: 889."""
EXCLUDED = {
    "854bb96a96a4d1b338acbabdc1252e2f",
    "85bb9748c3836e566f81b21e2305c824",
    "9ec13da6190ab1a3dd141480e2c154d3",
    "c5079a5b8d59220bc3fb0d224baae2a",
}
"""Cars of the archive without a surface, which the published figures leave out."""
RAW_SURFACE_POINTS = 3682
SURFACE_POINTS = SHAPENET_CAR_SURFACE_POINTS
MOST_VOLUME_POINTS = 28504
MOST_MISFIT = 0.1
"""Of the pressures of the two files, as a share of their spread: far above other digits, far below another order."""
_MEMBER = re.compile(r"(?:^|/)(param[0-8])/([^/.][^/]*)/(" + "|".join(map(re.escape, RAW_FILES)) + r")$")
UNREADABLE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError),
    # An encrypted member or one of a compression that Python does not know (RuntimeError), numbers beyond every file.
    *(RuntimeError, OverflowError, struct.error),
)
MOST_BYTES = 256 * 2**20
"""Of one file of a car, unpacked; the largest published is a hundredth of it."""
MOST_INNER_BYTES = 4 * 2**30
"""Of a param folder's archive inside the archive."""
_INNER = re.compile(r"(?:^|/)param[0-8]\.(?:tar|tar\.gz|tgz|zip)$")
Content = TypeVar("Content")


@dataclass(frozen=True)
class RawCar:
    """The files of one car: a folder, or their bytes out of an archive; `where` names them in errors."""

    param: str
    name: str
    where: str
    folder: Path | None = None
    content: dict[str, bytes] | None = None

    def refusal(self, file: str, seen: str, expected: str) -> RequestError:
        """The refusal of a file that does not fit the others, or what the data set is."""
        return RequestError(
            "raw-shapenet-does-not-fit", f"{self.where}/{file} does not fit", seen=seen, expected=expected
        )


def raw_cars(source: Path, wanted: Callable[[str, str], bool]) -> Iterator[RawCar]:
    """Yields the cars of a folder or an archive (.zip, .tar, .tar.gz, and archives of param folders in a .zip).

    Only the three files of a car are read, and nothing is written, so that names in an archive cannot do harm.

    Args:
        source: the folder above (or named) `training_data`, or the archive.
        wanted: asked once for each car, whether to read that of this param folder and name.

    Raises:
        RequestError: neither a folder with cars nor an archive, or an archive that is cut short.
    """
    if source.is_dir():
        for folder in _car_folders(source):
            if wanted(folder.parent.name, folder.name):
                yield RawCar(folder.parent.name, folder.name, str(folder), folder=folder)
        return
    if not source.is_file():
        raise RequestError(
            "no-raw-shapenet",
            f"no raw data at {source}",
            seen="no such file or folder",
            expected="the archive, or its unpacked folder",
        )
    waiting: dict[tuple[str, str], dict[str, bytes]] = {}
    for param, name, file, content in _archive_files(source, source.name, cache(wanted)):
        own = waiting.setdefault((param, name), {})
        own[file] = content
        if len(own) == len(RAW_FILES):
            yield RawCar(param, name, f"{source}:{param}/{name}", content=waiting.pop((param, name)))
    for (param, name), own in waiting.items():  # what lacks a file, refused when it is read
        yield RawCar(param, name, f"{source}:{param}/{name}", content=own)


def list_cars(source: Path) -> list[tuple[str, str]]:
    """Returns (param, name) of every car of a source, sorted. RequestError as `raw_cars`, and where there is none."""
    found: set[tuple[str, str]] = set()

    def note(param: str, name: str) -> bool:
        found.add((param, name))
        return False

    for _ in raw_cars(source, wanted=note):
        pass
    cars = sorted(found)
    if not cars:
        raise RequestError(
            "not-raw-shapenet",
            f"{source} holds no ShapeNet-Car data",
            seen=f"no param0..8/<id>/ with {', '.join(RAW_FILES)}",
            expected="the archive as it was published, or the folder training_data that it holds",
        )
    return cars


def make_car(car: RawCar) -> dict[str, np.ndarray]:
    """One car's arrays for the preprocessed folder.

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
        raise car.refusal(VOLUME, seen, f"1 to {MOST_VOLUME_POINTS} {own}")
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


def _read_raw(car: RawCar) -> tuple[MeshFile, MeshFile, np.ndarray, np.ndarray]:
    """Reads and checks the files of a car: surface, volume, the pressure, and the points that some quad uses."""
    surface, volume = (_read(car, name, read_mesh) for name in (SURFACE, VOLUME))
    pressure = np.asarray(_read(car, PRESSURE, read_array), np.float64).squeeze()
    if len(surface.points) != RAW_SURFACE_POINTS:
        raise car.refusal(SURFACE, f"{len(surface.points)} points", f"{RAW_SURFACE_POINTS} points")
    if pressure.shape != (RAW_SURFACE_POINTS,):
        each = f"a pressure for each point of {SURFACE}, those that no quad uses included"
        raise car.refusal(PRESSURE, f"shape {pressure.shape}", f"({RAW_SURFACE_POINTS},): {each}")
    if not np.isfinite(pressure).all():
        raise car.refusal(PRESSURE, "values that are not finite", "numbers")
    used = np.unique(surface.quads)
    if len(used) != SURFACE_POINTS:
        seen = f"{len(used)} points that some quad uses"
        raise car.refusal(SURFACE, seen, f"{SURFACE_POINTS} of {RAW_SURFACE_POINTS}")
    _check_alignment(car, surface.values, pressure, used)
    return surface, volume, pressure, used


def _car_folders(source: Path) -> list[Path]:
    """The cars' folders under `source`, or under its `training_data`, or as deep as the archive nests them."""
    for pattern in ("param[0-8]", "training_data/param[0-8]", "*/training_data/param[0-8]"):
        params = sorted(path for path in source.glob(pattern) if path.is_dir())
        if params:
            # The published folders hold loose files, and some archives macOS's, beside the cars.
            every = [car for param in params for car in sorted(param.iterdir()) if car.is_dir()]
            return [car for car in every if not car.name.startswith(".") and car.name not in EXCLUDED]
    return []


def _archive_files(
    source: Path | IO[bytes], name: str, wanted: Callable[[str, str], bool]
) -> Iterator[tuple[str, str, str, bytes]]:
    """Yields (param, car, file, content) of the wanted cars' files, in an archive or in the archives in it."""
    try:
        with source.open("rb") if isinstance(source, Path) else source as archive:
            for path, size, open_member in _members(archive):
                if _INNER.search(path):
                    if not isinstance(source, Path):
                        raise ValueError(f"{path}: an archive in an archive in an archive")
                    _check_size(path, size, MOST_INNER_BYTES)
                    with open_member() as packed, tempfile.TemporaryFile() as inner:  # to the disk and not to memory
                        shutil.copyfileobj(packed, inner)
                        yield from _archive_files(inner, path, wanted)
                elif (car := _MEMBER.search(path)) and car[2] not in EXCLUDED and wanted(car[1], car[2]):
                    _check_size(path, size, MOST_BYTES)
                    with open_member() as file:
                        yield car[1], car[2], car[3], file.read()
    except UNREADABLE as error:
        raise RequestError(
            "archive-truncated",
            f"{name} cannot be read to its end",
            seen=f"{type(error).__name__}: {error}",
            expected="a complete .zip, .tar or .tar.gz archive",
            fix="download the archive again, or give the folder that was unpacked from it",
        ) from error


def _members(archive: IO[bytes]) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    """Yields each file's path, its size in bytes, and what opens it.

    It is read before the next one is asked for: a compressed tar archive cannot go back.
    """
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                if "__MACOSX" not in entry.filename:
                    yield entry.filename, entry.file_size, partial(zipped.open, entry)
        return
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        extract = cast(Callable[[tarfile.TarInfo], IO[bytes]], tar.extractfile)  # None only of what is no file
        for member in filter(tarfile.TarInfo.isfile, tar):
            yield member.name, member.size, partial(extract, member)


def _check_size(path: str, size: int, most: int) -> None:
    if size > most:
        raise ValueError(f"{path} has more than {most // 2**20} MiB")


def _read(car: RawCar, name: str, reader: Callable[[Path], Content]) -> Content:
    with tempfile.TemporaryDirectory(prefix="noether-raw-") as scratch:
        path = (car.folder or Path(scratch)) / name
        if car.content is not None and name in car.content:
            path.write_bytes(car.content[name])
        if not path.is_file():
            raise car.refusal(name, "no such file", "the three files of every car that is not excluded")
        try:
            return reader(path)
        except RequestError as error:
            raise RequestError(
                "raw-shapenet-unusable", f"{car.where}/{name} cannot be used", seen=error.seen, expected=error.expected
            ) from None


def _check_alignment(car: RawCar, values: dict[str, np.ndarray], pressure: np.ndarray, used: np.ndarray) -> None:
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
        raise car.refusal(PRESSURE, seen, f"the same pressures at the same points, to {MOST_MISFIT:.0%} of the spread")


def _misfit(reference: np.ndarray, values: np.ndarray) -> float:
    """What is left of the spread of `values` once the best rising line of `reference` is taken away, 0..1."""
    if not np.ptp(values):
        return 1.0
    likeness = max(0.0, float(np.corrcoef(reference, values)[0, 1]))
    return float((1 - likeness**2) ** 0.5)


def _velocity(car: RawCar, values: dict[str, np.ndarray], count: int) -> np.ndarray:
    vectors = [np.asarray(array, np.float64) for array in values.values() if array.shape == (count, 3)]
    if len(vectors) != 1:
        raise car.refusal(VOLUME, f"{len(vectors)} arrays of vectors at points", "one: the velocity (N, 3)")
    if not np.isfinite(vectors[0]).all():
        raise car.refusal(VOLUME, "velocities that are not finite", "numbers")
    return vectors[0]
