"""A short run on the prepared ShapeNet-Car folder, by the documented command, and what it said; made once a session."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest_plugins = ("shapenet_car_fixtures",)

SMALL = (
    "model.dim=48",
    "model.encoder_depth=1",
    "model.decoder_depth=1",
    "model.supernodes=32",
    "model.radius=100",
    "trainer.precision=float32",
    "trainer.max_updates=8",
    "trainer.evaluate_every=8 updates",
    "trainer.effective_batch_size=1",
    "trainer.ema_decay=0.5",
    "optimizer.learning_rate=3e-3",
    "dataset.validation_fraction=0.25",
    "dataset.points_per_update={surface: 512, volume: 64}",
    "tracker.tensorboard=false",
)
"""What a test cannot afford of the published sizes; the recipe and the data set stay."""


@dataclass(frozen=True)
class FinishedRun:
    """A run's folder and the words of its training."""

    folder: Path
    out: str


@pytest.fixture(scope="session")
def shapenet_run(
    prepared: Path, noether: Callable[..., object], tmp_path_factory: pytest.TempPathFactory
) -> FinishedRun:
    """UPT, trained for a few updates."""
    return train_on(prepared, noether, tmp_path_factory.mktemp("runs"), "upt", *SMALL)


def train_on(root: Path, noether: Callable[..., object], runs: Path, experiment: str, *overrides: str) -> FinishedRun:
    """Trains an experiment by the documented command, on the CPU, and asserts that it ended well."""
    done = noether(
        "train", "--hp", "configs/train_shapenet.yaml", f"+experiment/shapenet={experiment}", "+accelerator=cpu",
        f"dataset_root={root}", f"output_path={runs}", f"run_id={experiment}", *overrides,
    )  # fmt: skip
    assert done.code == 0, done.out + done.err  # type: ignore[attr-defined]
    return FinishedRun(runs / experiment, done.out)  # type: ignore[attr-defined]
