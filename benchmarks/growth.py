"""Measure how the cost of coordination grows with the number of ranks on this machine.

    python benchmarks/growth.py [RANKS ...] [--json FILE]

The ranks are forked from a process that has loaded torch, and do almost no work, so that hundreds of them fit on one
machine. Only the control path is measured: launcher, store, agreed stop, watcher. There are two launches for each
number of ranks: one ends with an agreed stop, the other when the last rank is killed. All times are in seconds.

- meet: from the launch until the last rank has joined the process group (including gloo's mesh);
  after_arrival: the part of `meet` after the last rank has started.
- boundary: a check for a stop while no rank wants one; barrier: a barrier; object: a broadcast (medians of twenty).
- agree: from the signal at one rank until the last rank has stopped.
- descriptors, memory (proportional set size, MB): of rank 0, and the median of the other ranks; mesh: the number of
  descriptors that gloo uses.
- noticed: from the kill until the launcher reports it (it waits two seconds for the reports of other ranks);
  gone: from the kill until every process has ended.
"""

import argparse
import contextlib
import io
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from record import at_least_one, told

from noether.common.cpus import UsableCpus
from noether.launch.processes.context import WorkerContext

REPOSITORY = Path(__file__).resolve().parent.parent
RANKS = (2, 8, 32, 64, 128, 256)
TIMES = 20
LONGEST_LOOP_S = 60.0


def proportional_set_size() -> float:
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


def median_time(what: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        what()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def stop_in_agreement(context: WorkerContext, folder: str) -> int:
    import torch

    from noether.launch.process_group.group import joined_group
    from noether.launch.process_group.stop import AgreedStop

    torch.set_num_threads(1)
    stop, arrived = AgreedStop(), time.time()
    with stop.listening(), joined_group(context) as group:
        stop.join(group)
        row = {"arrived": arrived, "met": time.time()}
        row["barrier"] = median_time(group.barrier)
        row["object"] = median_time(lambda: group.from_first({"figure": 1.0}))
        began = time.perf_counter()
        for _ in range(1000):
            stop.agreed()
        row["boundary"] = (time.perf_counter() - began) / 1000
        gradient = torch.ones(1000)
        group.sum(gradient)
        row["descriptors"], row["memory"] = len(os.listdir("/proc/self/fd")), proportional_set_size()
        group.barrier()
        if context.worker.rank == context.world_size - 1:
            row["signalled"] = time.time()
            os.kill(os.getpid(), signal.SIGUSR1)
        while not stop.agreed() and time.perf_counter() - began < LONGEST_LOOP_S:
            time.sleep(0.002)
        row["stopped"] = time.time()
        rows = group.gather(row)
        if group.is_first:
            Path(folder, "rows.json").write_text(json.dumps(rows))
        stop.finish()
    return 0


def lose_one(context: WorkerContext, folder: str) -> int:
    from noether.launch.process_group.group import joined_group

    with joined_group(context) as group:
        group.barrier()
        if context.worker.rank == context.world_size - 1:
            time.sleep(0.5)
            Path(folder, "killed").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        with group.parent.waiting("barrier"):
            time.sleep(600)
    return 0


class FirstWords(io.StringIO):
    """A text stream that records when the launcher first writes to it."""

    said = 0.0

    def write(self, text: str) -> int:
        """Keep the text; on the first call, also the time."""
        self.said = self.said or time.time()
        return super().write(text)


def measure(ranks: int) -> dict[str, float]:
    from noether.launch.detect.local import local_placement
    from noether.launch.detect.placement import Device, DeviceInventory, LaunchContext, LaunchRequest
    from noether.launch.processes.run import run_placement
    from noether.launch.processes.spawner import warm_up

    inventory = DeviceInventory("cpu", (Device("cpu"),), "benchmark", UsableCpus(tuple(range(ranks)), ranks))
    placement = local_placement(LaunchRequest(devices=str(ranks)), LaunchContext({}, inventory, "localhost"))
    warm_up()
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / "logs"
        began = time.time()
        code = run_placement(placement, "growth.stop_in_agreement", folder, logs)
        if code:
            raise SystemExit(f"{ranks} ranks: exit code {code}")
        rows = json.loads(Path(folder, "rows.json").read_text())
        words = FirstWords()
        with contextlib.redirect_stderr(words):
            lost = run_placement(placement, "growth.lose_one", folder, logs)
        gone, killed = time.time(), float(Path(folder, "killed").read_text())
    if lost != 128 + signal.SIGKILL:
        raise SystemExit(f"{ranks} ranks: exit code {lost} after a kill")
    last_arrived, others = max(row["arrived"] for row in rows), rows[1:]
    return {
        "ranks": ranks,
        "meet": max(row["met"] for row in rows) - began,
        "after_arrival": max(row["met"] for row in rows) - last_arrived,
        "barrier": max(row["barrier"] for row in rows),
        "object": max(row["object"] for row in rows),
        "boundary": statistics.median(row["boundary"] for row in rows),
        "agree": max(row["stopped"] for row in rows) - rows[-1]["signalled"],
        "descriptors_rank_0": rows[0]["descriptors"],
        "descriptors": statistics.median(row["descriptors"] for row in others),
        "mesh": ranks - 1,
        "memory_rank_0": rows[0]["memory"],
        "memory": statistics.median(row["memory"] for row in others),
        "noticed": words.said - killed,
        "gone": gone - killed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=at_least_one, nargs="*", default=list(RANKS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]
    os.environ["PYTHONPATH"] = f"{REPOSITORY}:{REPOSITORY / 'benchmarks'}"
    rows = []
    for ranks in given.ranks:
        row = {name: round(value, 9) for name, value in measure(ranks).items()}
        rows.append(row)
        print(json.dumps(row), flush=True)
    if given.json is not None:
        import torch

        machine = {"cores": os.cpu_count(), "machine": platform.machine(), "kernel": platform.release()}
        machine |= {"python": platform.python_version(), "torch": torch.__version__}
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    told(main)
