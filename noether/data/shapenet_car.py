"""ShapeNet-Car as a data set: the cars of the packed file, its published splits and statistics."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.data.about import CAR_SPACE
from noether.data.packed import PackedArrays, open_packed
from noether.data.shapenet_car_packed import COUNT, QUADS
from noether.data.shapenet_car_raw import FOLDER_COUNTS
from noether.errors import RequestError

if TYPE_CHECKING:
    import torch

PUBLISHED_STATISTICS = {
    "surface_pressure": ((-36.4098,), (48.6757,)),
    "volume_velocity": ((0.00293915, -0.0230546, 17.546032), (1.361689, 1.267649, 5.850353)),
    "volume_sdf": ((0.374222,), (0.178948,)),
}
"""Mean and standard deviation per channel of the public recipe, over the training split of param0 (789 cars)."""


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
            "the split randperm189 is one of all cars",
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
