"""Make, check and open the ShapeNet-Car data set, with the published splits, order and statistics."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from noether.common.errors import RequestError, one_line
from noether.core.data.layout import CAR_SPACE, FRONTAL
from noether.physics.cases.dataset import DATASET_FILE, CasesDataset, check_files, read_metadata
from noether.physics.cases.mesh_files import read_array
from noether.physics.cases.mesh_source import MeshFile, read_part
from noether.physics.cases.store import Column, case_folder, whole_folder, write_case_file, write_faces, write_set
from noether.physics.cases.surface_mesh import frontal_area, oriented, point_areas, pressure_force
from noether.physics.settings import SHAPENET_CAR_SURFACE_POINTS

SURFACE, VOLUME, PRESSURE = RAW_FILES = ("quadpress_smpl.vtk", "hexvelo_smpl.vtk", "press.npy")
RAW_SURFACE_POINTS = 3682
SURFACE_POINTS = SHAPENET_CAR_SURFACE_POINTS
MOST_VOLUME_POINTS = 28504
MOST_MISFIT = 0.1
"""Largest accepted misfit of the pressures, relative to their spread; rounding gives far less, reordering far more."""
PUBLISHED_STATISTICS = {
    "surface_pressure": ((-36.4098,), (48.6757,)),
    "volume_velocity": ((0.00293915, -0.0230546, 17.546032), (1.361689, 1.267649, 5.850353)),
    "volume_sdf": ((0.374222,), (0.178948,)),
}
"""Mean and standard deviation of each channel in the public recipe, over the training split of param0 (789 cars)."""
FORMAT_VERSION = 1  # increase it when the same files give a different case
FOLDER_COUNTS = (100, 99, 97, 100, 100, 96, 100, 98, 99)
"""Counts of cars in the folders param0 to param8, without the excluded cars: 889 in all."""
ALL_CARS = sum(FOLDER_COUNTS)
EXCLUDED = {
    "854bb96a96a4d1b338acbabdc1252e2f",
    "85bb9748c3836e566f81b21e2305c824",
    "9ec13da6190ab1a3dd141480e2c154d3",
    "c5079a5b8d59220bc3fb0d224baae2a",
}
"""Cars in the archive that have no surface; the published figures leave them out."""
PUBLISHED = {
    "surface_points": (SURFACE_POINTS, 3),
    "surface_normals": (SURFACE_POINTS, 3),
    "surface_pressure": (SURFACE_POINTS,),
    "volume_points": (-1, 3),
    "volume_velocity": (-1, 3),
    "volume_normals": (-1, 3),
    "volume_sdf": (-1,),
}
"""Shapes of a car's seven published arrays, by key; −1 stands for the car's number of volume points."""


def make_car(car: Path) -> dict[str, np.ndarray]:
    """Read a car's three files from its folder, and return the car's arrays.

    The seven published arrays: surface_points (3586, 3) m, surface_normals (3586, 3) outward, surface_pressure (3586,)
    Pa, volume_points (Nv, 3) m, volume_velocity (Nv, 3) m/s, volume_sdf (Nv,) m, the unsigned distance to the nearest
    of the surface file's 3682 points, volume_normals (Nv, 3), the unit direction from that point. Noether adds
    surface_area (3586,) m², surface_quads (F, 4) int32, reference_area (1,) m², the frontal area, and pressure_force
    (3,) N and pressure_moment (3,) N·m about the origin, from the true pressure on the mesh. Floating-point arrays are
    float32. RequestError: a file is missing, unreadable, or does not fit the other files; the error names the file.
    """
    surface, volume, pressure, used = _read_raw(car)
    quads = oriented(surface.points, surface.quads)
    areas, normals = point_areas(surface.points, quads)
    force, moment = pressure_force(surface.points, quads, pressure)
    quads = np.searchsorted(used, quads)

    velocity = _velocity(car, volume.values, len(volume.points))
    # A point that is in both files has the same digits there; the published recipe also compares points as float32.
    # Adding 0 turns -0.0 into 0.0: the two are equal, but their bytes differ.
    inside = set(map(bytes, surface.points.astype(np.float32) + np.float32(0)))
    outside = np.array([bytes(point) not in inside for point in volume.points.astype(np.float32) + np.float32(0)])
    points = volume.points[outside]
    shared = len(volume.points) - len(points)
    if not 1 <= len(points) <= MOST_VOLUME_POINTS or shared < SURFACE_POINTS // 2:
        seen = f"{len(volume.points)} points, {shared} of them points of the surface"
        own = f"besides the surface's points, which have the same coordinates as in {SURFACE}"
        raise _refusal(car / VOLUME, seen, f"1 to {MOST_VOLUME_POINTS} {own}")
    from scipy.spatial import cKDTree  # imported here because every rank imports this file, but few read raw data

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
    """Read and check a car's files; return surface, volume, pressure, and the indices of points that quads use."""
    surface, volume = (read_part(car / name) for name in (SURFACE, VOLUME))
    pressure = np.asarray(read_array(car / PRESSURE), np.float64).squeeze()
    if len(surface.points) != RAW_SURFACE_POINTS:
        raise _refusal(car / SURFACE, f"{len(surface.points)} points", f"{RAW_SURFACE_POINTS} points")
    if pressure.shape != (RAW_SURFACE_POINTS,):
        each = f"a pressure for each point of {SURFACE}, including points that no quad uses"
        raise _refusal(car / PRESSURE, f"shape {pressure.shape}", f"({RAW_SURFACE_POINTS},): {each}")
    if not np.isfinite(pressure).all():
        raise _refusal(car / PRESSURE, "values that are not finite", "numbers")
    used = np.unique(surface.quads)
    if len(used) != SURFACE_POINTS:
        seen = f"{len(used)} points that some quad uses"
        raise _refusal(car / SURFACE, seen, f"{SURFACE_POINTS} of {RAW_SURFACE_POINTS}")
    _check_alignment(car, surface.values, pressure, used)
    return surface, volume, pressure, used


def _check_alignment(car: Path, values: dict[str, np.ndarray], pressure: np.ndarray, used: np.ndarray) -> None:
    """Check that press.npy has the pressures in the order of the surface file, if the surface file has pressures too.

    A wrong order is the usual mistake: a public reproduction, which dropped the wrong 96 points, had an error of 69 %
    instead of 7 %. Other digits or another unit are accepted, and values at points that no quad uses are ignored. If
    the surface file has several arrays, the most similar array is compared.
    """
    arrays = {name: np.asarray(array, np.float64).squeeze() for name, array in values.items()}
    misfits = {
        name: _misfit(array[used], pressure[used])
        for name, array in arrays.items()
        if array.shape == pressure.shape and np.ptp(array[used]) > 0
    }
    least, name = min(((misfit, name) for name, misfit in misfits.items()), default=(0.0, ""))
    if least > MOST_MISFIT:
        seen = f"at the {len(used)} points of quads it differs from {name!r} in {SURFACE} by {least:.0%} of the spread"
        raise _refusal(
            car / PRESSURE, seen, f"the same pressures at the same points, within {MOST_MISFIT:.0%} of the spread"
        )


def _misfit(reference: np.ndarray, values: np.ndarray) -> float:
    """Return the share, 0..1, of the spread of `values` that no rising linear function of `reference` explains."""
    if not np.ptp(values):
        return 1.0
    likeness = max(0.0, float(np.corrcoef(reference, values)[0, 1]))
    return float((1 - likeness**2) ** 0.5)


def _velocity(car: Path, values: dict[str, np.ndarray], count: int) -> np.ndarray:
    vectors = [np.asarray(array, np.float64) for array in values.values() if array.shape == (count, 3)]
    if len(vectors) != 1:
        raise _refusal(car / VOLUME, f"{len(vectors)} arrays of vectors at points", "one: the velocity (N, 3)")
    if not np.isfinite(vectors[0]).all():
        raise _refusal(car / VOLUME, "velocities that are not finite", "numbers")
    return vectors[0]


def _refusal(path: Path, seen: str, expected: str) -> RequestError:
    """Return the error for a file that is missing or broken, or that does not fit the other files or the data set."""
    return RequestError("shapenet-file-unusable", f"{path} cannot be used", seen=seen, expected=expected)


class ShapeNetCarDataset(CasesDataset):
    """A data set of some cars. It describes only the wind and a reference area: published models need nothing else."""

    def about(self) -> dict[str, Any]:
        """Return the description that `about_data` reads: a car on the ground in a wind along z."""
        return {"space": CAR_SPACE, "reference_areas": {"reference_area": FRONTAL}}


def check_shapenet_car(root: Path | None, split: str) -> dict[str, Any]:
    """Check, before any worker starts, that the folder's cars are complete; return the folder's metadata.

    RequestError: no folder is given, the folder is not prepared, a file is missing, or the cars do not allow the split.
    """
    if root is None:
        raise RequestError(
            "shapenet-needs-dataset-root",
            "ShapeNet-Car needs dataset_root",
            seen="dataset_root=null",
            expected="the folder that `noether data prepare shapenet_car` makes",
            fix="dataset_root=FOLDER      (made by: noether data prepare shapenet_car ARCHIVE FOLDER)",
        )
    about = read_metadata(root) if (root / DATASET_FILE).is_file() else None
    if about is None or not {"surface_pressure", "volume_velocity"} <= about["fields"].keys():
        # The published recipe's folder, and folders of noether before 2026-11-25, can be prepared like archives.
        source = root if (root / "preprocessed").is_dir() or (root / "param0").is_dir() else "ARCHIVE"
        raise RequestError(
            "no-shapenet-data",
            f"dataset_root={root} does not hold prepared ShapeNet-Car data",
            seen="no such folder" if not root.is_dir() else f"no {DATASET_FILE}" if about is None else "other cases",
            expected="the folder that `noether data prepare shapenet_car` makes",
            fix=f"noether data prepare shapenet_car {source} FOLDER      (then dataset_root=FOLDER)",
            mount="" if root.is_dir() else str(root.absolute()),
        )
    split_indices(published_order(about["cases"]), split)
    check_files(root, about)
    return about


def open_shapenet_car(root: Path, split: str) -> tuple[ShapeNetCarDataset, ShapeNetCarDataset]:
    """Open the training and the test split of a prepared folder."""
    about = read_metadata(root)
    cars = published_order(about["cases"])
    train, test = (ShapeNetCarDataset(root, [cars[i] for i in own], about) for own in split_indices(cars, split))
    return train, test


def split_indices(cases: Sequence[str], split: str) -> tuple[list[int], list[int]]:
    """Return the indices of a published split's training and test cars, for cars in the published order.

    With param0, the test cars are those in that folder. With randperm189, their indices are the first 189 in
    torch.randperm(889) for seed 0 (the UPT paper's split, for surface pressure alone). Results on the two splits are
    not comparable. RequestError: the cars present do not allow this split.
    """
    cars = len(cases)
    if split == "param0":
        test = [i for i, case in enumerate(cases) if param_of(case) == "param0"]
    elif cars != ALL_CARS:
        raise RequestError("split-needs-all-cars", "the split randperm189 needs all cars", seen=f"{cars} cars",
                           expected=f"{ALL_CARS}", fix="dataset.split=param0")  # fmt: skip
    else:
        import torch

        test = sorted(torch.randperm(cars, generator=torch.Generator().manual_seed(0))[:189].tolist())
    train = sorted(set(range(cars)) - set(test))
    if len(test) < 1 or len(train) < 2:
        raise RequestError("split-needs-param-folders",
                           f"the split {split} needs cars in param0 to test on and in param1 to param8 to train on",
                           seen=f"{len(train)} to train on and {len(test)} to test on",
                           expected="at least 2 to train on and 1 to test on")  # fmt: skip
    return train, test


def differing_statistics(arrays: Mapping[str, Any]) -> list[str]:
    """Describe the channels that differ from the published constants by more than 1 % of a standard deviation.

    arrays: the training split's arrays, as described by `describe_split`.
    """
    words = []
    for key, (means, deviations) in PUBLISHED_STATISTICS.items():
        for channel, (m, s) in enumerate(zip(means, deviations, strict=True)):
            row = arrays[key]["channels"][channel]
            if abs(row["mean"] - m) > 0.01 * s or abs(row["std"] - s) > 0.01 * s:
                name = f"{key}[{channel}]" if len(means) > 1 else key
                words.append(f"{name}: mean {row['mean']:.6g}, std {row['std']:.6g}; published {m:.6g}, {s:.6g}")
    return words


@dataclass(frozen=True)
class CarJob:
    """A car to make: its name ("param0/1a2b…"), the folder with its files, and the folder of the store."""

    case: str
    folder: Path
    out: Path

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the names, sizes and modification times of a car's files; if it changes, remake the car."""
        digest = hashlib.sha256(f"shapenet_car {FORMAT_VERSION}\n".encode())
        for path in sorted(self.folder.iterdir()):
            if path.name in RAW_FILES or path.suffix == ".pt":
                digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def problems(self) -> Iterator[RequestError]:
        """Yield an error for each file that the car lacks."""
        wanted = RAW_FILES if self._is_raw else [f"{key}.pt" for key in PUBLISHED]
        for name in wanted:
            if not (self.folder / name).is_file():
                expected = f"{', '.join(RAW_FILES)}; or a .pt file for each of {', '.join(PUBLISHED)}"
                yield _refusal(self.folder / name, "no such file", expected)

    def make(self) -> dict[str, Any]:
        """Make the car, and return the contents of its `case.json`. RequestError: a file is broken or does not fit."""
        for problem in self.problems():
            raise problem
        arrays = make_car(self.folder) if self._is_raw else read_published(self.folder)
        sets = {}
        with whole_folder(case_folder(self.out, self.case)) as folder:
            for name in ("surface", "volume"):
                own = {key: array for key, array in arrays.items() if key.startswith(name) and key != "surface_quads"}
                columns = {key: Column(array, f"{key} of {self.folder}") for key, array in own.items()}
                sets[name], order = write_set(folder, self.case, name, columns, len(own[f"{name}_points"]))
                if name == "surface" and "surface_quads" in arrays:
                    write_faces(folder, name, arrays["surface_quads"], order)
            area = {key: float(arrays[key][0]) for key in ("reference_area",) if key in arrays}
            forces = {key: arrays[key].tolist() for key in ("pressure_force", "pressure_moment") if key in arrays}
            numbers = {"parameters": area, "outputs": {}, "forces": forces}
            return write_case_file(folder, {"case": self.case, "mark": self.fingerprint, **numbers, "sets": sets})

    @property
    def _is_raw(self) -> bool:
        return (self.folder / SURFACE).exists() or not (self.folder / "surface_points.pt").exists()


def car_jobs(root: Path, out: Path) -> list[CarJob]:
    """Return the cars in a folder, or in its `training_data` or `preprocessed`, in the published recipes' order.

    RequestError: the folder is missing, or has no cars.
    """
    for pattern in ("", "training_data/", "*/training_data/", "preprocessed/"):
        params = sorted(path for path in root.glob(f"{pattern}param[0-8]") if path.is_dir())
        # The published folders also hold loose files beside the cars, and some archives hold macOS's own files.
        cars = [car for param in params for car in sorted(param.iterdir()) if car.is_dir()]
        if cars := [car for car in cars if not car.name.startswith(".") and car.name not in EXCLUDED]:
            return [CarJob(f"{car.parent.name}/{car.name}", car, out) for car in cars]
    raise RequestError(
        "not-raw-shapenet",
        f"{root} holds no ShapeNet-Car data",
        seen="no cars in param0 to param8" if root.is_dir() else "no such file or folder",
        expected="the published archive, its folder training_data, or a folder named preprocessed",
    )


def param_of(case: str) -> str:
    """Return the name of a car's param folder."""
    return case.partition("/")[0]


def published_order(cases: Iterable[str]) -> list[str]:
    """Return the cars in the published recipes' order: by param folder and name."""
    return sorted(cases, key=lambda case: case.split("/"))


def split_cars(cases: Sequence[str]) -> dict[str, list[str]]:
    """Return the split that tests on the cars in param0 and trains on all other cars."""
    test = [case for case in published_order(cases) if param_of(case) == "param0"]
    return {"train": published_order({*cases} - {*test}), "validation": [], "test": test}


def shortfalls(cases: Iterable[str]) -> list[str]:
    """Describe each param folder whose number of cars differs from the published one; [] if all 889 are present."""
    there = Counter(map(param_of, cases))
    wanted = {f"param{i}": count for i, count in enumerate(FOLDER_COUNTS)}
    return [f"{param} has {there[param]} of {count} cars" for param, count in wanted.items() if there[param] != count]


def read_published(folder: Path) -> dict[str, np.ndarray]:
    """Read the seven float32 tensors that the published recipe makes of a car, with the shapes in PUBLISHED.

    RequestError: a file is missing or cut short, or its tensor has another type or shape or is not finite.
    """
    arrays = {key: _read_tensor(folder / f"{key}.pt") for key in PUBLISHED}
    volume = arrays["volume_points"].shape[0] if arrays["volume_points"].ndim else 0
    for key, shape in PUBLISHED.items():
        expected = tuple(volume if size < 0 else size for size in shape)
        if arrays[key].shape != expected:
            raise _refusal(folder / f"{key}.pt", f"shape {arrays[key].shape}", f"{expected}")
    if not 1 <= volume <= MOST_VOLUME_POINTS:
        raise _refusal(folder / "volume_points.pt", f"{volume} points", f"1 to {MOST_VOLUME_POINTS}")
    return arrays


def _read_tensor(path: Path) -> np.ndarray:
    import torch

    try:
        tensor = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's parsers raise many types: RuntimeError, UnpicklingError, EOFError, ...
        raise _refusal(path, one_line(error), "a complete file") from None
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.float32:
        seen = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise _refusal(path, str(seen), "a tensor of float32")
    array: np.ndarray = tensor.numpy()
    if not np.isfinite(array).all():
        raise _refusal(path, f"{int((~np.isfinite(array)).sum())} values that are not finite", "numbers")
    return array
