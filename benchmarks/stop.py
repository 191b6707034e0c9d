"""Measure the cost of the agreed stop: compare updates of 5 ms with and without the check for a stop.

    python benchmarks/stop.py [--workers N] [--rounds N] [--json FILE]

Each update computes for about 5 ms and reduces a gradient of 100,000 numbers, so the ranks stay in step even without
the check. Each block of 200 updates with the check runs between two blocks without it, and is compared with their mean,
which cancels a slow drift of the machine. The ratio of the two neighbouring blocks shows the noise.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from record import at_least_one, parser, told

from noether.common.cpus import UsableCpus
from noether.launch.processes.context import WorkerContext

REPOSITORY = Path(__file__).resolve().parent.parent
BLOCK = 200
TARGET_S = 5e-3


def worker(context: WorkerContext, asked: tuple[int, str]) -> int:
    import torch
    from record import finish, row

    from noether.launch.process_group.deadline import Deadline
    from noether.launch.process_group.group import joined_group
    from noether.launch.process_group.stop import AgreedStop

    torch.set_num_threads(1)
    (rounds, out), stop = asked, AgreedStop()
    with stop.listening(), joined_group(context) as group:
        stop.join(group)
        stop.deadline = Deadline(time.time() + 1e6, "benchmark")
        matrix, gradient = torch.randn(256, 256), torch.randn(100_000)
        began = time.perf_counter()
        for _ in range(200):
            matrix @ matrix
        products = max(1, round(TARGET_S / ((time.perf_counter() - began) / 200)))
        products = group.from_first(products)

        def block(agree: bool) -> float:
            group.barrier()
            began = time.perf_counter()
            for _ in range(BLOCK):
                for _ in range(products):
                    matrix @ matrix
                group.sum(gradient)
                if agree:
                    stop.agreed()
            return (time.perf_counter() - began) / BLOCK

        block(True), block(False)
        rows = [(block(False), block(True), block(False)) for _ in range(rounds)]
        stop.finish()
        if group.is_first:
            ratios = [2 * with_it / (before + after) for before, with_it, after in rows]
            noise = [after / before for before, _, after in rows]
            said = f"{context.world_size} workers"
            found = [
                row(f"{said}: update with the agreed stop / without", ratios, 1.01, at_least=False),
                row(f"{said}: without / without, which is the noise", noise),
                row(f"{said}: ms an update without", [1e3 * before for before, _, _ in rows]),
            ]
            finish("stop", found, Path(out) if out else None)
    return 0


def main() -> None:
    own = parser(__doc__)
    own.add_argument("--workers", type=at_least_one, default=2)
    options = own.parse_args()
    workers, asked = options.workers, (options.rounds or 30, str(options.json or ""))
    sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]
    os.environ["PYTHONPATH"] = f"{REPOSITORY}:{REPOSITORY / 'benchmarks'}"
    from noether.launch.detect.local import local_placement
    from noether.launch.detect.placement import Device, DeviceInventory, LaunchContext, LaunchRequest
    from noether.launch.processes.run import run_placement

    inventory = DeviceInventory("cpu", (Device("cpu"),), "benchmark", UsableCpus(tuple(range(workers)), workers))
    placement = local_placement(LaunchRequest(devices=str(workers)), LaunchContext({}, inventory, "localhost"))
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(run_placement(placement, "stop.worker", asked, Path(folder)))


if __name__ == "__main__":
    told(main)
