"""Tries a run: one update and one evaluation batch, nothing kept."""

import json
import time

import torch

from noether.checkpoints.resume import StartingPoint
from noether.common.console import Console
from noether.data.loader import to_device, training_batches
from noether.data.order import GlobalOrder, RankOrder
from noether.distributed.group import Group, joined_group
from noether.errors import ExitCode
from noether.evaluation.evaluate import evaluate_samples
from noether.training.build import build_run
from noether.training.log_window import peak_memory_mib
from noether.training.request import TrainRequest
from noether.training.update import Updater
from noether.workers.context import WorkerContext


def dry_run_worker(context: WorkerContext, request: TrainRequest) -> int:
    """Tries a run on every rank; rank 0 prints what it took and writes dry_run.json for the launcher."""
    with joined_group(context) as group:
        _dry_run(request, group)
    return ExitCode.DONE


def _dry_run(request: TrainRequest, group: Group) -> None:
    config = request.config
    run = build_run(config, request.data, group)
    updater = Updater(run.state, group, config.trainer, run.precision, run.plan.accumulation_steps)
    order = GlobalOrder(len(run.problem.train_indices), run.plan.effective, config.seed)
    own = RankOrder(order, run.plan.micro_batch_sizes(), group.rank, 0, 2)
    stream = training_batches(
        run.problem.splits.train,
        run.problem.train_indices,
        own,
        run.problem.draw,
        num_workers=config.num_workers,
        pin_memory=group.device.type == "cuda",
    )
    seconds = []
    # Two updates, since the first also allocates and, if asked for, compiles.
    for _ in range(2):
        started = time.perf_counter()
        batches = [next(stream) for _ in range(run.plan.accumulation_steps)]
        moved = [to_device(batch, group.device, run.precision.weights) for batch in batches]
        figures = updater.update(moved, run.schedule(0))
        loss = float(group.sum(figures.loss / group.world_size))
        seconds.append(time.perf_counter() - started)
    updater.close()
    batch_size = config.trainer.evaluation_batch_size or run.plan.micro
    samples = range(min(len(run.problem.splits.test), batch_size * group.world_size))
    started = time.perf_counter()
    scored = evaluate_samples(
        run.state.model,
        run.problem.task,
        run.problem.splits.test,
        samples,
        run.problem.draw,
        group,
        run.precision,
        batch_size=batch_size,
        chunk_size=config.trainer.evaluation_chunk_size,
        num_workers=config.num_workers,
    )
    evaluation = time.perf_counter() - started
    memory = max(group.gather(peak_memory_mib(group.device)), default=0.0)
    if not group.is_first:
        return
    about = run.describe()
    summary = {
        **request.plan,
        **about,
        "parameters": about["model"]["parameters"],
        "memory_mib": round(memory, 1),
        "seconds_per_update": seconds[-1],
        "seconds_of_first_update": seconds[0],
        "seconds_per_evaluation_batch": evaluation,
        "estimated_training_seconds": seconds[-1] * run.length.total_updates,
        "loss": loss,
        "figures": run.problem.task.summarise(scored),
        "torch": torch.__version__,
    }
    if isinstance(request.start, StartingPoint):
        (request.start.folder.path / "dry_run.json").write_text(json.dumps(summary, indent=2))
    console = Console(None, speaks=not request.quiet)
    console.say(run.summary(config))
    console.say(
        f"memory {memory:.0f} MiB per rank at most\n"
        f"time   {seconds[-1]:.3f} s per update ({seconds[0]:.3f} s the first), {evaluation:.3f} s per evaluation "
        f"batch;\n       about {_duration(summary['estimated_training_seconds'])} of training in all\n"
        f"loss   {loss:.4f} before training\n"
        "dry run: nothing was kept"
    )


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes:.0f} min" if minutes < 120 else f"{hours:.1f} h"
