"""ShapeNet-Car as cases to prepare: what the ready map `shapenet_car` reads, in place of meshes.

A car is a folder `param{0..8}/<id>`, with the raw archive's three files or with the published recipe's seven tensors.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from noether.common.errors import RequestError, one_line
from noether.physics.cars.shapenet_car_raw import MOST_VOLUME_POINTS, RAW_FILES, SURFACE, SURFACE_POINTS, make_car
from noether.physics.cases.store import Column, case_writer, write_case_file, write_faces, write_set

FORMAT_VERSION = 1  # raise it when the same files give another case
FOLDER_COUNTS = (100, 99, 97, 100, 100, 96, 100, 98, 99)
"""Cars of param0 to param8, without the excluded: 889."""
ALL_CARS = sum(FOLDER_COUNTS)
EXCLUDED = {
    "854bb96a96a4d1b338acbabdc1252e2f",
    "85bb9748c3836e566f81b21e2305c824",
    "9ec13da6190ab1a3dd141480e2c154d3",
    "c5079a5b8d59220bc3fb0d224baae2a",
}
"""Cars of the archive without a surface, which the published figures leave out."""
PUBLISHED = {
    "surface_points": (SURFACE_POINTS, 3),
    "surface_normals": (SURFACE_POINTS, 3),
    "surface_pressure": (SURFACE_POINTS,),
    "volume_points": (-1, 3),
    "volume_velocity": (-1, 3),
    "volume_normals": (-1, 3),
    "volume_sdf": (-1,),
}
"""The published seven arrays of a car, by key; −1: the car's own number of volume points."""
FORCES = ("pressure_force", "pressure_moment")


@dataclass(frozen=True)
class CarJob:
    """A car to make: its name ("param0/1a2b…"), the folder of its files, and that of the store."""

    case: str
    folder: Path
    out: Path

    @cached_property
    def mark(self) -> str:
        """Changes whenever the car must be made again: names, sizes and times of change of its files."""
        digest = hashlib.sha256(f"shapenet_car {FORMAT_VERSION}\n".encode())
        for path in sorted(self.folder.iterdir()):
            if path.name in RAW_FILES or path.suffix == ".pt":
                digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def problems(self) -> Iterator[RequestError]:
        """Yields the files that the car lacks."""
        wanted = RAW_FILES if self._is_raw else [f"{key}.pt" for key in PUBLISHED]
        for name in wanted:
            if not (self.folder / name).is_file():
                yield RequestError(
                    "shapenet-file-missing",
                    f"{self.folder / name} is missing",
                    seen="no such file",
                    expected=f"{', '.join(RAW_FILES)}; or a .pt file for each of {', '.join(PUBLISHED)}",
                )

    def make(self) -> dict[str, Any]:
        """Makes the car, and returns what its `case.json` says. RequestError: a file is broken or does not fit."""
        for problem in self.problems():
            raise problem
        arrays = make_car(self.folder) if self._is_raw else read_published(self.folder)
        sets = {}
        with case_writer(self.out, self.case) as folder:
            for name in ("surface", "volume"):
                own = {key: array for key, array in arrays.items() if key.startswith(name) and key != "surface_quads"}
                columns = {key: Column(array, f"{key} of {self.folder}") for key, array in own.items()}
                sets[name], order = write_set(folder, self.case, name, columns, len(own[f"{name}_points"]))
                if name == "surface" and "surface_quads" in arrays:
                    write_faces(folder, name, arrays["surface_quads"], order)
            numbers = {
                "parameters": {key: float(arrays[key][0]) for key in ("reference_area",) if key in arrays},
                "outputs": {},
                "forces": {key: arrays[key].tolist() for key in FORCES if key in arrays},
            }
            return write_case_file(folder, {"case": self.case, "mark": self.mark, **numbers, "sets": sets})

    @property
    def _is_raw(self) -> bool:
        return (self.folder / SURFACE).exists() or not (self.folder / "surface_points.pt").exists()


def car_jobs(root: Path, out: Path) -> list[CarJob]:
    """Returns the cars of a folder, or of its `training_data` or `preprocessed`, in the order of the published recipes.

    RequestError: there is no such folder, or no car in it.
    """
    for pattern in ("", "training_data/", "*/training_data/", "preprocessed/"):
        params = sorted(path for path in root.glob(f"{pattern}param[0-8]") if path.is_dir())
        # The published folders hold loose files, and some archives macOS's, beside the cars.
        cars = [car for param in params for car in sorted(param.iterdir()) if car.is_dir()]
        if cars := [car for car in cars if not car.name.startswith(".") and car.name not in EXCLUDED]:
            return [CarJob(f"{car.parent.name}/{car.name}", car, out) for car in cars]
    raise RequestError(
        "not-raw-shapenet",
        f"{root} holds no ShapeNet-Car data",
        seen="no cars in param0 to param8" if root.is_dir() else "no such file or folder",
        expected="the archive as it was published, the folder training_data that it holds, or a folder preprocessed",
    )


def param_of(case: str) -> str:
    """The param folder of a car."""
    return case.partition("/")[0]


def published_order(cases: Iterable[str]) -> list[str]:
    """The cars in the order of the published recipes: by param folder and name."""
    return sorted(cases, key=lambda case: case.split("/"))


def split_cars(cases: Sequence[str]) -> dict[str, list[str]]:
    """Returns the split param0, whose cars are the test split."""
    ordered = published_order(cases)
    return {
        "train": [case for case in ordered if param_of(case) != "param0"],
        "validation": [],
        "test": [case for case in ordered if param_of(case) == "param0"],
    }


def shortfalls(cases: Iterable[str]) -> list[str]:
    """What differs from the published data set, in words; empty where all 889 cars are there."""
    there = Counter(map(param_of, cases))
    wanted = {f"param{i}": count for i, count in enumerate(FOLDER_COUNTS)}
    return [f"{param} has {there[param]} of {count} cars" for param, count in wanted.items() if there[param] != count]


def read_published(folder: Path) -> dict[str, np.ndarray]:
    """Reads the seven tensors that the published recipe makes of a car, float32, with the shapes of PUBLISHED.

    RequestError, which names the file: it is missing, torn, of another type or count, or not finite.
    """
    arrays = {key: _read_tensor(folder / f"{key}.pt") for key in PUBLISHED}
    volume = arrays["volume_points"].shape[0] if arrays["volume_points"].ndim else 0
    for key, shape in PUBLISHED.items():
        expected = tuple(volume if size < 0 else size for size in shape)
        if arrays[key].shape != expected:
            raise _broken(folder / f"{key}.pt", f"shape {arrays[key].shape}", f"{expected}")
    if not 1 <= volume <= MOST_VOLUME_POINTS:
        raise _broken(folder / "volume_points.pt", f"{volume} points", f"1 to {MOST_VOLUME_POINTS}")
    return arrays


def _read_tensor(path: Path) -> np.ndarray:
    import torch

    try:
        tensor = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its parsers meet: RuntimeError, UnpicklingError, EOFError, ...
        raise _broken(path, one_line(error), "a complete file") from None
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.float32:
        seen = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise _broken(path, str(seen), "a tensor of float32")
    array: np.ndarray = tensor.numpy()
    if not np.isfinite(array).all():
        raise _broken(path, f"{int((~np.isfinite(array)).sum())} values that are not finite", "numbers")
    return array


def _broken(path: Path, seen: str, expected: str) -> RequestError:
    return RequestError("shapenet-file-broken", f"{path} is broken", seen=seen, expected=expected)
