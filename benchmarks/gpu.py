"""Measure the speed of the published models on one GPU and on all GPUs of this machine.

    python benchmarks/gpu.py [--ranks 1 2 …] [--models MODEL …] [--json FILE] [--page FILE]

The models are UPT, AB-UPT, Transformer and Transolver, at their published sizes and protocol: one sample per update and
device, 3,586 surface points, 4,096 volume points, Lion and EMA weights. Each is measured in float32 and bf16, eager and
compiled, by the updates of `noether train`; several ranks use DDP over NCCL. Reports updates and samples per second,
floating-point operations per second as torch counts them (matrix products and attention, forward and backward), this
rate divided by the rate of square matrix products in the same precision, the peak memory of a rank, and the rate of
large copies in device memory.

`transolver_all_points` is Transolver on all 32,186 points of a car. Its public recipe (789 samples, 200 epochs, one
sample per update) takes 8 to 10 hours on one A100, which is 4.4 to 5.5 updates a second, including data loading. This
benchmark loads its batches beforehand. Its data are the built-in flow instead of the cars, because only the shapes of
the tensors matter.

Without --ranks, it measures one rank, then one rank per GPU. Without a GPU, it prints an error and exits with code 2;
`--device cpu --tiny` runs the same code on a CPU, at a size that takes seconds.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from record import REPOSITORY, at_least_one, finish, machine, row, told
from torch.utils.flop_counter import FlopCounterMode

from noether.common.cpus import UsableCpus
from noether.config.compose import load_config
from noether.core.data.build import prepare_data
from noether.core.data.loader import to_device, training_batches
from noether.core.data.order import GlobalOrder, RankOrder
from noether.launch.batches import plan_batches
from noether.launch.detect.local import local_placement
from noether.launch.detect.placement import Device, DeviceInventory, DeviceKind, LaunchContext, LaunchRequest
from noether.launch.process_group.group import Group, joined_group
from noether.launch.processes.context import WorkerContext
from noether.launch.processes.run import run_placement
from noether.training.build import build_run
from noether.training.flops import matmul_ceiling
from noether.training.update import Updater

MODELS = ("upt", "ab_upt", "transformer", "transolver", "transolver_all_points")
ALL_POINTS = {"surface": 3682, "volume": 28504}
PUBLIC_UPDATES_A_SECOND = (4.4, 5.5)
COPIED_NUMBERS = 2**28
WARM_UP = 5


def words_of(model: str, precision: str, compiled: bool, ranks: int, tiny: bool) -> list[str]:
    """Return the settings of `noether train` for one measurement."""
    kind = model.removesuffix("_all_points")
    words = ["dataset.train_shapes=16", "dataset.test_shapes=2", f"trainer.precision={precision}"]
    words += [f"trainer.compile={str(compiled).lower()}", f"trainer.effective_batch_size={ranks}"]
    words += ["trainer.max_updates=1000000", "optimizer=lion", "trainer.ema_decay=0.9999"]
    if tiny:
        sizes = [f"dataset.{name}_points=64" for name in ("surface", "volume", "geometry")]
        pooled = ["model.supernodes=16"] if kind in ("upt", "ab_upt") else []
        return [*words, f"model={kind}_small", *sizes, "dataset.points_per_update={surface: 64, volume: 64}", *pooled]
    words += ["dataset=ellipsoid_full", f"model={kind}"]
    if model != kind:
        words += [f"dataset.{name}_points={count}" for name, count in ALL_POINTS.items()]
        words += [f"dataset.points_per_update={json.dumps(ALL_POINTS).replace(chr(34), '')}"]
    return words


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copy_rate(device: torch.device, tiny: bool) -> float:
    """Return the rate of copying a large array on the device, in bytes per second read plus written."""
    source = torch.ones(2**20 if tiny else COPIED_NUMBERS, device=device)
    target, best = torch.empty_like(source), 0.0
    for _ in range(5):
        wait(device)
        began = time.perf_counter()
        target.copy_(source)
        wait(device)
        best = max(best, 2 * source.nbytes / (time.perf_counter() - began))
    return best


def measure(group: Group, case: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Measure one case (a model, its precision, and whether it is compiled) on every rank of the group."""
    device, words = group.device, words_of(**case, ranks=group.world_size, tiny=asked["tiny"])
    config = load_config([f"output_path={tempfile.gettempdir()}", *words])
    data = prepare_data(config) if group.is_first else None
    group.barrier()
    data = data or prepare_data(config)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    batch = plan_batches(config.trainer.effective_batch_size, None, group.world_size)
    run = build_run(config, data, group, batch)
    order = GlobalOrder(len(run.problem.train_indices), run.batch.effective, 0)
    own = RankOrder(order, run.batch.micro_batch_sizes(), group.rank, 0, run.length.total_updates)
    stream = training_batches(run.problem.splits.train, run.problem.train_indices, own, run.problem.draw)
    batches = [to_device(next(stream), device, run.precision.weights) for _ in range(4)]
    with FlopCounterMode(display=False) as counter, run.precision.autocast():
        given = run.problem.task.prepare(batches[0])
        run.problem.task.loss(run.state.model(given), given).backward()
    run.state.model.zero_grad()
    updater, turns = Updater(run.state, group, config.trainer, run.precision, 1), itertools.cycle(batches)
    try:
        for _ in range(2 if asked["tiny"] else WARM_UP):
            updater.update([next(turns)], 1e-5)
        rates = []
        for _ in range(asked["rounds"]):
            wait(device)
            group.barrier()
            began = time.perf_counter()
            for _ in range(asked["updates"]):
                updater.update([next(turns)], 1e-5)
            wait(device)
            rates.append(asked["updates"] / (time.perf_counter() - began))
    finally:
        updater.close()
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else 0.0
    ceiling = matmul_ceiling(device, run.precision.matmul_type)
    return {"rates": rates, "flops": counter.get_total_flops(), "ceiling": ceiling, "memory_mib": peak}


def rank(context: WorkerContext, asked: dict[str, Any]) -> int:
    """Measure all cases, as one of the ranks; rank 0 writes the results."""
    with joined_group(context) as group:
        found: dict[str, Any] = {"copy_bytes_per_second": copy_rate(group.device, asked["tiny"]), "cases": []}
        for case in asked["cases"]:
            try:
                figures: dict[str, Any] = measure(group, case, asked)
            except (RuntimeError, torch.OutOfMemoryError) as error:
                figures = {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"}
            if group.is_first:
                said = figures.get("failed") or f"{max(figures['rates']):.2f} updates a second"
                print(f"  {context.world_size} rank(s), {case}: {said}", file=sys.stderr, flush=True)
            found["cases"].append({**case, **figures})
        if group.is_first:
            Path(asked["out"]).write_text(json.dumps(found))
        group.barrier()
    return 0


def measured(kind: DeviceKind, ranks: int, asked: dict[str, Any]) -> dict[str, Any]:
    """Measure all cases with `ranks` ranks on this machine; return the results."""
    devices = tuple(Device(kind, index) for index in range(ranks if kind == "cuda" else 1))
    inventory = DeviceInventory(kind, devices, "benchmark", UsableCpus(tuple(range(ranks)), max(2, ranks)))
    placement = local_placement(LaunchRequest(devices=str(ranks)), LaunchContext({}, inventory, "localhost"))
    with tempfile.TemporaryDirectory() as folder:
        asked = {**asked, "out": str(Path(folder) / "found.json")}
        code = run_placement(placement, "gpu.rank", asked, Path(folder))
        if code:
            sys.exit(code)
        return dict(json.loads(Path(asked["out"]).read_text()))


def rows_of(ranks: int, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the result rows of the measurements with `ranks` ranks."""
    rows = [row(f"{ranks} rank(s): copies, GB/s", [found["copy_bytes_per_second"] / 1e9])]
    for case in found["cases"]:
        if "failed" in case:
            continue
        name = f"{ranks} rank(s), {case['model']}, {case['precision']}{', compiled' if case['compiled'] else ''}"
        rows.append(row(f"{name}: updates/s", case["rates"]))
        rows.append(row(f"{name}: samples/s", [ranks * rate for rate in case["rates"]]))
        flops = [case["flops"] * rate for rate in case["rates"]]
        rows.append(row(f"{name}: TFLOP/s a device", [one / 1e12 for one in flops]))
        rows.append(row(f"{name}: share of the matmul ceiling", [one / case["ceiling"] for one in flops]))
        rows.append(row(f"{name}: MiB a device", [case["memory_mib"]]))
    return rows


def page_of(every: Mapping[int, dict[str, Any]]) -> str:
    """Return the results as a Markdown page: the machine, a table per number of ranks, and the published figures."""
    here, low_high = machine(), " to ".join(map(str, PUBLIC_UPDATES_A_SECOND))
    devices = ", ".join(here["gpus"]) or f"no GPU: {here['processor']}, {here['cores']} cores"
    lines = [f"# The published models on {devices}", "", f"torch {here['torch']}, {here['date']}. {PROTOCOL}", ""]
    for ranks, found in every.items():
        copies = found["copy_bytes_per_second"] / 1e9
        lines += [f"## {ranks} rank{'s' * (ranks != 1)}", "", f"Copies on the device: {copies:.0f} GB/s.", "", *_TABLE]
        for case in found["cases"]:
            name = f"| {case['model']} | {case['precision']} | {'compiled' if case['compiled'] else 'eager'} |"
            if "failed" in case:
                lines.append(f"{name} {case['failed'].replace('|', '/')} | | | | |")
                continue
            rate = statistics.median(case["rates"])
            flops = case["flops"] * rate
            lines.append(
                f"{name} {rate:.2f} | {ranks * rate:.2f} | {flops / 1e12:.3g} | {flops / case['ceiling']:.0%} "
                f"| {case['memory_mib']:.0f} |"
            )
        lines.append("")
    lines += [
        "## Public figures",
        "",
        f"- Transolver, all 32,186 points of a car, one A100: {low_high} updates/s, including data loading "
        "(8 to 10 hours for 789 samples and 200 epochs); here `transolver_all_points`, with data on the device.",
        "- AB-UPT on ShapeNet-Car (arXiv 2502.09692): 5.7 minutes of training on one H100; here `ab_upt` in bf16.",
    ]
    return "\n".join(lines) + "\n"


PROTOCOL = "One sample per update and device, Lion, EMA weights. The ceiling: the rate of square matrix products here."
_TABLE = [
    "| model | precision | | updates/s | samples/s | TFLOP/s a device | share of the ceiling | MiB a device |",
    "|---|---|---|---|---|---|---|---|",
]


def main() -> None:
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--ranks", type=at_least_one, nargs="+")
    own.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    own.add_argument("--precisions", nargs="+", default=("float32", "bf16"), choices=("float32", "bf16"))
    own.add_argument("--no-compile", action="store_true", help="eager only")
    own.add_argument("--updates", type=at_least_one, default=20)
    own.add_argument("--rounds", type=at_least_one, default=3)
    own.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    own.add_argument("--tiny", action="store_true", help="a tiny size, to try the code")
    own.add_argument("--json", type=Path)
    own.add_argument("--page", type=Path, help="write the results as a Markdown page")
    options = own.parse_args()
    count = torch.cuda.device_count()
    if options.device == "cuda" and not count:
        print(
            "there is no GPU that torch can use\n"
            f"  seen      torch {torch.__version__}, torch.cuda.device_count() = 0\n"
            "  expected  at least one CUDA device\n"
            "  fix       run it on a machine with a GPU; --device cpu --tiny runs the same code here",
            file=sys.stderr,
        )
        sys.exit(2)
    os.environ["PYTHONPATH"] = f"{REPOSITORY}:{REPOSITORY / 'benchmarks'}"
    compiled = (False,) if options.no_compile else (False, True)
    cases = [
        {"model": model, "precision": precision, "compiled": one}
        for model, precision, one in itertools.product(options.models, options.precisions, compiled)
    ]
    asked = {"cases": cases, "updates": options.updates, "rounds": options.rounds, "tiny": options.tiny}
    numbers = options.ranks or sorted({1, max(1, count)})
    every = {ranks: measured(options.device, ranks, asked) for ranks in numbers}
    rows = [one for ranks, found in every.items() for one in rows_of(ranks, found)]
    low, high = PUBLIC_UPDATES_A_SECOND
    print(f"Transolver's public recipe on one A100, all points of a car: {low} to {high} updates/s")
    finish("gpu", rows, options.json, cases=every, public_updates_per_second=PUBLIC_UPDATES_A_SECOND)
    if options.page is not None:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        options.page.write_text(page_of(every))
    if failed := [case for found in every.values() for case in found["cases"] if "failed" in case]:
        sys.exit(f"{len(failed)} of the measurements failed: {failed[0]}")


if __name__ == "__main__":
    told(main)
