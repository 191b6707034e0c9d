"""The physics data sets, and how each of them is checked, prepared and opened. Does not import torch."""

from pathlib import Path

from noether.common.cpus import usable_cpus
from noether.common.errors import RequestError
from noether.core.data.build import DataSource, Splits
from noether.core.data.shared_work import Progress
from noether.physics.cars import ellipsoid
from noether.physics.cars.shapenet_car import check_shapenet_car, open_shapenet_car
from noether.physics.cases.dataset import check_cases, open_cases, read_metadata
from noether.physics.cases.store import refuse_missing, verify_cases
from noether.physics.settings import CasesDatasetConfig, EllipsoidDatasetConfig, ShapeNetCarDatasetConfig


def _prepare_ellipsoid(dataset: EllipsoidDatasetConfig, root: Path | None, progress: Progress) -> Path:
    if root is not None:
        return root
    folder = ellipsoid.cache_folder(dataset)
    ellipsoid.prepare(folder, dataset, workers=usable_cpus(), progress=progress)
    return folder


def _verify(dataset: CasesDatasetConfig | ShapeNetCarDatasetConfig, root: Path, progress: Progress) -> Path:
    verify_cases(root, read_metadata(root), progress, usable_cpus())
    return root


def _check_cases(dataset: CasesDatasetConfig, root: Path | None) -> None:
    if root is None:
        raise refuse_missing(None)
    sets = check_cases(root)["sets"]
    wanted = dataset.points_per_update
    for name, count in wanted.items() if isinstance(wanted, dict) else ():
        if name not in sets:
            raise RequestError("prepared-set-missing", f"the prepared cases have no set {name}",
                               seen=f"dataset.points_per_update.{name}={count}",
                               expected="a set among " + ", ".join(sets),
                               fix=f"dataset.points_per_update={count}      (for every set)")  # fmt: skip


def _open_cases(dataset: CasesDatasetConfig, folder: Path) -> Splits:
    train, test, validation = open_cases(folder)
    return Splits(train, test, validation or None)


ELLIPSOID = DataSource(
    check=lambda dataset, root: None if root is None else ellipsoid.check_folder(root),
    open=lambda dataset, folder: Splits(*ellipsoid.open_folder(folder)),
    prepare=_prepare_ellipsoid,
)
SHAPENET_CAR = DataSource(
    check=lambda dataset, root: check_shapenet_car(root, dataset.split),
    open=lambda dataset, folder: Splits(*open_shapenet_car(folder, dataset.split)),
    prepare=_verify,
)
CASES = DataSource(_check_cases, _open_cases, _verify)
