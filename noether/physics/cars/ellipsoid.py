"""The built-in data set: one packed file a split, made from a seed when it is missing.

A split is `<folder>/<split>.safetensors`, whose arrays are those of `make_sample` with the samples along a new
first axis.
"""

from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.common.errors import RequestError
from noether.core.data.layout import CAR_SPACE, FRONTAL_WITHOUT_YAW
from noether.core.data.packed import PackedArrays, Spec, check_digest, open_packed, packed_writer
from noether.core.data.shared_work import Progress, cache_root, locked, silent, surviving_map
from noether.physics.cars.ellipsoid_car import (
    DYNAMIC_PRESSURE,
    EllipsoidCar,
    draw_car,
    make_sample,
    point_seed,
    sample_shapes,
)

if TYPE_CHECKING:
    import torch

    from noether.physics.settings import EllipsoidDatasetConfig

SPLITS = ("train", "test")
FORMAT_VERSION = 1  # raise it when the same seed gives other numbers
# About five seconds' work. A process takes about a second to start and import SciPy, and longer on a busy
# machine: shared out more finely than this, 600 cars of 2048 points were no faster on two cores than on one.
POINTS_PER_WORKER = 2_000_000


class EllipsoidDataset:
    """The samples of one packed split file, read from the memory map as they are asked for.

    It pickles as its path. RequestError as `open_split`.
    """

    def __init__(self, path: Path) -> None:
        self.packed = open_split(path)

    def __len__(self) -> int:
        return self.packed.samples

    def __getitem__(self, index: int) -> dict[str, "torch.Tensor"]:
        """Sample `index` as tensors that share the memory of the map, with the shapes of `sample_shapes`.

        And `pressure_force` (3,) in N and `pressure_moment` (3,) in N·m about the origin, as ShapeNet-Car's samples
        have them, made here: exactly, the half car has lift and neither drag nor side force (d'Alembert), and of the
        moments the yawing one alone.
        """
        import torch

        sample = {key: torch.from_numpy(array[index]) for key, array in self.packed.arrays.items()}
        lift = DYNAMIC_PRESSURE * float(sample["reference_area"]) * float(sample["lift_coefficient"])
        yawing = _yawing_moment(*sample["car"].tolist())
        exact = {"pressure_force": [0.0, lift, 0.0], "pressure_moment": [0.0, yawing, 0.0]}
        return sample | {key: torch.tensor(vector) for key, vector in exact.items()}

    def about(self) -> dict[str, Any]:
        """What `about_data` reads: a car on the ground in a wind along z."""
        return {"space": CAR_SPACE, "reference_areas": {"reference_area": FRONTAL_WITHOUT_YAW}}

    def name(self, index: int) -> str:
        """A name of sample `index` for tables and file names, like "test-0042"."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return f"{self.packed.path.stem}-{index:04d}"


@cache
def _yawing_moment(half_length: float, height: float, half_width: float, yaw: float) -> float:
    # Cached for each car: it takes as long as the rest of the sample.
    return EllipsoidCar(half_length, height, half_width, yaw).yawing_moment


def open_folder(folder: Path) -> tuple[EllipsoidDataset, EllipsoidDataset]:
    """The training and the test split."""
    return EllipsoidDataset(folder / "train.safetensors"), EllipsoidDataset(folder / "test.safetensors")


def open_split(path: Path) -> PackedArrays:
    """Open a packed split. RequestError: it is missing, cut short, or has not the keys, types and shapes of one."""
    packed = open_packed(path)
    arrays = packed.arrays
    given = [arrays.get(key, np.empty((0, 0))) for key in ("surface_points", "volume_points")]
    expected = sample_shapes(*(array.shape[1] if array.ndim == 3 else 0 for array in given))
    wrong = [
        f"{key} {arrays[key].dtype} {arrays[key].shape}" if key in arrays else f"no {key}"
        for key, shape in expected.items()
        if key not in arrays or arrays[key].dtype != np.float32 or arrays[key].shape[1:] != shape
    ]
    if wrong:
        raise RequestError(
            "not-an-ellipsoid-split",
            f"{path} is not a split of the ellipsoid data set",
            seen=", ".join(wrong),
            expected="float32 arrays (samples, ...) named " + ", ".join(expected),
            fix="dataset_root=<a folder that noether wrote>      (or leave it out, to generate the data)",
        )
    return packed


def check_folder(folder: Path) -> None:
    """Check that a folder given as `dataset_root` holds complete splits, without torch. RequestError: it does not."""
    paths = [folder / f"{split}.safetensors" for split in SPLITS]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise RequestError(
            "no-ellipsoid-data",
            f"dataset_root={folder} does not hold the ellipsoid data set",
            seen=f"no {' and no '.join(missing)}" if folder.is_dir() else "no such folder",
            expected=" and ".join(path.name for path in paths),
            fix="dataset_root=<the folder with these files>      (or leave it out, to generate the data)",
        )
    for path in paths:
        open_split(path)
        check_digest(path)


def cache_folder(dataset: "EllipsoidDatasetConfig") -> Path:
    """The folder of the data set made to these settings, below `cache_root`; nothing is created."""
    name = (
        f"train{dataset.train_shapes}-test{dataset.test_shapes}-surface{dataset.surface_points}"
        f"-volume{dataset.volume_points}-seed{dataset.seed}-v{FORMAT_VERSION}"
    )
    return cache_root() / "noether" / "ellipsoid" / name


def prepare(folder: Path, dataset: "EllipsoidDatasetConfig", *, workers: int = 1, progress: Progress = silent) -> None:
    """Make the split files that `folder` lacks.

    Each file appears complete or not at all. Processes that prepare one folder at the same time wait for
    each other, and the later ones find the work done. Where all is there, nothing is written.

    workers: processes to share the work, at most; 1 works in this one, and so does a small order.

    RequestError: the folder cannot be written, or a file that is there was made with other settings or is damaged.
    """
    try:
        if _missing(folder, dataset):
            with locked(folder):
                _make(folder, dataset, workers, progress)
    except OSError as error:
        raise RequestError(
            "ellipsoid-not-written",
            f"cannot write the ellipsoid data set to {folder}",
            seen=f"{type(error).__name__}: {error}",
            expected="a folder this user can write to, with room for the files",
            fix="export XDG_CACHE_HOME=/a/folder/you/can/write/to",
        ) from error


def _order(dataset: "EllipsoidDatasetConfig", split: str, size: int) -> dict[str, str]:
    """What a split file was made to, which it says itself."""
    points = {"surface_points": dataset.surface_points, "volume_points": dataset.volume_points}
    order = {"format_version": FORMAT_VERSION, "split": split, "size": size, **points, "seed": dataset.seed}
    return {"data_set": "ellipsoid", **{key: str(value) for key, value in order.items()}}


def _missing(folder: Path, dataset: "EllipsoidDatasetConfig") -> dict[str, int]:
    """The splits that the folder lacks, with their sizes; those that it has are checked."""
    missing = {}
    for split, size in zip(SPLITS, (dataset.train_shapes, dataset.test_shapes), strict=True):
        path, order = folder / f"{split}.safetensors", _order(dataset, split, size)
        if not path.exists():
            missing[split] = size
        elif (seen := dict(open_split(path).metadata)) != order:
            raise RequestError(
                "ellipsoid-of-other-settings",
                f"{path} was made with other settings",
                seen=str(seen),
                expected=str(order),
                fix=f"rm {quote(str(path))}",
            )
        else:
            check_digest(path)
    return missing


def _make(folder: Path, dataset: "EllipsoidDatasetConfig", workers: int, progress: Progress) -> None:
    missing, points = _missing(folder, dataset), (dataset.surface_points, dataset.volume_points)
    total, done = sum(missing.values()), 0
    workers = min(workers, total, 1 + total * sum(points) // POINTS_PER_WORKER)
    blocks: list[tuple[str, range]] = []
    for split, size in missing.items():
        # Small enough to share out evenly, and to show progress on a slow machine.
        length = max(1, min(16, size // (4 * max(1, workers))))
        blocks += [(split, range(size)[first : first + length]) for first in range(0, size, length)]
    with ExitStack() as files:
        write = {}
        for split, size in missing.items():
            specs = {key: Spec(np.dtype("<f4"), (size, *shape)) for key, shape in sample_shapes(*points).items()}
            path = folder / f"{split}.safetensors"
            write[split] = files.enter_context(packed_writer(path, specs, _order(dataset, split, size)))
        make = partial(_make_block, dataset.seed, *points)
        for (split, block), arrays in surviving_map(make, blocks, workers if workers > 1 else 0):
            if isinstance(arrays, RequestError):
                raise arrays
            write[split](block.start, arrays)
            done += len(block)
            progress(done, total)


def _make_block(seed: int, surface_points: int, volume_points: int, cars: tuple[str, range]) -> dict[str, np.ndarray]:
    split, block = cars
    counts = surface_points, volume_points
    samples = [make_sample(draw_car(seed, split, car), *counts, point_seed(seed, split, car)) for car in block]
    return {key: np.stack([sample[key] for sample in samples]) for key in samples[0]}
