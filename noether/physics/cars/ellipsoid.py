"""Make and open the built-in data set: a packed file for each split, made from a seed if it is missing."""

import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from noether.common.errors import RequestError
from noether.core.data.layout import CAR_SPACE, FRONTAL_WITHOUT_YAW
from noether.core.data.packed import PackedArrays, Spec, check_digest, open_packed, packed_writer
from noether.core.data.shared_work import Progress, cache_root, locked, silent, surviving_map
from noether.physics.cars import potential_flow as flow
from noether.physics.cars.potential_flow import Array

if TYPE_CHECKING:
    import torch
    from scipy.stats import qmc

    from noether.physics.settings import EllipsoidDatasetConfig

# SciPy is imported only to make samples: every rank of every run imports this file, but few of them make data.

WIND_SPEED = 20.0  # m/s, ShapeNet-Car's 72 km/h, along +z
AIR_DENSITY = 1.225  # kg/m³, the standard atmosphere at sea level
DYNAMIC_PRESSURE = 0.5 * AIR_DENSITY * WIND_SPEED**2  # Pa

# Uniform ranges of the drawn cars: metres, and radians for the yaw.
HALF_LENGTH_RANGE = (1.5, 2.6)
HEIGHT_RANGE = (0.55, 1.6)
HALF_WIDTH_RANGE = (0.7, 1.1)
YAW_RANGE = (-np.pi / 12, np.pi / 12)

# Along the wind, the box is −4.5..6 m, the range by which ShapeNet-Car's recipe normalises positions. Across the
# wind and upwards, at least the larger NEAR_DISTANCE is free between the box and any car.
BOX_LOW = np.array([-2.0, 0.0, -4.5])
BOX_HIGH = np.array([2.0, 4.5, 6.0])
NEAR_DISTANCE = (0.001, 0.7)  # half of the volume points are near the body, at distances in this range, in metres


@dataclass(frozen=True)
class EllipsoidCar:
    """The upper half of an ellipsoid on the ground: half length (along z), height, half width (along x), yaw.

    Lengths are positive, in metres; yaw is in radians. A positive yaw turns the car's z axis towards +x.
    """

    half_length: float
    height: float
    half_width: float
    yaw: float = 0.0

    @property
    def semi_axes(self) -> Array:
        """Semi-axes (3,) along the body's x, y, z."""
        return np.array([self.half_width, self.height, self.half_length])

    @property
    def reference_area(self) -> float:
        """Frontal area in m², π/2 · H · (W/2): the half ellipse of the car without yaw, as is usual for cars."""
        return float(np.pi / 2 * self.height * self.half_width)

    @property
    def curved_area(self) -> float:
        """Exact area of the surface above the ground in m²."""
        return flow.half_area(self.semi_axes)

    @property
    def body_wind(self) -> Array:
        """The wind (3,) in the body frame, m/s."""
        return self.to_body(np.array([0.0, 0.0, WIND_SPEED]))

    @cached_property
    def lift_coefficient(self) -> float:
        """Exact C_L for the reference area, with Cp = 0 under the car."""
        planform = np.pi * self.half_length * self.half_width
        on_planform = flow.half_force_coefficients(self.semi_axes, self.body_wind)[1]
        return float(on_planform) * planform / self.reference_area

    @cached_property
    def yawing_moment(self) -> float:
        """Exact moment of the pressure about y through the origin, in N·m; the moments about x and z are always 0."""
        return DYNAMIC_PRESSURE * flow.half_yawing_moment(self.semi_axes, self.body_wind)

    def to_world(self, vectors: ArrayLike) -> Array:
        """Rotate vectors (..., 3) from the body frame to the world frame."""
        return np.asarray(vectors, np.float64) @ self._rotation.T

    def to_body(self, vectors: ArrayLike) -> Array:
        """Rotate vectors (..., 3) from the world frame to the body frame."""
        return np.asarray(vectors, np.float64) @ self._rotation

    def normals(self, points: ArrayLike) -> Array:
        """Return unit outward normals (..., 3) at points (..., 3) of the surface."""
        return self.to_world(flow.surface_normals(self.semi_axes, self.to_body(points)))

    def pressure(self, points: ArrayLike) -> Array:
        """Return the pressure above ambient (...), in Pa, at points (..., 3) of the surface."""
        velocity = flow.surface_velocity(self.semi_axes, self.body_wind, self.to_body(points))
        return DYNAMIC_PRESSURE * flow.pressure_coefficient(self.body_wind, velocity)

    def velocity(self, points: ArrayLike) -> Array:
        """Return the velocity (..., 3) in m/s at points (..., 3) outside. ValueError: a point is inside the body."""
        return self.to_world(flow.volume_velocity(self.semi_axes, self.body_wind, self.to_body(points)))

    @cached_property
    def _rotation(self) -> Array:
        c, s = np.cos(self.yaw), np.sin(self.yaw)
        return np.array([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]])


def draw_car(seed: int, split: str, index: int) -> EllipsoidCar:
    """Draw car `index` of a split uniformly from the module's ranges; the same arguments give the same car."""
    low, high = np.transpose([HALF_LENGTH_RANGE, HEIGHT_RANGE, HALF_WIDTH_RANGE, YAW_RANGE])
    return EllipsoidCar(*map(float, np.random.default_rng(_entropy(seed, split, index, 0)).uniform(low, high)))


def point_seed(seed: int, split: str, index: int) -> int:
    """Return the seed with which `make_sample` draws the points of car `index` of a split."""
    return int(_entropy(seed, split, index, 1).generate_state(1, np.uint64)[0])


def sample_surface(car: EllipsoidCar, count: int, seed: int) -> Array:
    """Return points (count, 3) of the car's surface, uniform by area, y > 0; a smaller count gives the first of them.

    Directions s of the hemisphere are taken from a scrambled Sobol sequence. The sequence's third coordinate decides
    which are kept, in proportion to |A⁻¹s|, the ratio of the ellipsoid's area to the sphere's. Any count of points is
    thus spread evenly, and surface integrals are less noisy than with independent points.
    """
    return car.to_world(_area_uniform(car, _sobol(3, seed, 0), count)[0])


def sample_volume(car: EllipsoidCar, count: int, seed: int) -> Array:
    """Return points (count, 3) in the air, y > 0; a smaller count gives the first points of each kind.

    Points 0, 2, 4, ... are uniform in the part of the box BOX_LOW..BOX_HIGH outside the car. Points 1, 3, 5,
    ... gather near the body: each is a point of the surface, uniform by area, moved out along its normal. The distance
    is between the limits NEAR_DISTANCE and grows with the square of a uniform number. Because the body is convex,
    this is the distance to the body, and no point is below the ground. ValueError: the car exceeds the box.
    """
    reach = np.abs(car.to_world(np.diag(car.semi_axes)))
    extent = np.sqrt(np.sum(reach**2, axis=0))  # of the rotated ellipsoid along the world's axes
    if (extent > np.minimum(BOX_HIGH, np.where(BOX_LOW < 0, -BOX_LOW, BOX_HIGH))).any():
        raise ValueError(f"{car} does not fit into the box {BOX_LOW} .. {BOX_HIGH} m")

    def outside(candidates: Array) -> Array:
        points = BOX_LOW + (BOX_HIGH - BOX_LOW) * candidates
        level = np.sum((car.to_body(points) / car.semi_axes) ** 2, axis=-1)
        # 1e-5 is a small margin for the later rounding to float32.
        return np.asarray((level > 1 + 1e-5) & (points[:, 1] > 0))

    near = count // 2
    box = BOX_LOW + (BOX_HIGH - BOX_LOW) * _accepted(_sobol(3, seed, 1), count - near, outside)
    feet, spare = _area_uniform(car, _sobol(4, seed, 2), near)
    shortest, longest = NEAR_DISTANCE
    distance = shortest + (longest - shortest) * spare**2
    points = np.empty((count, 3))
    points[0::2] = box
    points[1::2] = car.to_world(feet + distance * flow.surface_normals(car.semi_axes, feet))
    return points


def make_sample(car: EllipsoidCar, surface_points: int, volume_points: int, seed: int) -> dict[str, np.ndarray]:
    """Make one sample in float32, with the keys and axes of ShapeNet-Car's preprocessed folder and a few more keys.

    With Ns = `surface_points` and Nv = `volume_points`, the keys are:

    - surface_points (Ns, 3) m, surface_normals (Ns, 3) outward, surface_pressure (Ns,) Pa;
    - volume_points (Nv, 3) m, volume_velocity (Nv, 3) m/s, volume_sdf (Nv,) m, the distance to the nearest
      of the sample's surface points, volume_normals (Nv, 3), the unit direction from that point;
    - surface_area (Ns,) m², quadrature weights whose sum is the exact area of the curved surface;
    - lift_coefficient (1,), exact; reference_area (1,) m²; car (4,): half length, height, half width, yaw.

    The fields are exact at the stored, rounded positions.
    """
    from scipy.spatial import cKDTree

    surface = sample_surface(car, surface_points, seed).astype(np.float32).astype(np.float64)
    volume = sample_volume(car, volume_points, seed).astype(np.float32).astype(np.float64)
    distance, nearest = map(np.asarray, cKDTree(surface).query(volume))
    sample: dict[str, np.ndarray] = {
        "surface_points": surface,
        "surface_normals": car.normals(surface),
        "surface_pressure": car.pressure(surface),
        "surface_area": np.full(surface_points, car.curved_area / surface_points),
        "volume_points": volume,
        "volume_velocity": car.velocity(volume),
        "volume_normals": (volume - surface[nearest]) / distance[:, None],
        "volume_sdf": distance,
        "lift_coefficient": np.array([car.lift_coefficient]),
        "reference_area": np.array([car.reference_area]),
        "car": np.array([car.half_length, car.height, car.half_width, car.yaw]),
    }
    return {key: array.astype(np.float32) for key, array in sample.items()}


def sample_shapes(surface_points: int, volume_points: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of a sample, by key."""
    surface = {"points": (3,), "normals": (3,), "pressure": (), "area": ()}
    volume = {"points": (3,), "velocity": (3,), "normals": (3,), "sdf": ()}
    return {
        **{f"surface_{name}": (surface_points, *shape) for name, shape in surface.items()},
        **{f"volume_{name}": (volume_points, *shape) for name, shape in volume.items()},
        **{"lift_coefficient": (1,), "reference_area": (1,), "car": (4,)},
    }


def _entropy(seed: int, split: str, index: int, stream: int) -> np.random.SeedSequence:
    # zlib's checksum, because Python's hash of a string differs between processes.
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(split.encode()), index, stream))


def _sobol(dimensions: int, seed: int, stream: int) -> "qmc.Sobol":
    from scipy.stats import qmc

    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))
    return qmc.Sobol(dimensions, scramble=True, seed=generator)  # `seed`: SciPy before 1.15 knows no `rng`


def _accepted(engine: "qmc.Sobol", count: int, accept: Callable[[Array], Array]) -> Array:
    """Return the first `count` points of the sequence that `accept` keeps, in order.

    Points are drawn in blocks of a power of two, as Sobol points require for balance; the block size changes no point.
    """
    block = 1 << max(count - 1, 1).bit_length()
    kept: list[Array] = []
    while not kept or sum(map(len, kept)) < count:
        candidates = engine.random(block)
        kept.append(candidates[accept(candidates)])
    return np.concatenate(kept)[:count]


def _area_uniform(car: EllipsoidCar, engine: "qmc.Sobol", count: int) -> tuple[Array, Array]:
    """Return points (count, 3), uniform by area, in the body frame, and the other d − 3 coordinates of the sequence."""
    axes = car.semi_axes

    def directions(candidates: Array) -> Array:
        height = 1 - candidates[:, 0]  # in (0, 1]: never on the ground
        radius, angle = np.sqrt(1 - height**2), 2 * np.pi * candidates[:, 1]
        return np.stack([radius * np.sin(angle), height, radius * np.cos(angle)], axis=-1)

    def accept(candidates: Array) -> Array:
        stretch = np.linalg.norm(directions(candidates) / axes, axis=-1) * axes.min()
        return np.asarray(candidates[:, 2] < stretch)

    kept = _accepted(engine, count, accept)
    return axes * directions(kept), kept[:, 3:]


SPLITS = ("train", "test")
FORMAT_VERSION = 1  # increase it when the same seed gives different numbers
# This is about five seconds of work. A process takes about a second, or longer on a busy machine, to start and import
# SciPy: with smaller shares, 600 cars of 2048 points were made no faster on two cores than on one.
POINTS_PER_WORKER = 2_000_000


class EllipsoidDataset:
    """A data set of the samples in one packed split file, which are read from the memory map on access.

    Its pickle contains only the path. RequestError as for `open_split`.
    """

    def __init__(self, path: Path) -> None:
        self.packed = open_split(path)

    def __len__(self) -> int:
        return self.packed.samples

    def __getitem__(self, index: int) -> dict[str, "torch.Tensor"]:
        """Return sample `index` as tensors that share the map's memory, with the shapes of `sample_shapes`.

        As in ShapeNet-Car's samples, `pressure_force` (3,) in N and `pressure_moment` (3,) in N·m about the origin are
        added. They are exact: the half ellipsoid has lift but neither drag nor side force (d'Alembert), and its only
        moment is the yawing moment.
        """
        import torch

        sample = {key: torch.from_numpy(array[index]) for key, array in self.packed.arrays.items()}
        lift = DYNAMIC_PRESSURE * float(sample["reference_area"]) * float(sample["lift_coefficient"])
        yawing = _known_car(*sample["car"].tolist()).yawing_moment
        exact = {"pressure_force": [0.0, lift, 0.0], "pressure_moment": [0.0, yawing, 0.0]}
        return sample | {key: torch.tensor(vector) for key, vector in exact.items()}

    def about(self) -> dict[str, Any]:
        """Return the description that `about_data` reads: a car on the ground in a wind along z."""
        return {"space": CAR_SPACE, "reference_areas": {"reference_area": FRONTAL_WITHOUT_YAW}}

    def name(self, index: int) -> str:
        """Return a name of sample `index` for tables and file names, like "test-0042"."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return f"{self.packed.path.stem}-{index:04d}"


_known_car = cache(EllipsoidCar)  # cached because computing a car's moment takes as long as the rest of the sample


def open_folder(folder: Path) -> tuple[EllipsoidDataset, EllipsoidDataset]:
    """Open the training and the test split."""
    return EllipsoidDataset(folder / "train.safetensors"), EllipsoidDataset(folder / "test.safetensors")


def open_split(path: Path) -> PackedArrays:
    """Open a packed split. RequestError: it is missing or cut short, or lacks an array of the right type and shape."""
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
            fix="dataset_root=<a folder that noether wrote>      (or without dataset_root, to generate the data)",
        )
    return packed


def check_folder(folder: Path) -> None:
    """Check, without torch, that a folder given as `dataset_root` holds complete splits. RequestError: it does not."""
    paths = [folder / f"{split}.safetensors" for split in SPLITS]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise RequestError(
            "no-ellipsoid-data",
            f"dataset_root={folder} does not hold the ellipsoid data set",
            seen=f"no {' and no '.join(missing)}" if folder.is_dir() else "no such folder",
            expected=" and ".join(path.name for path in paths),
            fix="dataset_root=<the folder with these files>      (or without dataset_root, to generate the data)",
        )
    for path in paths:
        open_split(path)
        check_digest(path)


def cache_folder(dataset: "EllipsoidDatasetConfig") -> Path:
    """Return the path, below `cache_root`, for the folder of a data set with these settings; create no folder."""
    name = (
        f"train{dataset.train_shapes}-test{dataset.test_shapes}-surface{dataset.surface_points}"
        f"-volume{dataset.volume_points}-seed{dataset.seed}-v{FORMAT_VERSION}"
    )
    return cache_root() / "noether" / "ellipsoid" / name


def prepare(folder: Path, dataset: "EllipsoidDatasetConfig", *, workers: int = 1, progress: Progress = silent) -> None:
    """Make the split files that `folder` lacks.

    Each file appears complete or not at all. Processes that prepare the same folder at the same time wait for each
    other, and the later processes find the work done. If no file is missing, nothing is written.
    workers: maximum number of processes; if it is 1, or if there is little work, this process does all of the work.
    RequestError: the folder cannot be written, or an existing file was made with other settings or is damaged.
    """
    try:
        if _missing(folder, dataset):
            with locked(folder):
                _make(folder, dataset, workers, progress)
    except OSError as error:
        raise RequestError("ellipsoid-not-written", f"cannot write the ellipsoid data set to {folder}",
                           seen=f"{type(error).__name__}: {error}",
                           expected="a folder that this user can write to, with enough disk space",
                           fix="export XDG_CACHE_HOME=/a/folder/you/can/write/to") from error  # fmt: skip


def _order(dataset: "EllipsoidDatasetConfig", split: str, size: int) -> dict[str, str]:
    """Return the settings of a split file, as recorded in the file's metadata."""
    points = {"surface_points": dataset.surface_points, "volume_points": dataset.volume_points}
    order = {"format_version": FORMAT_VERSION, "split": split, "size": size, **points, "seed": dataset.seed}
    return {"data_set": "ellipsoid", **{key: str(value) for key, value in order.items()}}


def _missing(folder: Path, dataset: "EllipsoidDatasetConfig") -> dict[str, int]:
    """Return the splits that the folder lacks, with their sizes; check the existing ones."""
    missing = {}
    for split, size in zip(SPLITS, (dataset.train_shapes, dataset.test_shapes), strict=True):
        path, order = folder / f"{split}.safetensors", _order(dataset, split, size)
        if not path.exists():
            missing[split] = size
        elif (seen := dict(open_split(path).metadata)) != order:
            raise RequestError("ellipsoid-of-other-settings", f"{path} was made with other settings", seen=str(seen),
                               expected=str(order), fix=f"rm {quote(str(path))}")  # fmt: skip
        else:
            check_digest(path)
    return missing


def _make(folder: Path, dataset: "EllipsoidDatasetConfig", workers: int, progress: Progress) -> None:
    missing, points = _missing(folder, dataset), (dataset.surface_points, dataset.volume_points)
    total, done = sum(missing.values()), 0
    workers = min(workers, total, 1 + total * sum(points) // POINTS_PER_WORKER)
    blocks: list[tuple[str, range]] = []
    for split, size in missing.items():
        # Blocks are small, so that workers get even shares and progress is visible on a slow machine.
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
