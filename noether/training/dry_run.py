"""A dry run: build a run on every rank, try two updates and an evaluation batch, and keep nothing."""

import json
import time
from itertools import pairwise

import torch

from noether.common.console import Console
from noether.common.dotted_path import code_granted
from noether.common.errors import ExitCode
from noether.common.numbers import duration_text
from noether.launch.process_group.group import Group, joined_group
from noether.launch.process_group.stop import AgreedStop
from noether.launch.processes.context import WorkerContext
from noether.training.build import Run, build_run, check_selection, restore
from noether.training.callbacks import callback_classes
from noether.training.loop import update_batches
from noether.training.rehearsal import updates_that_fit
from noether.training.start import TrainRequest
from noether.training.time_use import peak_memory_mib


def dry_run_worker(context: WorkerContext, request: TrainRequest) -> int:
    """Try a run on every rank; rank 0 prints its cost and writes dry_run.json for the parent process."""
    with AgreedStop().listening(meets=True), joined_group(context) as group, code_granted(request.config.own_code()):
        _dry_run(request, group, context.host)
    return ExitCode.DONE


def _dry_run(request: TrainRequest, group: Group, host: str) -> None:
    config, target = request.config, group.from_first(request.target)
    assert target is not None  # Rank 0 always has a target.
    console = Console(None, speaks=group.is_first and not request.quiet)
    resuming, batch = target.checkpoint is not None, request.plan.batch
    run = build_run(config, request.data, group, batch, resuming=resuming, verified=request.weights)
    check_selection(run)
    for kind in callback_classes(config.trainer.callbacks):
        kind()
    if target.checkpoint is not None:
        restore(run, target.checkpoint, host, console.warn)
    done = run.state.progress.updates
    with updates_that_fit(run.batch.micro):
        seconds, loss = _try_updates(run)
    evaluator = run.evaluator()
    test = run.problem.splits.test
    started = time.perf_counter()
    one_batch = range(min(len(test), evaluator.batch_size * group.world_size))
    sample_metrics = evaluator.sample_metrics(run.state.model, test, one_batch)
    evaluation = time.perf_counter() - started
    memory = max(group.gather(peak_memory_mib(group.device)), default=0.0)
    if not group.is_first:
        return
    about, described = run.describe(), run.described
    summary = {
        **request.plan.as_dict(),
        **about,
        "parameters": about["model"]["parameters"],
        "memory_mib": round(memory, 1),
        "seconds_per_update": seconds[-1],
        "seconds_of_first_update": seconds[0],
        "seconds_per_evaluation_batch": evaluation,
        "estimated_training_seconds": seconds[-1] * (run.length.total_updates - done),
        "loss": loss,
        "metrics": run.problem.task.summarise(sample_metrics),
        "torch": torch.__version__,
    }
    (target.folder.path / "dry_run.json").write_text(json.dumps(summary, indent=2))
    console.say(run.summary(about))
    extent, moment = ("left", f"after update {done}") if done else ("in all", "before training")
    console.say(
        f"memory {described['memory_mib'].text(memory)} per rank at most\n"
        f"time   {seconds[-1]:.3f} s per update ({seconds[0]:.3f} s the first), {evaluation:.3f} s per evaluation "
        f"batch;\n       about {duration_text(summary['estimated_training_seconds'])} of training {extent}\n"
        f"loss   {described['loss'].text(loss)} {moment}\n"
        "dry run: nothing was kept"
    )


def _try_updates(run: Run) -> tuple[list[float], float]:
    """Make two updates; return the seconds of each, and the first loss. The first update may also compile."""
    group, done = run.group, run.state.progress.updates
    updater = run.updater()
    moments, losses = [time.perf_counter()], []
    for batches in update_batches(run, updater.clock, done + 2):
        measured = updater.update(batches, run.schedule(min(done, run.length.total_updates - 1)))
        losses.append(float(group.sum(measured.loss / group.world_size)))
        moments.append(time.perf_counter())
    updater.close()
    return [end - begin for begin, end in pairwise(moments)], losses[0]
