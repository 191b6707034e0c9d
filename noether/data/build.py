"""Which data set a `dataset.kind` names, where its files are, and its splits. Without torch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from noether.components import build_component
from noether.config.dataset import EllipsoidDatasetConfig, MnistDatasetConfig, ShapeNetCarDatasetConfig
from noether.config.schema import RunConfig
from noether.data import digits, ellipsoid
from noether.data.shapenet_car import ensure_packed, open_shapenet_car
from noether.data.shared_work import usable_cpus
from noether.errors import RequestError

if TYPE_CHECKING:
    from noether.data.loader import Dataset


@dataclass(frozen=True)
class Splits:
    """The splits of a data set; the validation split is cut from `train` by index."""

    train: "Dataset"
    test: "Dataset"


def prepare_data(config: RunConfig, progress: Callable[[int, int], None] | None = None) -> Path | None:
    """Makes what can be made and checks what must be there, before any worker starts.

    Args:
        config: the run's configuration.
        progress: called with (samples made, samples to make).

    Returns:
        The folder of the data, or its packed file; None where a user's own data set was given none.

    Raises:
        RequestError: where `dataset_root` lacks the data.
    """
    dataset = config.dataset
    root = config.dataset_root.expanduser() if config.dataset_root else None
    if isinstance(dataset, ShapeNetCarDatasetConfig):
        return ensure_packed(root, progress or (lambda done, total: None))
    if not isinstance(dataset, EllipsoidDatasetConfig):
        if root is not None and not root.is_dir():
            raise RequestError(
                f"dataset_root={root} is not a folder",
                seen="no such folder" if not root.exists() else "a file",
                expected=f"the folder that {dataset.kind} reads",
                fix="dataset_root=FOLDER",
            )
        if isinstance(dataset, MnistDatasetConfig):
            for split in digits.FILES:
                digits.open_digits(root, split)
        return root
    if root is not None:
        ellipsoid.check_folder(root)
        return root
    sizes = {"train": dataset.train_shapes, "test": dataset.test_shapes}
    points = {"surface_points": dataset.surface_points, "volume_points": dataset.volume_points}
    folder = ellipsoid.cache_folder(None, sizes=sizes, seed=dataset.seed, **points)
    ellipsoid.prepare(folder, sizes, seed=dataset.seed, workers=usable_cpus(), progress=progress, **points)
    return folder


def open_splits(config: RunConfig, folder: Path | None) -> Splits:
    """Opens the training and the test split."""
    dataset = config.dataset
    if isinstance(dataset, EllipsoidDatasetConfig):
        assert folder is not None
        train, test = (ellipsoid.EllipsoidDataset(folder / f"{name}.safetensors") for name in ("train", "test"))
        return Splits(train, test)
    if isinstance(dataset, MnistDatasetConfig):
        return Splits(digits.open_digits(folder, "train"), digits.open_digits(folder, "test"))
    if isinstance(dataset, ShapeNetCarDatasetConfig):
        assert folder is not None
        return Splits(*open_shapenet_car(folder, dataset.split))
    train, test = (
        build_component("dataset", dataset.kind, {}, dataset.options(), given={"split": split, "root": folder})
        for split in ("train", "test")
    )
    for name, split in (("train", train), ("test", test)):
        if not len(split):
            raise RequestError(
                f"the {name} split of {dataset.kind} is empty",
                seen="0 samples",
                expected="at least one",
                fix=f"give {dataset.kind} samples for split={name!r}",
            )
    return Splits(train, test)
