"""How long from the command to the first all-reduce, the first DDP step, and the exit: noether against torchrun.

    python benchmarks/launch.py [WORKERS] [ROUNDS]

Both start the same function in WORKERS gloo ranks on this machine, in turn, ROUNDS times. Seconds are wall time from
the exec of the launching program; read the ratios, which are taken pair by pair.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
POINTS = ("first all-reduce", "first DDP step", "exit")


def work(rank: int, world_size: int, marks: Path) -> None:
    """What every rank does: one all-reduce, one step of DDP and AdamW; rank 0 writes down when."""
    import torch
    import torch.distributed as dist

    times = {}
    dist.all_reduce(torch.ones(1000))
    times["first all-reduce"] = time.time()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    times["first DDP step"] = time.time()
    del model, optimizer
    if rank == 0:
        marks.write_text(json.dumps(times))


def noether_worker(context, marks: str) -> int:
    import torch

    from noether.distributed.group import joined_group

    torch.set_num_threads(1)
    with joined_group(context):
        work(context.worker.rank, context.world_size, Path(marks))
    return 0


def launch_with_noether(workers: int, marks: Path) -> None:
    from noether.environments.devices import DeviceInventory
    from noether.environments.local import local_placement
    from noether.environments.placement import Device, LaunchRequest
    from noether.workers.run import run_placement

    # An inventory of its own: two CPU workers a core is the most that a user may ask for.
    inventory = DeviceInventory("cpu", (Device("cpu"),), "benchmark", workers)
    placement = local_placement(LaunchRequest(devices=str(workers)), {}, inventory, "localhost")
    sys.exit(run_placement(placement, "launch.noether_worker", str(marks), marks.parent))


def launched_by_torchrun(marks: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    work(dist.get_rank(), dist.get_world_size(), marks)
    dist.destroy_process_group()


def measure(arm: str, workers: int) -> dict[str, float]:
    here = str(Path(__file__).resolve())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}", here]
    command = {"noether": [sys.executable, here, "noether", str(workers)], "torchrun": [*torchrun, "torchrun", "-"]}[
        arm
    ]
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "marks.json"
        environ = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'benchmarks'}", "OMP_NUM_THREADS": "1"}
        started = time.time()
        subprocess.run([*command, str(marks)], env=environ, check=True, capture_output=True, timeout=300)
        ended = time.time()
        times = {**json.loads(marks.read_text()), "exit": ended}
    return {point: times[point] - started for point in POINTS}


def main() -> None:
    given = [int(word) for word in sys.argv[1:3]]
    workers, rounds = [*given, *(2, 5)[len(given) :]]
    pairs = [{arm: measure(arm, workers) for arm in ("torchrun", "noether")} for _ in range(rounds + 1)][1:]
    print(f"{workers} gloo workers, {rounds} interleaved rounds after one uncounted, {os.cpu_count()} cores")
    for point in POINTS:
        seconds = {arm: statistics.median(pair[arm][point] for pair in pairs) for arm in ("torchrun", "noether")}
        ratio = statistics.median(pair["noether"][point] / pair["torchrun"][point] for pair in pairs)
        print(
            f"{point:<17} torchrun {seconds['torchrun']:.2f} s  noether {seconds['noether']:.2f} s  ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["noether"]:
        launch_with_noether(int(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1:2] == ["torchrun"]:
        launched_by_torchrun(Path(sys.argv[3]))
    else:
        main()
