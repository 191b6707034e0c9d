"""How many updates does the loop make of a tiny model, against raw loops on the same model and data.

    OMP_NUM_THREADS=1 python benchmarks/loop.py [ROUNDS] [UPDATES]

Three arms in turn, ROUNDS times, one process and one thread: noether's loop with logging every 10 updates to a file and
averaged weights off; a raw loop (DataLoader, AdamW as torch makes it, clipping, the loss read every 10 updates); the
same with AdamW(fused=True). 30,000 parameters, 20 samples an update. Ratios are of CPU time, which other work on the
machine disturbs least, and of wall time; their median and range over the rounds.
"""

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from noether.checkpoints.state import TrainingState
from noether.config.compose import load_config
from noether.distributed.group import Group
from noether.environments.placement import Device, Endpoint, Worker
from noether.tasks.base import Task
from noether.tracking.metrics_file import MetricsFile
from noether.tracking.tracker import Trackers
from noether.training.build import build_run
from noether.training.loop import Loop
from noether.workers.context import WorkerContext

WIDTH, BATCH, SAMPLES = 100, 20, 400
CONFIG = """\
defaults: [/optimizer: adamw, /schedule: constant, _self_]
dataset: {kind: loop.Lines, validation_fraction: 0.0}
model: {kind: loop.Network}
task: {kind: loop.Regression}
accelerator: cpu
trainer: {effective_batch_size: 20, max_updates: 1, evaluate_every: null, checkpoint_every: null}
"""


class Lines:
    """The sum of 100 random numbers."""

    def __init__(self, split: str = "train", root: Any = None) -> None:
        self.x = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(0))
        self.y = self.x.sum(dim=1, keepdim=True)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "y": self.y[index]}


class Network(nn.Module):
    """Five layers, 30,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [WIDTH, 100, 100, 70, 30]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.GELU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Predicts y."""
        return {"y": self.layers(batch["x"])}


class Regression(Task):
    """Squared error."""

    def loss(self, predictions, batch):
        """Returns it."""
        return (predictions["y"] - batch["y"]).square().mean()


class NothingElse:
    """Stands for what these runs do not do: stops and checkpoints."""

    def agreed(self) -> int:
        """Nobody stops."""
        return 0

    def save(self, state: TrainingState, metric: float | None, *, leaving: bool) -> None:
        """Saves nothing."""

    def news(self) -> tuple[()]:
        """Nothing was saved."""
        return ()


def ours(updates: int) -> Callable[[], None]:
    device = torch.device("cpu")
    group = Group(WorkerContext(Worker(0, 0, 0, Device("cpu")), 1, 1, "host", Endpoint("127.0.0.1", 0), 0, 1), device)
    folder = Path(tempfile.mkdtemp(prefix="noether-bench-"))
    (folder / "loop.yaml").write_text(CONFIG)
    config = load_config([f"trainer.max_updates={updates}"], hp=folder / "loop.yaml")
    run = build_run(config, None, group)
    nothing: Any = NothingElse()
    trackers = Trackers([MetricsFile(folder / "metrics.jsonl", 0)])
    loop = Loop(
        config=config,
        built=run,
        group=group,
        stop=nothing,
        trackers=trackers,
        saver=nothing,
        validate=lambda state: {},
    )

    def train() -> None:
        loop.run()

    return train


def raw(updates: int, *, fused: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    model, task, data = Network(), Regression(), Lines()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused or None)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)

    def train() -> None:
        made = 0
        while True:
            for batch in loader:
                optimizer.zero_grad()
                loss = task.loss(model(batch), batch)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                made += 1
                if made % 10 == 0:
                    loss.item()
                if made == updates:
                    return

    return train


def main(rounds: int, updates: int) -> None:
    arms: dict[str, Callable[[], Callable[[], None]]] = {
        "noether": lambda: ours(updates),
        "raw": lambda: raw(updates, fused=False),
        "raw, fused AdamW": lambda: raw(updates, fused=True),
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name, make in arms.items():
            train, wall, busy = make(), time.perf_counter(), time.process_time()
            train()
            if number:  # The first round warms up.
                seconds[name].append((time.process_time() - busy, time.perf_counter() - wall))
    own = seconds.pop("noether")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, {rounds} rounds of {updates} updates")
    print(f"noether: {statistics.median(cpu for cpu, _ in own) / updates * 1e3:.3f} ms of CPU time an update")
    for name, theirs in seconds.items():
        for what, index in (("CPU", 0), ("wall", 1)):
            ratios = sorted(other[index] / one[index] for one, other in zip(own, theirs, strict=True))
            print(
                f"updates of noether / {name}, {what} time: {statistics.median(ratios):.3f} "
                f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
            )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    words = [int(word) for word in sys.argv[1:]]
    main(words[0] if words else 7, words[1] if len(words) > 1 else 400)
