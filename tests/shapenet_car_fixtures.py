"""A raw archive and the folder prepared from it, made once a session."""

from pathlib import Path

import pytest
from shapenet_car_files import write_archive

from noether.data.shapenet_car_prepare import prepare_folder


@pytest.fixture(scope="session")
def raw_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """training_data with 2 + 3 + 1 cars, ASCII and binary files in turn, and an excluded car."""
    return write_archive(tmp_path_factory.mktemp("raw"), {"param0": 2, "param1": 3, "param2": 1})


@pytest.fixture(scope="session")
def prepared(raw_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that dataset_root names; tests that change it work on a copy."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare_folder(raw_archive, folder)
    return folder
