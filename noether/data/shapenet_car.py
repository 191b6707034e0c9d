"""ShapeNet-Car as a data set: its packed file, its published splits and statistics.

`dataset_root` is the folder above `preprocessed/param{0..8}/<id>/*.pt`, or one that holds the packed file alone.
The packed file is made on first use from the preprocessed folder, whose files are checked, and again when they change.
It has all cars in the order of the published recipes, by param folder and name.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.common.cpus import usable_cpus
from noether.data.about import CAR_SPACE
from noether.data.packed import PackedArrays, Spec, check_digest, open_packed, packed_writer
from noether.data.shapenet_car_raw import FOLDER_COUNTS, MOST_VOLUME_POINTS, SURFACE_POINTS
from noether.data.shared_work import Progress, cache_root, locked, silent
from noether.data.surviving_pool import all_made, surviving_map
from noether.errors import RequestError, one_line

if TYPE_CHECKING:
    import torch

PACKED_NAME = "shapenet_car.safetensors"
FORMAT_VERSION = 1  # raise it when the same folder gives another file
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
OWN = {"surface_area": (SURFACE_POINTS,), "reference_area": (1,), "pressure_force": (3,), "pressure_moment": (3,)}
"""What `noether data prepare` adds, for force coefficients; with `surface_quads`."""
QUADS, COUNT = "surface_quads", "volume_count"
MOST_QUADS = 4096
PUBLISHED_STATISTICS = {
    "surface_pressure": ((-36.4098,), (48.6757,)),
    "volume_velocity": ((0.00293915, -0.0230546, 17.546032), (1.361689, 1.267649, 5.850353)),
    "volume_sdf": ((0.374222,), (0.178948,)),
}
"""Mean and standard deviation per channel of the public recipe, over the training split of param0 (789 cars)."""


def find_cars(root: Path | None) -> list[Path]:
    """Returns the cars' folders in the order of the published recipes; none where there is the packed file alone.

    RequestError: no folder was given, or it holds no cars.
    """
    if root is None:
        raise RequestError(
            "shapenet-needs-dataset-root",
            "ShapeNet-Car needs dataset_root",
            seen="dataset_root=null",
            expected="the folder above preprocessed/param0 ... param8",
            fix="dataset_root=FOLDER      (made by: noether data prepare shapenet_car ARCHIVE FOLDER)",
        )
    base = root / "preprocessed" if (root / "preprocessed").is_dir() else root
    params = [base / f"param{i}" for i in range(len(FOLDER_COUNTS))]
    every = [car for param in params if param.is_dir() for car in sorted(param.iterdir())]
    folders = [car for car in every if car.is_dir() and not car.name.startswith(".")]
    if not folders and not (root / PACKED_NAME).is_file():
        raise RequestError(
            "no-shapenet-data",
            f"dataset_root={root} does not hold ShapeNet-Car",
            seen="no such folder" if not root.is_dir() else f"neither preprocessed/param0 nor {PACKED_NAME}",
            expected="preprocessed/param{0..8}/<id>/*.pt",
            fix="noether data prepare shapenet_car ARCHIVE FOLDER      (then dataset_root=FOLDER)",
            mount="" if root.is_dir() else str(root.absolute()),
        )
    return folders


def ensure_packed(root: Path | None, progress: Progress = silent, *, out: Path | None = None) -> Path:
    """Returns the packed file of a data folder, made if it is missing or older than the folder's files.

    It lies in `out`, which can then be `dataset_root` by itself. Without `out` it lies in the folder, or where that
    cannot be written in the user's cache.

    Raises:
        RequestError: no folder was given, it holds no cars, a car is broken, which is named, or there is no room.
    """
    folders = find_cars(root)
    assert root is not None
    if not folders:
        check_digest(root / PACKED_NAME)
        return root / PACKED_NAME
    mark = _fingerprint(folders)
    own = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
    places = [out] if out else [root, cache_root() / "noether" / "shapenet_car" / own]
    for place in places:
        if _is_current(place / PACKED_NAME, mark):
            return place / PACKED_NAME
    for place in places:
        try:
            with locked(place):
                if not _is_current(place / PACKED_NAME, mark):
                    _pack(folders, place / PACKED_NAME, mark, progress)
            return place / PACKED_NAME
        except OSError as error:
            refusal = error
    raise RequestError(
        "packed-data-not-written",
        "the packed data file cannot be written",
        seen=f"{type(refusal).__name__}: {refusal}",
        expected=f"room for {len(folders) * 1.2e-3:.1f} GB in {' or '.join(map(str, places))}",
        fix="--out FOLDER" if out else "export XDG_CACHE_HOME=/a/folder/with/room",
    ) from refusal


def _pack(folders: Sequence[Path], path: Path, mark: str, progress: Progress) -> None:
    with_own = (folders[0] / f"{QUADS}.pt").is_file()
    metadata = {
        "data_set": "shapenet_car",
        "format_version": str(FORMAT_VERSION),
        "names": json.dumps([f"{folder.parent.name}/{folder.name}" for folder in folders]),
        "fingerprint": mark,
    }
    # A process takes seconds to import torch: few cars need few. Two at least, as one would be the launching process,
    # which must stay free of torch and small.
    workers = max(2, min(usable_cpus(), 1 + len(folders) // 50))
    rows = {folder: row for row, folder in enumerate(folders)}
    cars = all_made(surviving_map(partial(_read_padded, with_own=with_own), folders, workers))
    first = next(cars)
    specs = {key: Spec(array.dtype, (len(folders), *array.shape)) for key, array in first[1].items()}
    with packed_writer(path, specs, metadata) as write:
        for done, (folder, arrays) in enumerate(chain([first], cars), 1):
            write(rows[folder], {key: array[None] for key, array in arrays.items()})
            progress(done, len(folders))


def _read_padded(folder: Path, *, with_own: bool) -> dict[str, np.ndarray]:
    """Reads and checks one car of the preprocessed folder; volume arrays are padded with 0, quads with -1.

    RequestError, which names the file: it is missing, torn, of another type or count, or not finite.
    """
    wanted = {**PUBLISHED, **(OWN if with_own else {})}
    arrays = {key: _read_tensor(folder / f"{key}.pt", "float32") for key in wanted}
    volume = arrays["volume_points"].shape[0] if arrays["volume_points"].ndim else 0
    for key, shape in wanted.items():
        expected = tuple(volume if size < 0 else size for size in shape)
        if arrays[key].shape != expected:
            raise _broken(folder / f"{key}.pt", f"shape {arrays[key].shape}", f"{expected}")
    if not 1 <= volume <= MOST_VOLUME_POINTS:
        raise _broken(folder / "volume_points.pt", f"{volume} points", f"1 to {MOST_VOLUME_POINTS}")
    for key in (key for key, shape in wanted.items() if shape[0] < 0):
        arrays[key] = _padded(arrays[key], MOST_VOLUME_POINTS, 0)
    if with_own:
        quads = _read_tensor(folder / f"{QUADS}.pt", "int32")
        fits = quads.ndim == 2 and quads.shape[1] == 4 and 1 <= len(quads) <= MOST_QUADS
        if not fits or not 0 <= quads.min() <= quads.max() < SURFACE_POINTS:
            raise _broken(folder / f"{QUADS}.pt", f"shape {quads.shape}", f"(F, 4) of indices below {SURFACE_POINTS}")
        arrays[QUADS] = _padded(quads, MOST_QUADS, -1)
    return {**arrays, COUNT: np.array([volume], np.int32)}


def _padded(array: np.ndarray, rows: int, value: int) -> np.ndarray:
    after = [(0, rows - len(array)), *[(0, 0)] * (array.ndim - 1)]
    return np.pad(array, after, constant_values=value)


def _read_tensor(path: Path, dtype: str) -> np.ndarray:
    import torch

    try:
        tensor = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise _broken(path, "no such file", "one file for each array of a car") from None
    except Exception as error:  # torch raises what its parsers meet: RuntimeError, UnpicklingError, EOFError, ...
        raise _broken(path, one_line(error), "a complete file") from None
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != getattr(torch, dtype):
        seen = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise _broken(path, str(seen), f"a tensor of {dtype}")
    array: np.ndarray = tensor.numpy()
    if not np.isfinite(array).all():
        raise _broken(path, f"{int((~np.isfinite(array)).sum())} values that are not finite", "numbers")
    return array


def _broken(path: Path, seen: str, expected: str) -> RequestError:
    return RequestError(
        "shapenet-file-broken",
        f"{path} is broken",
        seen=seen,
        expected=expected,
        fix=f"rm -r {path.parent}      (and prepare it again, or do without this car)",
    )


def _fingerprint(folders: Sequence[Path]) -> str:
    """Changes whenever a file of a car does: names, sizes and times of change."""
    digest = hashlib.sha256(str(FORMAT_VERSION).encode())
    for folder in folders:
        for path in sorted(folder.glob("*.pt")):
            about = path.stat()
            digest.update(
                f"{folder.parent.name}/{folder.name}/{path.name} {about.st_size} {about.st_mtime_ns}\n".encode()
            )
    return digest.hexdigest()


def _is_current(path: Path, mark: str) -> bool:
    try:
        if open_packed(path).metadata.get("fingerprint") != mark:
            return False
        check_digest(path)
    except RequestError:  # Missing, cut short or damaged: it is made again.
        return False
    return True


class ShapeNetCarDataset:
    """Some cars of the packed file, read from the memory map as they are asked for."""

    def __init__(self, packed: PackedArrays, names: Sequence[str], indices: Sequence[int]) -> None:
        self.packed, self.names, self.indices = packed, names, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> dict[str, "torch.Tensor"]:
        """Car `index` as tensors that share the memory of the map, with the shapes of PUBLISHED and OWN."""
        import torch

        row, arrays = self.indices[index], self.packed.arrays
        count = int(arrays[COUNT][row, 0])
        return {
            key: torch.from_numpy(array[row, :count] if key.startswith("volume_") else array[row])
            for key, array in arrays.items()
            if key not in (COUNT, QUADS)
        }

    def about(self) -> dict[str, Any]:
        """What `about_data` reads: a car on the ground in a wind along z."""
        return {"space": CAR_SPACE}

    def name(self, index: int) -> str:
        """The car's param folder and id, like "param0-1a2b…"."""
        return self.names[self.indices[index]].replace("/", "-")

    def faces(self, index: int) -> np.ndarray | None:
        """The quadrilaterals (F, 4) of the car's surface; None where the folder holds none."""
        if QUADS not in self.packed.arrays:
            return None
        quads = self.packed.arrays[QUADS][self.indices[index]]
        return np.asarray(quads[quads[:, 0] >= 0], np.int64)


def open_shapenet_car(path: Path, split: str) -> tuple[ShapeNetCarDataset, ShapeNetCarDataset]:
    """Opens the training and the test split of a packed file. RequestError: it does not name its cars."""
    packed = open_packed(path)
    try:
        names = json.loads(packed.metadata.get("names", ""))  # "param0/1a2b…", in the order of the file
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or len(names) != packed.samples or not all(isinstance(one, str) for one in names):
        raise RequestError(
            "not-packed-shapenet",
            f"{packed.path} is not a packed ShapeNet-Car",
            seen="no list of names of its cars",
            expected="a file that noether wrote",
            fix=f"rm {packed.path}      (and have it made again from preprocessed/)",
        )
    train, test = split_indices([name.partition("/")[0] for name in names], split)
    return ShapeNetCarDataset(packed, names, train), ShapeNetCarDataset(packed, names, test)


def split_indices(params: Sequence[str], split: str) -> tuple[list[int], list[int]]:
    """Positions of the training and of the test cars of a published split.

    param0: the cars of that folder are the test split. randperm189: torch.randperm(889) with seed 0, its first 189
    (the UPT paper's, of surface pressure alone; figures on the two are not comparable). RequestError: the cars that
    are there do not have this split.
    """
    cars = len(params)
    if split == "param0":
        test = [i for i, param in enumerate(params) if param == "param0"]
    elif cars != sum(FOLDER_COUNTS):
        raise RequestError(
            "split-needs-all-cars",
            "the split randperm189 needs all cars",
            seen=f"{cars} cars",
            expected=f"{sum(FOLDER_COUNTS)}",
            fix="dataset.split=param0",
        )
    else:
        import torch

        test = sorted(torch.randperm(cars, generator=torch.Generator().manual_seed(0))[:189].tolist())
    train = sorted(set(range(cars)) - set(test))
    if len(test) < 1 or len(train) < 2:
        raise RequestError(
            "split-needs-param-folders",
            f"the split {split} needs cars in param0 to test on and in param1 to param8 to train on",
            seen=f"{len(train)} to train on and {len(test)} to test on",
            expected="at least 2 and 1",
        )
    return train, test


def differing_statistics(arrays: Mapping[str, Any]) -> list[str]:
    """Which channels differ from the published constants by more than 1 % of a standard deviation, in words.

    arrays: those of the training split, as `describe_split` returns them.
    """
    words = []
    for key, (means, deviations) in PUBLISHED_STATISTICS.items():
        for channel, (m, s) in enumerate(zip(means, deviations, strict=True)):
            row = arrays[key]["channels"][channel]
            if abs(row["mean"] - m) > 0.01 * s or abs(row["std"] - s) > 0.01 * s:
                name = f"{key}[{channel}]" if len(means) > 1 else key
                words.append(f"{name}: mean {row['mean']:.6g}, std {row['std']:.6g}; published {m:.6g}, {s:.6g}")
    return words
