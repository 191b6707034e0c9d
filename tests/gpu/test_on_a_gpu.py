"""Whole runs on this machine's GPUs. Without a GPU they are skipped, or fail if NOETHER_REQUIRE_GPU=1 (`make gpu`)."""

import json
from pathlib import Path

import pytest
import torch
from learned import weights
from processes import GPU, lacking

from noether.runs.folder import RunFolder
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow
MODELS = ("upt_small", "ab_upt_small", "transformer_small", "transolver_small")
SMALL = (
    *("accelerator=gpu", "dataset.train_shapes=20", "dataset.test_shapes=5", "dataset.surface_points=256"),
    *("dataset.volume_points=128", "dataset.geometry_points=128", "trainer.effective_batch_size=4"),
    *("dataset.points_per_update={surface: 128, volume: 64}", "trainer.max_epochs=null", "trainer.max_updates=4"),
    *("trainer.checkpoint_every=2 updates", "trainer.log_every=1 updates", "trainer.evaluate_every=2 updates"),
)


@pytest.fixture(scope="module", autouse=True)
def gpus() -> int:
    count = torch.cuda.device_count()
    if not count:
        lacking(f"no GPU that torch {torch.__version__} could use", GPU)
    return count


def trained(noether, output: Path, name: str, *words: str, limit_s: float = 600) -> RunFolder:
    noether("train", f"output_path={output}", f"run_id={name}", *SMALL, *words, timeout=limit_s, code=0)
    return RunFolder(output / name)


WAYS = {
    "float32": (),
    "without-tf32": ("trainer.tf32=false",),
    "bf16": ("trainer.precision=bf16",),
    "fp16": ("trainer.precision=fp16",),
    "compiled": ("trainer.compile=true",),
    "recomputed": ("trainer.recompute=true",),
    "accumulated": ("trainer.max_batch_size=1",),
    "as-many-as-fit": ("trainer.max_batch_size=auto",),
    "lion": ("optimizer=lion",),
    "sgd": ("optimizer=sgd",),
}


@pytest.mark.parametrize("way", WAYS)
def test_one_gpu_trains(way: str, noether, tmp_path: Path) -> None:
    folder = trained(noether, tmp_path, "run", "devices=1", *WAYS[way])
    found = json.loads(folder.environment.read_text())
    assert found["driver"], found
    assert all(torch.isfinite(value).all() for value in weights(folder).values())


@pytest.mark.parametrize("model", MODELS)
def test_a_gpu_and_the_cpu_learn_the_same(model: str, noether, tmp_path: Path) -> None:
    """In float64, the rounding errors, which come from sums in a different order, stay within the tolerance."""
    words = (f"model={model}", "trainer.precision=float64", "devices=1")
    ours = weights(trained(noether, tmp_path, "gpu", *words))
    cpu = weights(trained(noether, tmp_path, "cpu", *words, "accelerator=cpu"))
    for name, value in ours.items():
        torch.testing.assert_close(value, cpu[name], rtol=1e-6, atol=1e-9, msg=lambda text, at=name: f"{at}: {text}")


def test_a_resumed_run_is_the_same_bit_for_bit(noether, tmp_path: Path) -> None:
    """The learning rate is constant, because a cosine schedule depends on the length of the run."""
    words = ("devices=1", "trainer.deterministic=true", "schedule=constant")
    whole = trained(noether, tmp_path, "whole", *words)
    for updates in (2, 4):
        halves = trained(noether, tmp_path, "halves", *words, f"trainer.max_updates={updates}", "resume=auto")
    pairs = zip(weights(whole).items(), weights(halves).items(), strict=True)
    assert all(one == other and torch.equal(value, again) for (one, value), (other, again) in pairs)


def test_every_gpu_of_the_machine_is_a_rank(gpus: int, noether, tmp_path: Path) -> None:
    folder = trained(noether, tmp_path, "all", f"trainer.effective_batch_size={2 * gpus}")
    assert json.loads(folder.plan.read_text())["world_size"] == gpus
    assert json.loads(folder.environment.read_text())["nccl"]


def test_a_model_trained_on_a_gpu_is_evaluated_and_predicts(noether, tmp_path: Path) -> None:
    folder = trained(noether, tmp_path, "run", "devices=1")
    assert noether("evaluate", str(folder.path), timeout=300).code == 0
    mesh = str(REPOSITORY / "examples" / "car.stl")
    noether("predict", str(folder.path), "--mesh", mesh, "--out", str(tmp_path / "car.vtp"), timeout=300, code=0)
    assert (tmp_path / "car.vtp").is_file()
