"""At the end of an epoch, its mean loss and accuracy are those over all ranks, and count each sample once."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from noether.common.numbers import number_text
from noether.runs.folder import RunFolder
from noether.runs.records import read_metrics
from noether.training.time_use import EpochMetrics, UpdateMetrics

OWN = """
import torch
from torch import nn


class Clouds:
    def __init__(self, split, root):
        draw = torch.Generator().manual_seed(len(split))
        self.label = torch.arange(48) % 3
        self.x = torch.randn(48, 4, generator=draw, dtype=torch.float64) + self.label[:, None]

    def __len__(self):
        return 48

    def __getitem__(self, index):
        return {"x": self.x[index], "label": self.label[index]}


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, batch):
        return {"logits": self.layer(batch["x"])}
"""
SETTINGS = """
defaults: [/optimizer: adamw, /schedule: constant, _self_]
dataset: {kind: clouds.Clouds, validation_fraction: 0.0}
model: {kind: clouds.Linear}
task: {kind: classification, classes: 3}
optimizer: {learning_rate: 0.05}
accelerator: cpu
trainer: {effective_batch_size: 12, max_batch_size: 3, max_epochs: 2, log_every: 1 updates, precision: float64}
tracker: {report: false, tensorboard: false}
"""


@pytest.mark.slow
def test_two_ranks_count_what_one_does(noether, tmp_path) -> None:
    (tmp_path / "clouds.py").write_text(OWN)
    (tmp_path / "clouds.yaml").write_text(SETTINGS)
    epochs = {}
    for devices in ("1", "2"):
        done = noether("train", "--hp", "clouds.yaml", f"devices={devices}", f"run_id={devices}", cwd=tmp_path, code=0)
        rows = read_metrics(RunFolder(tmp_path / "runs" / devices).metrics)
        epochs[devices] = [row for row in rows if row["kind"] == "epoch"]
        losses = [row["loss"] for row in rows if row["kind"] == "training"]
        for number, row in enumerate(epochs[devices]):
            assert (row["update"], row["epoch_samples"]) == (4 * number + 4, 48)
            assert row["metrics"]["loss"] == pytest.approx(sum(losses[4 * number : 4 * number + 4]) / 4, rel=1e-12)
            shown = f"{number_text(row['metrics']['loss'])}  accuracy {row['metrics']['accuracy']:.2%}"
            assert re.search(rf"epoch +{number + 1}/2  training  loss {re.escape(shown)}  48 samples", done.out)
    one, two = ([row["metrics"] for row in epochs[devices]] for devices in ("1", "2"))
    assert [row["accuracy"] for row in one] == [row["accuracy"] for row in two]
    assert [row["loss"] for row in one] == pytest.approx([row["loss"] for row in two], rel=1e-10)
    assert one[0]["accuracy"] * 48 == pytest.approx(round(one[0]["accuracy"] * 48), abs=1e-9)
    assert one[0]["accuracy"] < one[1]["accuracy"]


def epoch_of(other: dict[str, float], *updates: tuple[float, dict[str, int], str | None]) -> EpochMetrics:
    """Return the epoch metrics on one of two ranks, from the sums of the other rank and this rank's updates."""
    group: Any = SimpleNamespace(gather=lambda own: [own, (4, other)], from_first=lambda found: found)
    epoch = EpochMetrics(group, 4)
    for loss, counts, skipped in updates:
        epoch.add(UpdateMetrics(torch.tensor(loss), torch.tensor(0.0), skipped, counts))
    return epoch


def test_what_is_in_some_batches_only_counts_over_all_samples() -> None:
    epoch = epoch_of({"loss": 8.0, "far": 2.0, "near": 1}, (1.0, {"near": 3}, None), (1.0, {}, None))
    assert epoch.read() == {"epoch_samples": 12, "metrics": {"loss": 16 / 12, "near": 4 / 12, "far": 2 / 12}}


def test_a_skipped_update_counts_nothing() -> None:
    skipped = (float("nan"), {"accuracy": 0}, "the gradient is not finite")
    epoch = epoch_of({"loss": 8.0, "accuracy": 4.0}, (0.5, {"accuracy": 3}, None), skipped)
    assert epoch.read() == {"epoch_samples": 8, "metrics": {"loss": 10 / 8, "accuracy": 7 / 8}}
    assert epoch.read() == {}


def test_a_task_that_counts_nothing_has_no_line() -> None:
    epoch = EpochMetrics(SimpleNamespace(), 4, counts=False)  # type: ignore[arg-type]
    epoch.add(UpdateMetrics(torch.tensor(1.0), torch.tensor(0.0)))
    assert epoch.read() == {}
