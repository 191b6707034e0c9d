"""A raw archive and the folder prepared from it, made once a session."""

from pathlib import Path

import pytest
import torch
from shapenet_car_files import prepare_cars, write_archive

from noether.physics.cars.shapenet_car import PUBLISHED, make_car


@pytest.fixture(scope="session")
def raw_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """training_data with 2 + 3 + 1 cars, ASCII and binary files in turn, and an excluded car."""
    return write_archive(tmp_path_factory.mktemp("raw"), {"param0": 2, "param1": 3, "param2": 1})


@pytest.fixture(scope="session")
def prepared(raw_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that dataset_root names; tests that change it work on a copy."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare_cars(raw_archive, folder)
    return folder


@pytest.fixture(scope="session")
def published(raw_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the published recipe: seven tensors for each car."""
    folder = tmp_path_factory.mktemp("published")
    for car in sorted(path.parent for path in raw_archive.rglob("press.npy")):
        target = folder / "preprocessed" / car.parent.name / car.name
        target.mkdir(parents=True)
        arrays = make_car(car)
        for key in PUBLISHED:
            torch.save(torch.from_numpy(arrays[key]), target / f"{key}.pt")
    return folder
