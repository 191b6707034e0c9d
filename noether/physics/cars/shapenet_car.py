"""ShapeNet-Car as a data set: prepared cases with the published splits, in the published order, and its statistics."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noether.common.errors import RequestError
from noether.core.data.about import CAR_SPACE, FRONTAL
from noether.physics.cars.shapenet_car_cases import ALL_CARS, param_of, published_order
from noether.physics.cases.dataset import CasesDataset, check_files
from noether.physics.cases.metadata import DATASET_FILE, read_metadata

PUBLISHED_STATISTICS = {
    "surface_pressure": ((-36.4098,), (48.6757,)),
    "volume_velocity": ((0.00293915, -0.0230546, 17.546032), (1.361689, 1.267649, 5.850353)),
    "volume_sdf": ((0.374222,), (0.178948,)),
}
"""Mean and standard deviation per channel of the public recipe, over the training split of param0 (789 cars)."""


class ShapeNetCarDataset(CasesDataset):
    """Some cars. Of themselves they say only where the wind blows: the published models read no further numbers."""

    def about(self) -> dict[str, Any]:
        """What `about_data` reads: a car on the ground in a wind along z."""
        return {"space": CAR_SPACE, "reference_areas": {"reference_area": FRONTAL}}


def check_shapenet_car(root: Path | None, split: str) -> dict[str, Any]:
    """Checks before any worker starts that the folder holds whole cars; returns its metadata.

    RequestError: no folder was given, it was not prepared, a file is missing, or its cars do not have the split.
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
        # The published recipe's folder, and what versions before 2026-11-25 packed, are prepared like the archive.
        source = root if (root / "preprocessed").is_dir() or (root / "param0").is_dir() else "ARCHIVE"
        raise RequestError(
            "no-shapenet-data",
            f"dataset_root={root} does not hold prepared ShapeNet-Car",
            seen="no such folder" if not root.is_dir() else f"no {DATASET_FILE}" if about is None else "other cases",
            expected="the folder that `noether data prepare shapenet_car` makes",
            fix=f"noether data prepare shapenet_car {source} FOLDER      (then dataset_root=FOLDER)",
            mount="" if root.is_dir() else str(root.absolute()),
        )
    split_indices([param_of(case) for case in published_order(about["cases"])], split)
    check_files(root, about)
    return about


def open_shapenet_car(root: Path, split: str) -> tuple[ShapeNetCarDataset, ShapeNetCarDataset]:
    """Opens the training and the test split of a prepared folder."""
    about = read_metadata(root)
    cars = published_order(about["cases"])
    train, test = split_indices([param_of(case) for case in cars], split)
    return (
        ShapeNetCarDataset(root, [cars[i] for i in train], about),
        ShapeNetCarDataset(root, [cars[i] for i in test], about),
    )


def split_indices(params: Sequence[str], split: str) -> tuple[list[int], list[int]]:
    """Positions of the training and of the test cars of a published split.

    param0: the cars of that folder are the test split. randperm189: torch.randperm(889) with seed 0, its first 189
    (the UPT paper's, of surface pressure alone; figures on the two are not comparable). RequestError: the cars that
    are there do not have this split.
    """
    cars = len(params)
    if split == "param0":
        test = [i for i, param in enumerate(params) if param == "param0"]
    elif cars != ALL_CARS:
        raise RequestError(
            "split-needs-all-cars",
            "the split randperm189 needs all cars",
            seen=f"{cars} cars",
            expected=f"{ALL_CARS}",
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
