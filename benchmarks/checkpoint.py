"""Measure how much time a training loop loses when it saves 50M parameters and AdamW's state: noether or torch.save.

    python benchmarks/checkpoint.py [FOLDER] [--rounds N] [--millions N] [--json FILE]

Three variants take turns and make the same number of updates. The first saves nothing. In its first update, the second
calls torch.save, and the third saves a noether checkpoint: it is copied to a buffer, then written, hashed, flushed
and renamed in the background. The time lost is a variant's time minus that of the first variant in the same round.
torch.save neither flushes to disk nor hashes. FOLDER should be on a disk, not in memory. Updates compute on one thread,
so that the writing thread does not compete with them for cores.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from record import ABOUT, at_least_one, finish, parser, row, told
from torch import nn

from noether.checkpoints.state import Progress, TrainingState
from noether.checkpoints.writer import CheckpointWriter, Saver
from noether.core.data.loader import Batch
from noether.core.tasks.base import Predictions, SampleMetrics, Task
from noether.launch.detect.placement import Device, Endpoint, Worker
from noether.launch.process_group.group import Group
from noether.launch.processes.context import WorkerContext
from noether.runs.metrics import Metric

SECONDS = 4.0
"""The approximate duration of a variant: long enough for the write to finish, so that its whole cost is counted."""


class Nothing(Task):
    """A task that satisfies TrainingState; its methods are never called."""

    def loss(self, predictions: Predictions, batch: Batch) -> torch.Tensor:
        """Raise: never called here."""
        raise NotImplementedError

    def metrics(self, predictions: Predictions, batch: Batch) -> SampleMetrics:
        """Raise: never called here."""
        raise NotImplementedError


def make_state(millions: int) -> TrainingState:
    model = nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(millions)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return TrainingState(model, None, optimizer, torch.amp.GradScaler("cpu", enabled=False), Nothing(), Progress())


class Arms:
    """A training state, a loop of updates, and two ways to save the state."""

    def __init__(self, folder: Path, millions: int) -> None:
        self.folder, self.state = folder, make_state(millions)
        context = WorkerContext(Worker(0, 0, 0, Device("cpu")), 1, 1, "host", Endpoint("127.0.0.1", 0), 0, 1)
        group = Group(context, torch.device("cpu"))
        self.writer = CheckpointWriter(folder / "noether", keep=1)
        self.saver = Saver(group, self.writer, ABOUT, Metric("loss"), print)
        self.left, self.right = torch.randn(384, 384), torch.randn(384, 384)
        self.updates = 1
        self.updates = max(1, round(SECONDS / self.loop(lambda: None)[0] * self.updates))

    def loop(self, checkpoint: Callable[[], object]) -> tuple[float, float]:
        """Return the seconds of the whole loop, and of its longest update after the first, which saves."""
        longest, started = 0.0, time.perf_counter()
        for update in range(self.updates):
            began = time.perf_counter()
            for _ in range(8):
                self.left @ self.right
            if update == 0:
                checkpoint()
            else:
                longest = max(longest, time.perf_counter() - began)
        return time.perf_counter() - started, longest

    def torch_save(self) -> None:
        """Save by torch.save; the loop waits until the file is written."""
        content = {"model": self.state.model.state_dict(), "optimizer": self.state.optimizer.state_dict()}
        torch.save(content, self.folder / "torch.pt")

    def noether(self) -> None:
        """Save by noether, which writes in the background while the loop continues."""
        self.state.progress.updates += 1
        self.saver.save(self.state, None, leaving=False)

    def settle(self) -> None:
        """Wait until the pending write has ended and all data are on the disk."""
        self.writer.wait()
        os.sync()


def main() -> None:
    own = parser(__doc__)
    own.add_argument("folder", nargs="?", type=Path, default=Path.cwd())
    own.add_argument("--millions", type=at_least_one, default=50, help="millions of parameters")
    options = own.parse_args()
    parent, rounds, millions = options.folder, options.rounds or 7, options.millions
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=parent))
    try:
        arms = Arms(folder, millions)
        arms.noether()  # Not measured, because only the first copy of a run allocates the buffer.
        arms.settle()
        lost: dict[str, list[float]] = {"torch.save": [], "noether": []}
        spikes: dict[str, list[float]] = {"none": [], "torch.save": [], "noether": []}
        for _ in range(rounds):
            calm, spike = arms.loop(lambda: None)
            spikes["none"].append(spike)
            for name, checkpoint in (("torch.save", arms.torch_save), ("noether", arms.noether)):
                seconds, spike = arms.loop(checkpoint)
                lost[name].append(seconds - calm)
                spikes[name].append(spike)
                arms.settle()
        ratios = [one / other for one, other in zip(lost["noether"], lost["torch.save"], strict=True)]
        rows = [
            row(f"checkpoint of {millions} M parameters: time lost, noether / torch.save", ratios, 0.15, at_least=False)
        ]
        rows += [row(f"seconds lost to {name}", seconds) for name, seconds in lost.items()]
        rows += [row(f"longest update, ms: {name}", [1e3 * one for one in own]) for name, own in spikes.items()]
        finish("checkpoint", rows, options.json)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    told(main)
