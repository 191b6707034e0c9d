"""Compare the speed of noether's loop with raw loops, Lightning and accelerate, on the same model and data.

    python benchmarks/loop.py [--ranks 1 2] [--rounds N] [--updates N] [--json FILE]

The model is tiny (30,000 parameters, 20 samples per update), so that the loop's own cost dominates; each rank has one
thread, and two ranks use DDP over gloo. Each variant is a process, and the variants take turns:

- noether, which logs to console and file every 10 updates and saves a checkpoint at the end of each turn;
- a raw loop with DataLoader, AdamW (torch's default or fused) and clipping, which reads the loss every 10 updates;
- Lightning with its defaults (progress, logger, checkpoints), Lightning with all of these off, and accelerate.

Finally, noether's loop and a raw loop are compared on the model and data of `make train`. Ratios are of CPU time, which
other work on the machine disturbs least; it is averaged over the ranks.
"""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from record import ABOUT, Arm, at_least_one, finish, parser, row, serve, told
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from noether.checkpoints.writer import CheckpointWriter, Saver
from noether.common.console import Console
from noether.common.dotted_path import code_granted
from noether.config.compose import load_config
from noether.core.data.build import prepare_data
from noether.core.data.loader import Batch
from noether.core.tasks.base import Predictions, Task
from noether.launch.batches import plan_batches
from noether.launch.detect.placement import Device, Endpoint, Worker
from noether.launch.process_group.group import Group
from noether.launch.process_group.stores import ControlChannel
from noether.launch.processes.context import WorkerContext
from noether.launch.processes.worker import keep_freed_memory
from noether.runs.tracking.console import ConsoleTracker
from noether.runs.tracking.tracker import MetricsFile, Trackers
from noether.training.build import build_run
from noether.training.loop import Loop

WIDTH, BATCH, SAMPLES = 100, 20, 8000
Turn = Callable[[], tuple[float, float] | None]
CONFIG = """\
defaults: [/optimizer: adamw, /schedule: constant, _self_]
dataset: {kind: loop.Lines, validation_fraction: 0.0}
model: {kind: loop.Network}
task: {kind: loop.Regression}
accelerator: cpu
trainer: {effective_batch_size: 20, max_updates: 1, evaluate_every: null, checkpoint_every: null}
"""


class Lines(Dataset[dict[str, torch.Tensor]]):
    """A data set whose input is 100 random numbers, and whose target is their sum."""

    def __init__(self, split: str = "train", root: Any = None) -> None:
        self.x = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(0))
        self.y = self.x.sum(dim=1, keepdim=True)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "y": self.y[index]}


class Network(nn.Module):
    """A network of five layers and 30,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [WIDTH, 100, 100, 70, 30]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.GELU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Predict y from x."""
        return {"y": self.layers(batch["x"])}


class Regression(Task):
    """A task with the squared error as loss."""

    def loss(self, predictions: Predictions, batch: Batch) -> torch.Tensor:
        """Return the mean squared error."""
        return (predictions["y"] - batch["y"]).square().mean()


class NobodyStops:
    """A stop to which no rank ever agrees; benchmarks/stop.py measures the cost of the real one."""

    def agreed(self) -> int:
        """Return 0: no rank stops."""
        return 0


def this_rank() -> tuple[int, int]:
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def own_group(store: Any) -> Group:
    rank, ranks = this_rank()
    worker = Worker(rank, rank, 0, Device("cpu"))
    context = WorkerContext(worker, ranks, ranks, "host", Endpoint("127.0.0.1", 0), 0, 1)
    limit_s = context.run_info.distributed.init_timeout_s
    channel = ControlChannel(store, rank, ranks, "benchmark", limit_s) if ranks > 1 else None
    return Group(context, torch.device("cpu"), channel)


def noether_arm(store: Any, words: tuple[str, ...] = ()) -> Callable[[int], Turn]:
    keep_freed_memory()
    group, folder = own_group(store), Path(tempfile.mkdtemp(prefix="noether-bench-"))
    (folder / "loop.yaml").write_text(CONFIG)
    turns = itertools.count()

    def prepare(updates: int) -> Turn:
        given = {"hp": folder / "loop.yaml"} if not words else {}
        config = load_config([*words, f"trainer.max_updates={updates}"], **given)
        batch = plan_batches(config.trainer.effective_batch_size, None, group.world_size)
        with code_granted(config.own_code()):
            run = build_run(config, prepare_data(config), group, batch)
        nothing: Any = NobodyStops()
        own = folder / f"turn-{next(turns)}"
        console = Console(None, speaks=group.is_first)
        shown: list[Any] = []
        if group.is_first:
            own.mkdir()
            length = {"start_update": 0, "total_updates": updates}
            shown = [
                ConsoleTracker(console, described=run.described, total_epochs=1.0, **length),
                MetricsFile(own / "metrics.jsonl", 0),
            ]
        trackers = Trackers(shown)
        saver = Saver(group, CheckpointWriter(own, keep=1) if group.is_first else None, ABOUT, run.selected_by, print)
        loop = Loop(run, nothing, trackers=trackers, saver=saver, validate=dict)

        def turn() -> None:
            loop.run()
            saver.__exit__()

        return turn

    return prepare


def seeded_loader() -> DataLoader[dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    data = Lines()
    rank, ranks = this_rank()
    if ranks == 1:
        return DataLoader(data, batch_size=BATCH, shuffle=True)
    return DataLoader(data, batch_size=BATCH // ranks, sampler=DistributedSampler(data, ranks, rank))


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def raw_arm(fused: bool) -> Callable[[int], Turn]:
    loader, task = seeded_loader(), Regression()
    model: nn.Module = Network()
    if this_rank()[1] > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused or None)
    batches = forever(loader)

    def train(updates: int) -> None:
        for made in range(updates):
            batch = next(batches)
            optimizer.zero_grad()
            loss = task.loss(model(batch), batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if made % 10 == 0:
                loss.item()

    return lambda updates: lambda: train(updates)


def accelerate_arm() -> Callable[[int], Turn]:
    from accelerate import Accelerator

    accelerator, task = Accelerator(cpu=True), Regression()
    torch.manual_seed(0)
    loader = DataLoader(Lines(), batch_size=BATCH // this_rank()[1], shuffle=True)
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches = forever(loader)

    def train(updates: int) -> None:
        for made in range(updates):
            batch = next(batches)
            optimizer.zero_grad()
            loss = task.loss(model(batch), batch)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if made % 10 == 0:
                loss.item()

    return lambda updates: lambda: train(updates)


def lightning_arm(bare: bool) -> Callable[[int], Turn]:
    import lightning

    class Module(lightning.LightningModule):
        """Network and its loss as a Lightning module."""

        def __init__(self) -> None:
            super().__init__()
            self.network, self.task, self.spent = Network(), Regression(), (0.0, 0.0)

        def training_step(self, batch: Batch, number: int) -> torch.Tensor:
            """Return the loss of one batch; unless `bare`, log it as Lightning's documentation shows."""
            loss = self.task.loss(self.network(batch), batch)
            if not bare:
                self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Return AdamW with torch's defaults."""
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

        def on_train_start(self) -> None:
            """Start timing here, to exclude the setup."""
            self.began = time.process_time(), time.perf_counter()

        def on_train_end(self) -> None:
            """Stop timing here, to exclude the teardown."""
            self.spent = time.process_time() - self.began[0], time.perf_counter() - self.began[1]

    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    folder = tempfile.mkdtemp(prefix="lightning-bench-")
    ranks = this_rank()[1]

    def prepare(updates: int) -> Turn:
        module = Module()
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=ranks,
            strategy="ddp" if ranks > 1 else "auto",
            max_steps=updates,
            gradient_clip_val=1.0,
            default_root_dir=folder,
            log_every_n_steps=10,
            **(off if bare else {}),
        )
        torch.manual_seed(0)
        loader = DataLoader(Lines(), batch_size=BATCH // ranks, shuffle=True)

        def turn() -> tuple[float, float]:
            with contextlib.redirect_stdout(sys.stderr):
                trainer.fit(module, loader)
            return module.spent

        return turn

    return prepare


def default_raw_arm(words: tuple[str, ...]) -> Callable[[int], Turn]:
    """Return a raw loop on the model and data of `make train`, as a function that prepares a turn."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    from noether.core.data.loader import training_batches
    from noether.core.data.order import GlobalOrder, RankOrder

    config = load_config([*words, "trainer.max_updates=1000000"])
    batch = plan_batches(config.trainer.effective_batch_size, None, 1)
    run = build_run(config, prepare_data(config), own_group(None), batch)
    problem, model = run.problem, run.state.model
    order = GlobalOrder(len(problem.train_indices), run.batch.effective, 0)
    own = RankOrder(order, run.batch.micro_batch_sizes(), 0, 0, run.length.total_updates)
    batches = training_batches(problem.splits.train, problem.train_indices, own, problem.draw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.998))

    def train(updates: int) -> None:
        for made in range(updates):
            batch = problem.task.prepare(next(batches))
            optimizer.zero_grad()
            loss = problem.task.loss(model(batch), batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            ema.update_parameters(model)
            if made % 25 == 0:
                loss.item()

    return lambda updates: lambda: train(updates)


DEFAULT = (
    *("output_path=" + tempfile.gettempdir(), "trainer.evaluate_every=null", "trainer.checkpoint_every=null"),
    "optimizer=adamw_short",  # the raw loop's optimizer
)
ARMS: dict[str, Callable[[Any], Callable[[int], Turn]]] = {
    "noether": noether_arm,
    "raw": lambda store: raw_arm(False),
    "raw, fused AdamW": lambda store: raw_arm(True),
    "Lightning, defaults": lambda store: lightning_arm(False),
    "Lightning, everything off": lambda store: lightning_arm(True),
    "accelerate": lambda store: accelerate_arm(),
    "noether, make train": lambda store: noether_arm(store, DEFAULT),
    "raw, make train": lambda store: default_raw_arm(DEFAULT),
}
GOALS = {"raw": 1.0, "raw, fused AdamW": 0.85, "Lightning, defaults": 2.0, "Lightning, everything off": 1.5}


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def arm_of(name: str, ranks: int) -> None:
    """Run one rank of a variant; rank 0 also starts the other ranks."""
    torch.set_num_threads(1)
    others = []
    if ranks > 1 and "RANK" not in os.environ:
        ranked = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        # Set torchrun's variables, by which Lightning and accelerate join the existing ranks.
        ranked |= {"TORCHELASTIC_RUN_ID": "benchmark", "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": "0"}
        for rank in range(1, ranks):
            environ = {**os.environ, **ranked, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            others.append(subprocess.Popen([sys.executable, *sys.argv], env=environ, stdout=subprocess.DEVNULL))
        os.environ.update({**ranked, "RANK": "0", "LOCAL_RANK": "0"})
    store: Any = None
    if ranks > 1:
        rank = this_rank()[0]
        dist.init_process_group("gloo", timeout=timedelta(seconds=300))
        store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]) + 1, ranks, rank == 0)
    try:
        prepare = ARMS[name](store)
        serve(prepare if ranks == 1 else lambda updates: together(prepare, updates), numbers(ranks))
    finally:
        for other in others:
            other.kill()


def numbers(ranks: int) -> Iterator[int]:
    """Yield on every rank the update counts that rank 0 reads from stdin, until a 0 or the end of stdin."""
    rank = this_rank()[0]
    while True:
        line = sys.stdin.readline() if rank == 0 else "0"
        asked = torch.tensor([int(line or 0)])
        if ranks > 1:
            dist.broadcast(asked, 0)
        if not asked.item():
            return
        yield int(asked.item())


def together(prepare: Callable[[int], Turn], updates: int) -> Turn:
    """Return a turn that begins when all ranks are ready; its CPU and wall times are averaged over the ranks."""
    turn = prepare(updates)
    dist.barrier()

    def timed() -> tuple[float, float]:
        cpu, wall = time.process_time(), time.perf_counter()
        spent = torch.tensor(turn() or (time.process_time() - cpu, time.perf_counter() - wall))
        dist.all_reduce(spent)
        cpu, wall = (spent / dist.get_world_size()).tolist()
        return cpu, wall

    return timed


def compare(names: list[str], ranks: int, rounds: int, updates: int) -> list[dict[str, Any]]:
    """Compare the first variant of `names` with each of the others; return the result rows."""
    arms = {name: Arm("loop.py", name, str(ranks)) for name in names}
    try:
        for arm in arms.values():
            arm.answer()
        answers = [{name: arm.ask(updates) for name, arm in arms.items()} for _ in range(rounds)]
    finally:
        for arm in arms.values():
            arm.close()
    own, said = names[0], f"{ranks} rank{'s' if ranks > 1 else ''}"
    rows = []
    for name in names[1:]:
        ratios = [one[name]["cpu_ms"] / one[own]["cpu_ms"] for one in answers]
        goal = 0.98 if own != "noether" else GOALS.get(name)
        rows.append(row(f"{said}: updates a second of {own} / {name}", ratios, goal))
    rows.append(row(f"{said}: ms of CPU time an update of {own}", [one[own]["cpu_ms"] for one in answers]))
    return rows


def main() -> None:
    own = parser(__doc__)
    own.add_argument("--ranks", type=at_least_one, nargs="+", default=[1, 2])
    own.add_argument("--updates", type=at_least_one, default=400)
    options = own.parse_args()
    rounds = options.rounds or 7
    rows: list[dict[str, Any]] = []
    for ranks in options.ranks:
        rows += compare(list(ARMS)[:6], ranks, rounds, options.updates)
        print(f"  {ranks} rank(s) done", file=sys.stderr, flush=True)
    rows += compare(list(ARMS)[6:], 1, max(3, rounds - 2), max(1, options.updates // 6))
    finish("loop", rows, options.json)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    if sys.argv[1:2] == ["--arm"]:
        arm_of(sys.argv[2], int(sys.argv[3]))
    else:
        told(main)
