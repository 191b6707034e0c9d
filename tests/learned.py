"""Check that a run on several ranks learns the same weights as a run in one process."""

import json

import torch
from safetensors.torch import load_file

from noether.checkpoints.format import list_checkpoints
from noether.launch.detect.placement import Device, Endpoint, Worker
from noether.launch.process_group.group import Group
from noether.launch.processes.context import WorkerContext
from noether.runs.folder import RunFolder

# Sums in a different order differ by rounding. With float64 and plain SGD, these differences do not grow.
PROOF = ("trainer.precision=float64", "optimizer=sgd", "optimizer.learning_rate=0.05", "trainer.max_updates=6")


def one_rank() -> Group:
    context = WorkerContext(Worker(0, 0, 0, Device("cpu")), 1, 1, "host", Endpoint("127.0.0.1", 0), 0, 1)
    return Group(context, torch.device("cpu"))


def weights(folder: RunFolder, name: str = "model.safetensors", which: int = -1) -> dict[str, torch.Tensor]:
    """Return the weights in a run's last checkpoint, or in the checkpoint at index `which`."""
    return load_file(list_checkpoints(folder.checkpoints)[which].path / name)


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the maximum absolute difference between the weights of two models with the same names of weights."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def check_learned(folder: RunFolder, launcher: str, world_size: int, by_one: dict[str, torch.Tensor]) -> None:
    """Check a run's launcher and world size, and that it learned the same weights as one process."""
    assert json.loads(folder.plan.read_text())["launcher"] == launcher
    assert json.loads(folder.result.read_text())["world_size"] == world_size
    assert difference(by_one, weights(folder)) < 1e-10
