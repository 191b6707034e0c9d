"""How long from the command to the first all-reduce, the first DDP step, and the exit: noether against torchrun.

    python benchmarks/launch.py [--workers 2 8] [--rounds N] [--no-lightning] [--json FILE]

Both start the same function in so many gloo ranks on this machine, in turn: torchrun with torch's DDP and AdamW,
noether with those of `noether train`, which leave torch's compiler out. Then the whole command of one update in two
ranks: `noether train` with its plan, data check, evaluation, checkpoint and figures in TensorBoard, with its report and
without (Lightning makes none), against a script of Lightning with its defaults that makes one update of a model of the
same size and validates it. Seconds are wall time from the exec of the launching program; ratios
are taken pair by pair. A launch that fails is said, and tried once more.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import REPOSITORY, finish, parser, row

POINTS = ("first all-reduce", "first DDP step", "exit")
GOALS = {2: 0.45, 8: 0.2}
WHOLE_GOAL = 0.4
WHOLE = ("lightning", "noether", "noether with report")
LONGEST_S = 180
ONE_UPDATE = (
    "accelerator=cpu",
    "devices=2",
    "trainer.max_updates=1",
    "dataset.train_shapes=16",
    "dataset.test_shapes=4",
)


def work(rank: int, marks: Path, ddp: Any, adamw: Any) -> None:
    """What every rank does: one all-reduce, one step of DDP and AdamW; rank 0 writes down when."""
    import torch
    import torch.distributed as dist

    times = {}
    dist.all_reduce(torch.ones(1000))
    times["first all-reduce"] = time.time()
    model = ddp(torch.nn.Linear(64, 64))
    optimizer = adamw(model.parameters())
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    times["first DDP step"] = time.time()
    del model, optimizer
    if rank == 0:
        marks.write_text(json.dumps(times))


def noether_worker(context, marks: str) -> int:
    import torch

    from noether.distributed.group import joined_group
    from noether.training.ddp import LightDDP
    from noether.training.optimizers import LightAdamW

    torch.set_num_threads(1)
    with joined_group(context):
        work(context.worker.rank, Path(marks), LightDDP, LightAdamW)
    return 0


def launch_with_noether(workers: int, marks: Path) -> None:
    from noether.environments.devices import DeviceInventory
    from noether.environments.launch_context import LaunchContext
    from noether.environments.local import local_placement
    from noether.environments.placement import Device, LaunchRequest
    from noether.workers.run import run_placement

    # An inventory of its own: two CPU workers a core is the most that a user may ask for.
    inventory = DeviceInventory("cpu", (Device("cpu"),), "benchmark", workers)
    placement = local_placement(LaunchRequest(devices=str(workers)), LaunchContext({}, inventory, "localhost"))
    sys.exit(run_placement(placement, "launch.noether_worker", str(marks), marks.parent))


def launched_by_torchrun(marks: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    work(dist.get_rank(), marks, torch.nn.parallel.DistributedDataParallel, torch.optim.AdamW)
    dist.destroy_process_group()


def run(command: list[str], what: str, **more: str) -> float:
    """Returns when a command ended; SystemExit where it failed twice."""
    environ = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'benchmarks'}", "OMP_NUM_THREADS": "1", **more}
    for attempt in (1, 2):
        try:
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LONGEST_S, check=False)
            ended, why = time.time(), f"ended with {done.returncode}:\n{done.stderr[-3000:]}"
            if done.returncode == 0:
                return ended
        except subprocess.TimeoutExpired:
            why = f"had not ended after {LONGEST_S} s"
        print(f"{what}, attempt {attempt}: {why}", file=sys.stderr, flush=True)
    raise SystemExit(f"{what} failed twice")


def measure(arm: str, workers: int) -> dict[str, float]:
    here = str(Path(__file__).resolve())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}", here]
    command = {"noether": [sys.executable, here, "noether", str(workers)], "torchrun": [*torchrun, "torchrun", "-"]}[
        arm
    ]
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "marks.json"
        started = time.time()
        ended = run([*command, str(marks)], f"{arm} with {workers} workers")
        times = {**json.loads(marks.read_text()), "exit": ended}
    return {point: times[point] - started for point in POINTS}


def train_with_lightning(folder: str) -> None:
    """A script of Lightning's documentation: two ranks, one update, validation, its defaults."""
    import lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Module(lightning.LightningModule):
        """As many parameters as the small UPT."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(100, 870), torch.nn.GELU(), torch.nn.Linear(870, 770))

        def training_step(self, batch, number):
            """One batch."""
            loss = self.layers(batch[0]).square().mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, number):
            """One batch of the validation split."""
            self.log("validation", self.layers(batch[0]).square().mean())

        def configure_optimizers(self):
            """AdamW as torch makes it."""
            return torch.optim.AdamW(self.parameters())

    data = DataLoader(TensorDataset(torch.randn(64, 100)), batch_size=4)
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=1, default_root_dir=folder)
    trainer.fit(Module(), data, data)


def whole_command(arm: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        here = str(Path(__file__).resolve())
        train = [sys.executable, "-m", "noether", "train", *ONE_UPDATE, f"output_path={folder}"]
        command = {
            "noether": [*train, "tracker.report=false"],
            "noether with report": train,
            "lightning": [sys.executable, here, "lightning", folder],
        }[arm]
        started = time.time()
        return run(command, f"one update with {arm}", PYTHONWARNINGS="ignore") - started


def main() -> None:
    own = parser(__doc__)
    own.add_argument("--workers", type=int, nargs="+", default=[2, 8])
    own.add_argument("--no-lightning", action="store_true")
    options = own.parse_args()
    rows: list[dict[str, Any]] = []
    for workers in options.workers:
        rounds = options.rounds or (5 if workers < 8 else 3)
        # One round more, uncounted: it reads files into the page cache.
        pairs = [{arm: measure(arm, workers) for arm in ("torchrun", "noether")} for _ in range(rounds + 1)][1:]
        print(f"  {workers} workers done", file=sys.stderr, flush=True)
        for point in POINTS:
            ratios = [pair["noether"][point] / pair["torchrun"][point] for pair in pairs]
            goal = GOALS.get(workers) if point == "first DDP step" else None
            rows.append(row(f"{workers} workers: {point}, noether / torchrun", ratios, goal, at_least=False))
            for arm in ("torchrun", "noether"):
                rows.append(row(f"{workers} workers: {point}, seconds of {arm}", [pair[arm][point] for pair in pairs]))
    if not options.no_lightning:
        rounds = min(options.rounds or 3, 2)
        times = [{arm: whole_command(arm) for arm in WHOLE} for _ in range(rounds + 1)][1:]
        for arm in WHOLE[1:]:
            ratios = [one[arm] / one["lightning"] for one in times]
            said = f"whole command of one update, 2 ranks: {arm} / Lightning"
            rows.append(row(said, ratios, WHOLE_GOAL, at_least=False))
        for arm in WHOLE:
            rows.append(row(f"whole command of one update: seconds of {arm}", [one[arm] for one in times]))
    finish("launch", rows, options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["noether"]:
        launch_with_noether(int(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1:2] == ["torchrun"]:
        launched_by_torchrun(Path(sys.argv[3]))
    elif sys.argv[1:2] == ["lightning"]:
        train_with_lightning(sys.argv[2])
    else:
        main()
