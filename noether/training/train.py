"""What every worker runs: join the group, build the problem, train or resume, evaluate, report."""

import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from noether.checkpoints.format import list_checkpoints, newest_update
from noether.checkpoints.state import state_bytes
from noether.common.atomic_write import DISK_ERRNOS, refusals_told, write_whole
from noether.common.console import Console
from noether.common.dotted_path import code_granted
from noether.common.errors import ExitCode
from noether.common.numbers import duration_text
from noether.config.compose import dump_config
from noether.launch.process_group.deadline import ASSUMED_BYTES_PER_S, Deadline
from noether.launch.process_group.group import Group, joined_group
from noether.launch.process_group.stop import AgreedStop, describe_stop
from noether.launch.processes.context import WorkerContext
from noether.runs.continue_line import continue_line
from noether.runs.folder import TOLD
from noether.runs.lease import record_asked, record_meeting, record_outcome, record_stop
from noether.runs.records import last_update, read_metrics, read_record, write_record
from noether.runs.trust import mark_own
from noether.training.build import Run, build_run, check_selection, differences_of_resume, restore
from noether.training.callbacks import Callback, callback_classes
from noether.training.evaluation import Validation, report_run, write_final_result
from noether.training.loop import Loop, update_batches
from noether.training.open_run import OpenRun, open_profile, open_run_services, open_saver, open_trackers
from noether.training.rehearsal import updates_that_fit
from noether.training.start import TrainRequest
from noether.training.time_use import peak_memory_mib


def dry_run_worker(context: WorkerContext, request: TrainRequest) -> int:
    """Tries a run on every rank; rank 0 prints what it took and writes dry_run.json for the parent process."""
    with AgreedStop().listening(meets=True), joined_group(context) as group, code_granted(request.config.own_code()):
        _dry_run(request, group, context.host)
    return ExitCode.DONE


def _dry_run(request: TrainRequest, group: Group, host: str) -> None:
    config, target = request.config, group.from_first(request.target)
    assert target is not None  # Rank 0's own.
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
    """Makes two updates, since the first also allocates and, if asked for, compiles; returns seconds and the loss."""
    group, done = run.group, run.state.progress.updates
    updater = run.updater()
    moments, losses = [time.perf_counter()], []
    for batches in update_batches(run, updater.clock, done + 2):
        measured = updater.update(batches, run.schedule(min(done, run.length.total_updates - 1)))
        losses.append(float(group.sum(measured.loss / group.world_size)))
        moments.append(time.perf_counter())
    updater.close()
    return [end - begin for begin, end in pairwise(moments)], losses[0]


def train_worker(context: WorkerContext, request: TrainRequest) -> int:
    """Trains as one rank of a run; returns DONE, or CHECKPOINTED where it was stopped with everything saved."""
    # Handlers first: a stop that is asked for while data is read is kept until the first update boundary.
    stop = AgreedStop()
    with stop.listening(meets=context.world_size > 1), joined_group(context) as group:
        stop.join(group)
        output, own_code = request.config.output_path.expanduser(), request.config.own_code()
        with refusals_told(output, DISK_ERRNOS), code_granted(own_code):
            return _train(context, request, group, stop)


def _train(context: WorkerContext, request: TrainRequest, group: Group, stop: AgreedStop) -> int:
    config, target = request.config, group.from_first(request.target)
    assert target is not None  # Rank 0's own.
    assert target.lease is not None
    folder, lease = target.folder, target.lease
    if told := os.environ.get(TOLD):
        write_record(Path(told), {"run": str(folder.path.absolute())})
    with refusals_told(folder.path):
        if group.is_first:
            lease.check()
        # Where the hosts share no file system, each has its own logs; that of rank 0 has made the folder.
        folder.logs.mkdir(parents=request.target is None, exist_ok=True)
        console = Console(folder.logs / f"rank-{group.rank}.log", speaks=group.is_first)
    resuming, batch = target.checkpoint is not None, request.plan.batch
    built = build_run(config, request.data, group, batch, resuming=resuming, verified=request.weights)
    run = OpenRun(**vars(built), folder=folder, lease=lease, console=console)
    check_selection(run)
    callbacks = [kind() for kind in callback_classes(config.trainer.callbacks)]
    if target.checkpoint is not None:
        # Before it is read, which code that has changed may not be able to.
        for difference in differences_of_resume(target.checkpoint.meta(), run.about, run.state.model):
            console.warn(difference)
        restore(run, target.checkpoint, context.host, console.warn)
        console.say(f"resumed {folder.run_id} after update {run.state.progress.updates}")
    # Rank 0 says so: other hosts may not see its files.
    is_complete = group.from_first(group.is_first and _is_complete(run))
    if group.is_first:
        stop.tell(lambda number: _tell_of_stop(run, describe_stop(number)))
        about = run.describe()
        console.say(run.summary(about))
        if not is_complete:
            with refusals_told(folder.path):
                _record(run, {**request.plan.as_dict(), **about, "conditions": run.about["conditions"]})
    group.barrier()
    if request.deadline is not None:
        request.deadline.save_s = state_bytes(run.state) / ASSUMED_BYTES_PER_S
        stop.deadline = request.deadline
    run.write_if_first(lambda: record_meeting(folder, lease.own.number))
    reason = 0 if is_complete else _update_and_evaluate(run, stop, request.deadline, callbacks)
    if is_complete and group.is_first:
        console.say(f"the run is already complete: {folder.path}")
        read_metrics(folder.metrics, console.warn)  # Nothing else of this start says which rows are damaged.
        if config.tracker.report and not folder.report.exists():  # killed while it was written
            report_run(folder, console, lease)
    stop.finish()
    return _leave(reason, run)


def _tell_of_stop(run: OpenRun, name: str) -> None:
    """Says at once that the run will stop, and notes it: an update may take longer than the process is left to live."""
    update = run.state.progress.updates + 1
    run.write_if_first(lambda: record_asked(run.folder, run.lease.own.number, name, update))
    run.console.say(f"{name}: the run stops and saves as soon as what is under way is done (update {update})")


def _update_and_evaluate(run: OpenRun, stop: AgreedStop, deadline: Deadline | None, callbacks: list[Callback]) -> int:
    """Makes the updates that are left, then the result; returns why all ranks stopped before, or 0."""
    with open_run_services(run) as services:
        with open_trackers(run, services) as trackers, open_saver(run, trackers, deadline) as saver:
            loop = Loop(run, stop, trackers, saver, Validation(run, stop), open_profile(run), callbacks)
            with updates_that_fit(run.batch.micro):
                reason = loop.run()
        run.group.barrier()
        reason = reason or write_final_result(run, stop, loop.time_use)
        services.stopped = bool(reason)
    return reason


def _is_complete(run: OpenRun) -> bool:
    """Whether nothing is left to do: the run is over, and its folder holds the result and nothing of a later update."""
    if not run.is_over():
        return False
    newest = max(newest_update(run.folder.checkpoints), last_update(read_metrics(run.folder.metrics)) or 0)
    return newest <= run.state.progress.updates and bool(read_record(run.folder.result, run.console.warn))


def _leave(reason: int, run: OpenRun) -> int:
    """Records how this start ended, and says how to continue it where it was stopped; returns the exit code."""
    group, folder, updates = run.group, run.folder, run.state.progress.updates
    outcome = describe_stop(reason) if reason else "done"
    run.write_if_first(lambda: record_outcome(folder, run.lease.own.number, newest_update(folder.checkpoints), outcome))
    if not reason:
        return ExitCode.DONE
    # Before any rank leaves: a scheduler that sees one leave may kill the others, and their exit code with them.
    run.write_if_first(lambda: record_stop(run.folder, outcome, newest_update(run.folder.checkpoints), run.lease))
    group.barrier()
    if group.is_first:
        run.console.say(
            f"stopped by {outcome} after update {updates} of {run.length.total_updates}, everything is saved; "
            f"to continue:\n  {continue_line(run.folder.path)}"
        )
    return ExitCode.CHECKPOINTED


def _record(run: OpenRun, plan: dict[str, Any]) -> None:
    """Writes what the run is from now on; what an earlier start made after this update is of another history."""
    folder, lease = run.folder, run.lease
    mark_own(folder, run.config)
    write_whole(folder.config, dump_config(run.config), lease)
    write_record(folder.plan, plan, lease)
    for checkpoint in list_checkpoints(folder.checkpoints):
        if checkpoint.updates > run.state.progress.updates:
            lease.drop(checkpoint.path)
    lease.drop(folder.result)
