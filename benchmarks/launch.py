"""Time launches by noether and by torchrun, until the first all-reduce, the first DDP step and the exit.

    python benchmarks/launch.py [--workers 2 8] [--rounds N] [--no-lightning] [--one-rank] [--run] [--json FILE]

1. A script that initialises gloo, makes one all-reduce and ends, in 1, 2 and 8 ranks: `noether run` against torchrun,
   also by the CPU time of all processes. `noether run` refuses more than two ranks per core, so more cores are faked.
2. One all-reduce and one DDP step in each of --workers gloo ranks: torchrun uses torch's DDP and AdamW, and noether the
   versions of `noether train`, which do not import torch's compiler.
3. A whole command that makes one update in two ranks: `noether train` with its plan, data check, evaluation, checkpoint
   and TensorBoard metrics, with and without its report, against a Lightning script with default settings, which makes
   one update of a model of the same size and a validation, but no report.
4. One update on one rank: the CPU time (user and system, all processes) of `noether train` against a plain script.
All other times are wall seconds from the exec of the launching program. Each ratio compares two launches in succession.
A failed launch is reported and retried once.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from record import REPOSITORY, at_least_one, finish, parser, row, told

if TYPE_CHECKING:  # At run time, torchrun must not import noether, and noether's launcher must not import torch.
    import torch

    from noether.launch.processes.context import WorkerContext

POINTS = ("first all-reduce", "first DDP step", "exit")
GOALS = {2: 0.45, 8: 0.2}
WHOLE_GOAL = 0.4
WHOLE = ("lightning", "noether", "noether with report")
ONE_RANK = ("plain script", "noether")
STARTS = {1: None, 2: 0.5, 8: 0.5}
"""The goal for the ratio of `noether run` to torchrun, by number of ranks; None if there is no goal."""
ONE_RANK_GOAL = 1.1
LONGEST_S = 180
ONE_UPDATE = (
    "accelerator=cpu",
    "optimizer=adamw_short",  # as for the peers
    "trainer.max_updates=1",
    "dataset.train_shapes=16",
    "dataset.test_shapes=4",
)


def work(rank: int, marks: Path, ddp: Any, adamw: Any) -> None:
    """Make one all-reduce and one update with DDP and AdamW; rank 0 writes the times to the file `marks`."""
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


def noether_worker(context: "WorkerContext", marks: str) -> int:
    import torch

    from noether.launch.process_group.group import joined_group
    from noether.launch.process_group.torch_internals import LightAdamW, LightDDP

    torch.set_num_threads(1)
    with joined_group(context):
        work(context.worker.rank, Path(marks), LightDDP, LightAdamW)
    return 0


def launch_with_noether(workers: int, marks: Path) -> None:
    from noether.common.cpus import UsableCpus
    from noether.launch.detect.local import local_placement
    from noether.launch.detect.placement import Device, DeviceInventory, LaunchContext, LaunchRequest
    from noether.launch.processes.run import run_placement

    # The inventory is invented, because a real one allows at most two CPU ranks per core.
    inventory = DeviceInventory("cpu", (Device("cpu"),), "benchmark", UsableCpus(tuple(range(workers)), workers))
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
    """Run a command, and again if it fails; return when it ended. Raise SystemExit if it fails twice."""
    environ = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'benchmarks'}", "OMP_NUM_THREADS": "1", **more}
    for attempt in (1, 2):
        try:
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LONGEST_S, check=False)
            ended, why = time.time(), f"ended with {done.returncode}:\n{done.stderr[-3000:]}"
            if done.returncode == 0:
                return ended
        except subprocess.TimeoutExpired:
            why = f"timed out after {LONGEST_S} s"
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


def start_script(marks: str) -> None:
    """Make one all-reduce, as the minimal script of the first comparison; rank 0 writes its time to `marks`."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        Path(marks).write_text(str(time.time()))
    dist.destroy_process_group()


def run_with_cores_for(workers: int) -> None:
    """Call `noether run` with one fake core per rank, because it refuses more than two ranks per core."""
    from noether.cli.entry import main

    os.sched_getaffinity = lambda pid: set(range(workers))
    del sys.argv[1:3]
    sys.exit(main())


def measure_start(arm: str, workers: int) -> dict[str, float]:
    """Return the seconds until the all-reduce, the seconds until the exit, and the CPU seconds of all processes."""
    from noether.launch.processes.death_signal import adopt_orphans

    here = str(Path(__file__).resolve())
    noether = [here, "cores", str(workers)] if workers > 2 * len(os.sched_getaffinity(0)) else ["-m", "noether"]
    command = {
        "torchrun": ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"],
        "noether run": [*noether, "run", "--accelerator=cpu", f"--devices={workers}"],
    }[arm]
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "marks"
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
        adopt_orphans(True)  # To include the time of the fork server, which briefly outlives its parent.
        ended = run([sys.executable, *command, here, "start", str(marks)], f"{arm} with {workers} ranks")
        with suppress(ChildProcessError):
            while os.wait():
                pass
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {
            "first all-reduce": float(marks.read_text()) - started, "exit": ended - started, "processor time": used
        }  # fmt: skip


def start_rows(rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the result rows that compare `noether run` with torchrun."""
    for workers, goal in STARTS.items():
        arms = ("torchrun", "noether run")
        pairs = [{arm: measure_start(arm, workers) for arm in arms} for _ in range(rounds + 1)][1:]
        print(f"  {workers} ranks done", file=sys.stderr, flush=True)
        for point in pairs[0]["torchrun"]:
            ratios = [pair["noether run"][point] / pair["torchrun"][point] for pair in pairs]
            said, aim = f"{workers} ranks: {point}, noether run / torchrun", goal if point != "processor time" else None
            yield row(said, ratios, aim, at_least=False)
            for arm in arms:
                yield row(f"{workers} ranks: {point}, seconds of {arm}", [pair[arm][point] for pair in pairs])


def train_with_lightning(folder: str) -> None:
    """Train one update on two ranks and validate, with Lightning's defaults, as its documentation shows."""
    import lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Module(lightning.LightningModule):
        """A model with as many parameters as the small UPT."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(100, 870), torch.nn.GELU(), torch.nn.Linear(870, 770))

        def training_step(self, batch: Any, number: int) -> "torch.Tensor":
            """Return the loss of one batch."""
            loss: torch.Tensor = self.layers(batch[0]).square().mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            """Log the loss of one validation batch."""
            self.log("validation", self.layers(batch[0]).square().mean())

        def configure_optimizers(self) -> "torch.optim.Optimizer":
            """Return AdamW with torch's defaults."""
            return torch.optim.AdamW(self.parameters())

    data = DataLoader(TensorDataset(torch.randn(64, 100)), batch_size=4)
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=1, default_root_dir=folder)
    trainer.fit(Module(), data, data)


def whole_command(arm: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        here = str(Path(__file__).resolve())
        train = [sys.executable, "-m", "noether", "train", *ONE_UPDATE, "devices=2", f"output_path={folder}"]
        command = {
            "noether": [*train, "tracker.report=false"],
            "noether with report": train,
            "lightning": [sys.executable, here, "lightning", folder],
        }[arm]
        started = time.time()
        return run(command, f"one update with {arm}", PYTHONWARNINGS="ignore") - started


def update_plainly(settings: str) -> None:
    """Make one update as a plain script would, with the data, statistics, model and batch of `noether train`."""
    import torch

    from noether.config.compose import read_dumped
    from noether.core.data.build import prepare_data
    from noether.core.data.loader import training_batches
    from noether.core.data.order import GlobalOrder, RankOrder
    from noether.core.precision import choose_precision
    from noether.core.problem import build_problem

    config, device = read_dumped(Path(settings)), torch.device("cpu")
    problem = build_problem(config, prepare_data(config), device, choose_precision(config.trainer, device))
    problem.fit()
    model, size = problem.model, config.trainer.effective_batch_size
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optimizer.learning_rate)
    order = RankOrder(GlobalOrder(len(problem.train_indices), size, config.seed), (size,), 0, 0, 1)
    batch = problem.task.prepare(
        next(training_batches(problem.splits.train, problem.train_indices, order, problem.draw))
    )
    problem.task.loss(model(batch), batch).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def processor_time(arm: str) -> float:
    """Return the CPU seconds (user and system, all processes) of one update on one rank."""
    with tempfile.TemporaryDirectory() as folder:
        from noether.config.compose import dump_config, load_config

        words = [*ONE_UPDATE, "devices=1", f"output_path={folder}", "tracker.report=false"]
        settings = Path(folder) / "settings.yaml"
        settings.write_text(dump_config(load_config(words)))
        plain = [str(Path(__file__).resolve()), "plain script", str(settings)]
        command = {"noether": ["-m", "noether", "train", *words], "plain script": plain}[arm]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run([sys.executable, *command], f"one update on one rank with {arm}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    own = parser(__doc__)
    own.add_argument("--workers", type=at_least_one, nargs="+", default=[2, 8])
    own.add_argument("--no-lightning", action="store_true")
    own.add_argument("--one-rank", action="store_true", help="only the CPU time of one update on one rank")
    own.add_argument("--run", action="store_true", help="only noether run against torchrun")
    options = own.parse_args()
    rows = [] if options.one_rank else list(start_rows(options.rounds or 5))
    if options.run:
        return finish("launch", rows, options.json)
    for workers in () if options.one_rank else options.workers:
        rounds = options.rounds or (5 if workers < 8 else 3)
        # The first round is discarded, because it reads files into the page cache.
        pairs = [{arm: measure(arm, workers) for arm in ("torchrun", "noether")} for _ in range(rounds + 1)][1:]
        print(f"  {workers} workers done", file=sys.stderr, flush=True)
        for point in POINTS:
            ratios = [pair["noether"][point] / pair["torchrun"][point] for pair in pairs]
            goal = GOALS.get(workers) if point == "first DDP step" else None
            rows.append(row(f"{workers} workers: {point}, noether / torchrun", ratios, goal, at_least=False))
            for arm in ("torchrun", "noether"):
                rows.append(row(f"{workers} workers: {point}, seconds of {arm}", [pair[arm][point] for pair in pairs]))
    if not (options.no_lightning or options.one_rank):
        rounds = min(options.rounds or 3, 2)
        times = [{arm: whole_command(arm) for arm in WHOLE} for _ in range(rounds + 1)][1:]
        for arm in WHOLE[1:]:
            ratios = [one[arm] / one["lightning"] for one in times]
            said = f"whole command of one update, 2 ranks: {arm} / Lightning"
            rows.append(row(said, ratios, WHOLE_GOAL, at_least=False))
        for arm in WHOLE:
            rows.append(row(f"whole command of one update: seconds of {arm}", [one[arm] for one in times]))
    updates = [{arm: processor_time(arm) for arm in ONE_RANK} for _ in range((options.rounds or 5) + 1)][1:]
    ratios = [one["noether"] / one["plain script"] for one in updates]
    rows.append(
        row("one update on one rank, processor time: noether / plain script", ratios, ONE_RANK_GOAL, at_least=False)
    )
    for arm in ONE_RANK:
        rows.append(row(f"one update on one rank: processor seconds of {arm}", [one[arm] for one in updates]))
    finish("launch", rows, options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["noether"]:
        launch_with_noether(int(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1:2] == ["torchrun"]:
        launched_by_torchrun(Path(sys.argv[3]))
    elif sys.argv[1:2] == ["lightning"]:
        train_with_lightning(sys.argv[2])
    elif sys.argv[1:2] == ["plain script"]:
        update_plainly(sys.argv[2])
    elif sys.argv[1:2] == ["start"]:
        start_script(sys.argv[2])
    elif sys.argv[1:2] == ["cores"]:
        run_with_cores_for(int(sys.argv[2]))
    else:
        told(main)
