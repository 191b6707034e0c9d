"""Compare the time of an update and of a prediction of each model with a straightforward implementation.

    python benchmarks/model_time.py [MODEL ...] [--sizes small published] [--rounds N] [--points N] [--json FILE]

Two processes per model take turns. One runs noether's model in noether's update; the other runs the model of
plain_models.py in the loop that a good PyTorch user writes (AdamW, clip_grad_norm_, AveragedModel; same task and data).
Both models begin with the same weights and must make the same predictions. If PhysicsNeMo is installed, a third process
runs its Transolver in the plain loop, also with the same weights.
`small` is the size for two CPU cores, on 8 samples of 256 points. `published` is the published size, on one sample with
`--points` points of each kind. The default is about a quarter of the published 3,586 and 4,096 points, with which plain
attention needs 9 GB and minutes. Ratios are of CPU time on one thread, which other work on the machine disturbs least.
Memory is a process's peak above its use before the first update. `share` is the rate of matrix arithmetic, as torch
counts it, divided by the rate of square matrix products on one thread.
"""

import itertools
import os
import sys
import tempfile
from copy import deepcopy
from typing import Any
from unittest import mock

import torch
from peer_models import PhysicsNeMoTransolver, installed_peer
from plain_models import plain_copy
from record import Arm, at_least_one, finish, parser, row, serve, told
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.flop_counter import FlopCounterMode

from noether.config.compose import load_config
from noether.core.data.build import prepare_data
from noether.launch.batches import plan_batches
from noether.launch.detect.placement import Device, Endpoint, Worker
from noether.launch.process_group.group import Group
from noether.launch.processes.context import WorkerContext
from noether.launch.processes.worker import keep_freed_memory
from noether.physics.models import transolver
from noether.training.build import Run, build_run
from noether.training.flops import matmul_ceiling
from noether.training.update import Updater

MODELS = {"upt": "UPT", "ab_upt": "AB-UPT", "transformer": "Transformer", "transolver": "Transolver"}
GOAL = 1.3
ALIKE = 1e-6
QUARTER = 896
LEARNING_RATE = 1e-4
# The data are the built-in ellipsoids, with any number of points; 16 cars suffice, because only tensor shapes matter.
DATA = ("dataset.train_shapes=16", "dataset.test_shapes=2", "trainer.max_updates=1000000", "optimizer=adamw_short")


def one_rank() -> Group:
    """Return a group of one rank on the CPU."""
    worker = Worker(0, 0, 0, Device("cpu"))
    return Group(WorkerContext(worker, 1, 1, "host", Endpoint("127.0.0.1", 0), 0, 1), torch.device("cpu"))


def settings(model: str, size: str, points: int) -> list[str]:
    """Return the settings of `noether train` for a model at the size `small` or `published`."""
    if size == "small":
        return [f"model={model}_small", *DATA]
    sizes = [f"dataset.{kind}_points={points}" for kind in ("surface", "volume", "geometry")]
    drawn = f"dataset.points_per_update={{surface: {points}, volume: {points}}}"
    return [f"model={model}", *DATA, *sizes, drawn, "trainer.effective_batch_size=1"]


def prepared(model: str, size: str, points: int) -> tuple[Run, Any, list[Any]]:
    """Return a built run, its configuration, and four batches to cycle through."""
    from noether.core.data.loader import to_device, training_batches
    from noether.core.data.order import GlobalOrder, RankOrder

    config = load_config(["output_path=" + tempfile.gettempdir(), *settings(model, size, points)])
    batch = plan_batches(config.trainer.effective_batch_size, None, 1)
    run = build_run(config, prepare_data(config), one_rank(), batch)
    order = GlobalOrder(len(run.problem.train_indices), run.batch.effective, 0)
    own = RankOrder(order, run.batch.micro_batch_sizes(), 0, 0, run.length.total_updates)
    stream = training_batches(run.problem.splits.train, run.problem.train_indices, own, run.problem.draw)
    batches = [to_device(next(stream), torch.device("cpu"), torch.float32) for _ in range(4)]
    return run, config, batches


def sizes_of(config: Any) -> dict[str, Any]:
    """Return the sizes of a configured model, as arguments of the plain models."""
    return {key: value for key, value in config.model.model_dump().items() if key not in ("kind", "layout")}


def copy_of(peer: str, run: Run, config: Any) -> nn.Module:
    """Return the implementation of `peer` (`plain` or `physicsnemo`), with the weights of the run's model."""
    if peer == "physicsnemo":
        return PhysicsNeMoTransolver(run.state.model, **sizes_of(config))
    return plain_copy(run.state.model, config.model.kind, sizes_of(config))


def difference(theirs: nn.Module, run: Run, batch: Any) -> float:
    """Return the largest difference of the two models' predictions, over the largest prediction, in float64."""
    given = {key: value.double() if value.is_floating_point() else value for key, value in batch.items()}
    given = run.problem.task.prepare(given)
    added = getattr(theirs, "added_to_slices", transolver.EPSILON)
    with torch.no_grad(), mock.patch.object(transolver, "EPSILON", added):
        ours, other = deepcopy(run.state.model).double()(given), deepcopy(theirs).double()(given)
    return max(float((ours[key] - other[key]).abs().max() / ours[key].abs().max()) for key in other)


def arm_of(kind: str, model: str, size: str, points: int) -> None:
    """Run a variant: `ours`, `plain` or `physicsnemo`; the suffix `-predict` times predictions instead of updates."""
    what, _, predicts = kind.partition("-")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if what == "ours":
        keep_freed_memory()
    run, config, batches = prepared(model, size, points)
    task, turns = run.problem.task, itertools.cycle(batches)
    network = run.state.model if what == "ours" else copy_of(what, run, config)
    if predicts:

        @torch.no_grad()
        def predict(count: int) -> None:
            network.eval()
            for _ in range(count):
                network(task.prepare(next(turns)))

        return serve(lambda count: lambda: predict(count))
    if what == "ours":
        updater = Updater(run.state, one_rank(), config.trainer, run.precision, 1)

        def update(count: int) -> None:
            for _ in range(count):
                updater.update([next(turns)], LEARNING_RATE)

        return serve(lambda count: lambda: update(count))
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=0.05)
    ema = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.998))

    def plain_update(count: int) -> None:
        for _ in range(count):
            batch = task.prepare(next(turns))
            optimizer.zero_grad()
            task.loss(network(batch), batch).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            ema.update_parameters(network)

    return serve(lambda count: lambda: plain_update(count))


def compare(model: str, size: str, points: int, rounds: int, updates: int) -> list[dict[str, Any]]:
    """Compare the implementations of one model at one size; return the result rows."""
    run, config, batches = prepared(model, size, points)
    with FlopCounterMode(display=False) as counter:
        run.problem.task.loss(run.state.model(given := run.problem.task.prepare(batches[0])), given).backward()
    torch.set_num_threads(1)
    name, rows, found = f"{MODELS[model]}, {size}", [], {}
    peers = [peer for peer in ("plain", installed_peer(model)) if peer]
    for peer in peers:
        apart = difference(copy_of(peer, run, config), run, batches[0])
        if apart > ALIKE:
            raise SystemExit(f"{model}: {peer} makes different predictions (relative difference {apart:.1e})")
        rows.append(row(f"{name}: largest difference from {peer} in float64, of the largest prediction", [apart]))
    for what in ("", "-predict"):
        arms = {kind: Arm("model_time.py", kind + what, model, size, str(points)) for kind in (*peers, "ours")}
        try:
            for arm in arms.values():
                arm.answer()
            answers = [{kind: arm.ask(updates) for kind, arm in arms.items()} for _ in range(rounds)]
        finally:
            for arm in arms.values():
                arm.close()
        said = "predictions" if what else "updates"
        for peer in peers:
            ratios = [one[peer]["cpu_ms"] / one["ours"]["cpu_ms"] for one in answers]
            goal = GOAL if peer == "plain" and not what else None
            rows.append(row(f"{name}: {said} a second of noether / {peer}", ratios, goal))
        found[what] = answers
    for peer in peers:
        memory = [one["ours"]["memory_mib"] / one[peer]["memory_mib"] for one in found[""][-1:]]
        goal = 1.0 if peer == "plain" else None
        rows.append(row(f"{name}: memory of noether / {peer}", memory, goal, at_least=False))
    ceiling = max(matmul_ceiling(torch.device("cpu"), torch.float32) for _ in range(4))
    shares = [counter.get_total_flops() / (one["ours"]["cpu_ms"] / 1e3) / ceiling for one in found[""]]
    rows.append(row(f"{name}: share of the matmul ceiling", shares))
    rows.append(row(f"{name}: ms of CPU time an update", [one["ours"]["cpu_ms"] for one in found[""]]))
    rows.append(row(f"{name}: MiB at most", [found[""][-1]["ours"]["memory_mib"]]))
    return rows


def main() -> None:
    own = parser(__doc__)
    own.add_argument("models", nargs="*", metavar="MODEL")
    own.add_argument("--sizes", nargs="+", default=["small", "published"], choices=["small", "published"])
    own.add_argument("--points", type=at_least_one, default=QUARTER)
    options = own.parse_args()
    rows: list[dict[str, Any]] = []
    for model in options.models or MODELS:
        for size in options.sizes:
            small = size == "small"
            own_rows = compare(model, size, options.points, options.rounds or (7 if small else 3), 4 if small else 1)
            for one in own_rows:
                print(f"  {one['what']}: {one['median']:.3f}", file=sys.stderr, flush=True)
            rows += own_rows
    finish("model_time", rows, options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--arm"]:
        arm_of(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        told(main)
