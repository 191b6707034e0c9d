"""How much time does the loop lose to a checkpoint of 50M parameters with AdamW: noether against torch.save.

    python benchmarks/checkpoint.py [FOLDER] [--rounds N] [--millions N] [--json FILE]

Three arms take turns: so many updates with no checkpoint, with a torch.save at the first boundary, and with
a checkpoint of noether's there (copied aside, then written, hashed, flushed and renamed behind the loop). What an arm
takes longer than the first of its round is what the loop loses. torch.save flushes nothing to the disk and hashes
nothing. FOLDER should lie on a disk, not in memory. Updates compute on one thread: were every core computing, the
writing thread would take its share of them.
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
"""Length of an arm: longer than the write, so that all it costs falls into it."""


class Nothing(Task):
    """A task that is never asked."""

    def loss(self, predictions: Predictions, batch: Batch) -> torch.Tensor:
        """Is never called."""
        raise NotImplementedError

    def metrics(self, predictions: Predictions, batch: Batch) -> SampleMetrics:
        """Is never called."""
        raise NotImplementedError


def make_state(millions: int) -> TrainingState:
    model = nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(millions)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return TrainingState(model, None, optimizer, torch.amp.GradScaler("cpu", enabled=False), Nothing(), Progress())


class Arms:
    """A state, a loop over it, and two ways to save it."""

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
        """Return the seconds of the whole loop and of its longest update, the one with the checkpoint left out."""
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
        """Save as most programs do: in the loop."""
        content = {"model": self.state.model.state_dict(), "optimizer": self.state.optimizer.state_dict()}
        torch.save(content, self.folder / "torch.pt")

    def noether(self) -> None:
        """Save as this one does: behind the loop."""
        self.state.progress.updates += 1
        self.saver.save(self.state, None, leaving=False)

    def settle(self) -> None:
        """Between arms: nothing is on its way, and the disk has what it was given."""
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
        arms.noether()  # The first copy also asks for its memory: once a run.
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
