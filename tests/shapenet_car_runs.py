"""Fixtures of a session: a raw ShapeNet-Car archive, the folders prepared from it, and a short run."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from shapenet_car_files import prepare_cars, write_archive

from noether.physics.cars.shapenet_car import PUBLISHED, make_car


@pytest.fixture(scope="session")
def raw_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write training_data with 2 + 3 + 1 cars, alternately ASCII and binary, and an excluded car."""
    return write_archive(tmp_path_factory.mktemp("raw"), {"param0": 2, "param1": 3, "param2": 1})


@pytest.fixture(scope="session")
def prepared(raw_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for `dataset_root`. A test that changes the folder must use a copy."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare_cars(raw_archive, folder)
    return folder


@pytest.fixture(scope="session")
def published(raw_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the published recipe: seven tensors for each car."""
    folder = tmp_path_factory.mktemp("published")
    for car in sorted(path.parent for path in raw_archive.rglob("press.npy")):
        target = folder / "preprocessed" / car.parent.name / car.name
        target.mkdir(parents=True)
        arrays = make_car(car)
        for key in PUBLISHED:
            torch.save(torch.from_numpy(arrays[key]), target / f"{key}.pt")
    return folder


SMALL = (
    *("model.dim=48", "model.encoder_depth=1", "model.decoder_depth=1", "model.supernodes=32", "model.radius=100"),
    *("trainer.precision=float32", "trainer.max_updates=8", "trainer.evaluate_every=8 updates"),
    *("trainer.effective_batch_size=1", "trainer.ema_decay=0.5", "optimizer.learning_rate=3e-3"),
    *("dataset.validation_fraction=0.25", "dataset.points_per_update={surface: 512, volume: 64}"),
    "tracker.tensorboard=false",
)
"""Settings that make the run small enough for a test. The rest of the published recipe stays as it is."""


@dataclass(frozen=True)
class FinishedRun:
    """The folder of a finished run, and what `noether train` printed."""

    folder: Path
    out: str


@pytest.fixture(scope="session")
def shapenet_run(prepared: Path, noether, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Train UPT on the CPU for a few updates, with the documented command."""
    runs = tmp_path_factory.mktemp("runs")
    words = ["--hp", "configs/train_shapenet.yaml", "+experiment/shapenet=upt", "+accelerator=cpu", *SMALL]
    done = noether("train", *words, f"dataset_root={prepared}", f"output_path={runs}", "run_id=upt", code=0)
    return FinishedRun(runs / "upt", done.out)
