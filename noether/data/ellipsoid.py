"""Where the embedded data set lies: one packed file a split, made from a seed when it is missing.

A split is `<folder>/<split>.safetensors`, whose arrays are those of `make_sample` with the samples along a new
first axis.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.data.about import CAR_SPACE
from noether.data.digest import check_digest
from noether.data.ellipsoid_car import DYNAMIC_PRESSURE, EllipsoidCar, draw_car, make_sample, point_seed, sample_shapes
from noether.data.packed import PackedArrays, Spec, open_packed, packed_writer
from noether.data.shared_work import cache_root, locked, process_map, remove_stale
from noether.errors import RequestError

if TYPE_CHECKING:
    import torch

SPLITS = ("train", "test")
FORMAT_VERSION = 1  # raise it when the same seed gives other numbers
# About five seconds' work. A process takes about a second to start and import SciPy, and longer on a busy
# machine: shared out more finely than this, 600 cars of 2048 points were no faster on two cores than on one.
POINTS_PER_WORKER = 2_000_000


class EllipsoidDataset:
    """The samples of one packed split file, read from the memory map as they are asked for.

    It pickles as its path. RequestError as `open_split`.
    """

    def __init__(self, path: Path | str) -> None:
        self.packed = open_split(Path(path))

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
        return {"space": CAR_SPACE}

    def name(self, index: int) -> str:
        """A name of sample `index` for tables and file names, like "test-0042"."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return f"{self.packed.path.stem}-{index:04d}"


@cache
def _yawing_moment(half_length: float, height: float, half_width: float, yaw: float) -> float:
    # Cached for each car: it takes as long as the rest of the sample.
    return EllipsoidCar(half_length, height, half_width, yaw).yawing_moment


def open_split(path: Path) -> PackedArrays:
    """Open a packed split and check its keys, types and shapes.

    Raises:
        RequestError: the file is missing, cut short, or not a split of this data set.
    """
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
            f"{path} is not a split of the ellipsoid data set",
            seen=", ".join(wrong),
            expected="float32 arrays (samples, ...) named " + ", ".join(expected),
            fix="dataset_root=<a folder that noether wrote>      (or leave it out to have the data made)",
        )
    return packed


def check_folder(folder: Path | str) -> None:
    """Check that a folder given as `dataset_root` holds complete splits; torch is not imported.

    Raises:
        RequestError: the folder or a split is missing, cut short, or holds something else.
    """
    folder = Path(folder)
    missing = [f"{split}.safetensors" for split in SPLITS if not (folder / f"{split}.safetensors").is_file()]
    if missing:
        raise RequestError(
            f"dataset_root={folder} does not hold the ellipsoid data set",
            seen=f"no {' and no '.join(missing)}" if folder.is_dir() else "no such folder",
            expected=" and ".join(f"{split}.safetensors" for split in SPLITS),
            fix="dataset_root=<the folder with these files>      (or leave it out to have the data made)",
        )
    for split in SPLITS:
        open_split(folder / f"{split}.safetensors")
        check_digest(folder / f"{split}.safetensors")


def cache_folder(*, sizes: Mapping[str, int], surface_points: int, volume_points: int, seed: int) -> Path:
    """The folder of a data set made to this order, below `cache_root`; nothing is created."""
    counts = "-".join(f"{split}{size}" for split, size in sizes.items())
    name = f"{counts}-surface{surface_points}-volume{volume_points}-seed{seed}-v{FORMAT_VERSION}"
    return cache_root() / "noether" / "ellipsoid" / name


def prepare(
    folder: Path,
    sizes: Mapping[str, int],
    *,
    surface_points: int,
    volume_points: int,
    seed: int,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Make the split files that `folder` lacks.

    Each file appears complete or not at all. Processes that prepare one folder at the same time wait for
    each other, and the later ones find the work done. Where all is there, nothing is written.

    Args:
        folder: made if missing.
        sizes: samples of each split, by its name.
        surface_points, volume_points: points of each sample.
        seed: not negative.
        workers: processes to share the work, at most; 1 works in this one, and so does a small order.
        progress: called with (cars made, cars to make) as the work goes on.

    Raises:
        RequestError: the folder cannot be written, or a file that is there was made to another order or is
            damaged.
    """
    folder = Path(folder)
    orders = [_Order(split, size, surface_points, volume_points, seed) for split, size in sizes.items()]
    try:
        if not _missing(folder, orders):
            return
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            remove_stale(folder)
            _make(folder, _missing(folder, orders), workers, progress)
    except OSError as error:
        raise RequestError(
            f"cannot write the ellipsoid data set to {folder}",
            seen=f"{type(error).__name__}: {error}",
            expected="a folder this user can write to, with room for the files",
            fix="export XDG_CACHE_HOME=/a/folder/you/can/write/to",
        ) from error


@dataclass(frozen=True)
class _Order:
    """What a split file is to hold."""

    split: str
    size: int
    surface_points: int
    volume_points: int
    seed: int

    @property
    def specs(self) -> dict[str, Spec]:
        shapes = sample_shapes(self.surface_points, self.volume_points)
        return {key: Spec(np.dtype("<f4"), (self.size, *shape)) for key, shape in shapes.items()}

    @property
    def metadata(self) -> dict[str, str]:
        values = {"data_set": "ellipsoid", "format_version": FORMAT_VERSION, **self.__dict__}
        return {key: str(value) for key, value in values.items()}


def _missing(folder: Path, orders: Sequence[_Order]) -> list[_Order]:
    missing = []
    for order in orders:
        path = folder / f"{order.split}.safetensors"
        if not path.exists():
            missing.append(order)
        elif (seen := dict(open_split(path).metadata)) != order.metadata:
            raise RequestError(
                f"{path} was made to another order",
                seen=str(seen),
                expected=str(order.metadata),
                fix=f"rm {path}",
            )
        else:
            check_digest(path)
    return missing


def _make(folder: Path, orders: list[_Order], workers: int, progress: Callable[[int, int], None]) -> None:
    total, done = sum(order.size for order in orders), 0
    points = sum(order.size * (order.surface_points + order.volume_points) for order in orders)
    workers = min(workers, total, 1 + points // POINTS_PER_WORKER)
    with process_map(workers) as run:
        for order in orders:
            # Small enough to share out evenly, and to show progress on a slow machine.
            block = max(1, min(16, order.size // (4 * max(1, workers))))
            jobs = [(order, i, min(i + block, order.size)) for i in range(0, order.size, block)]
            path = folder / f"{order.split}.safetensors"
            with packed_writer(path, order.specs, order.metadata) as writer:
                for (_, start, stop), arrays in zip(jobs, run(_make_block, jobs), strict=True):
                    writer.write(start, arrays)
                    done += stop - start
                    progress(done, total)


def _make_block(job: tuple[_Order, int, int]) -> dict[str, np.ndarray]:
    order, start, stop = job
    samples = []
    for i in range(start, stop):
        car, seed = draw_car(order.seed, order.split, i), point_seed(order.seed, order.split, i)
        samples.append(make_sample(car, order.surface_points, order.volume_points, seed))
    return {key: np.stack([sample[key] for sample in samples]) for key in samples[0]}
