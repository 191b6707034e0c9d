"""The packed file of ShapeNet-Car: made on first use from the preprocessed folder, whose files are checked.

`dataset_root` is the folder above `preprocessed/param{0..8}/<id>/*.pt`, or one that holds the packed file alone.
The packed file has all cars in the order of the published recipes, by param folder and name. It is made again when
the folder's files change.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from noether.common.cpus import usable_cpus
from noether.data.digest import check_digest
from noether.data.packed import Spec, open_packed, packed_writer
from noether.data.shapenet_car_raw import FOLDER_COUNTS, MOST_VOLUME_POINTS, SURFACE_POINTS
from noether.data.shared_work import Progress, cache_root, locked, process_map, untold
from noether.errors import RequestError

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


def find_cars(root: Path | None) -> list[Path]:
    """Returns the cars' folders in the order of the published recipes; none where there is the packed file alone.

    RequestError: no folder was given, or it holds no cars.
    """
    if root is None:
        raise RequestError(
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
            f"dataset_root={root} does not hold ShapeNet-Car",
            seen="no such folder" if not root.is_dir() else f"neither preprocessed/param0 nor {PACKED_NAME}",
            expected="preprocessed/param{0..8}/<id>/*.pt",
            fix="noether data prepare shapenet_car ARCHIVE FOLDER      (then dataset_root=FOLDER)",
            mount="" if root.is_dir() else str(root.absolute()),
        )
    return folders


def ensure_packed(root: Path | None, progress: Progress = untold, *, out: Path | None = None) -> Path:
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
    with process_map(workers) as run:
        cars = run(partial(_read_padded, with_own=with_own), folders)
        first = next(cars)
        specs = {key: Spec(array.dtype, (len(folders), *array.shape)) for key, array in first.items()}
        with packed_writer(path, specs, metadata) as writer:
            for row, arrays in enumerate(chain([first], cars)):
                writer.write(row, {key: array[None] for key, array in arrays.items()})
                progress(row + 1, len(folders))


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
        words = " ".join(str(error).split())[:200]
        raise _broken(path, words or type(error).__name__, "a whole file") from None
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != getattr(torch, dtype):
        seen = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise _broken(path, str(seen), f"a tensor of {dtype}")
    array: np.ndarray = tensor.numpy()
    if not np.isfinite(array).all():
        raise _broken(path, f"{int((~np.isfinite(array)).sum())} values that are not finite", "numbers")
    return array


def _broken(path: Path, seen: str, expected: str) -> RequestError:
    return RequestError(
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
