"""The work of each rank in a run, from joining the process group to the final evaluation and report."""

import os
from pathlib import Path

from noether.checkpoints.format import CheckpointFolder
from noether.checkpoints.resume import ResumeTarget
from noether.checkpoints.state import state_bytes
from noether.common.atomic_write import DISK_ERRNOS, refusals_told
from noether.common.console import Console
from noether.common.dotted_path import code_granted
from noether.launch.process_group.deadline import ASSUMED_BYTES_PER_S, Deadline
from noether.launch.process_group.group import Group, joined_group
from noether.launch.process_group.stop import AgreedStop, describe_stop
from noether.launch.processes.context import WorkerContext
from noether.runs.folder import TOLD
from noether.runs.lease import record_meeting
from noether.runs.records import read_metrics, write_record
from noether.training import open_run
from noether.training.build import build_run, check_selection, differences_of_resume, restore
from noether.training.callbacks import Callback, callback_classes
from noether.training.evaluation import Validation, report_run, write_final_result
from noether.training.loop import Loop
from noether.training.open_run import OpenRun
from noether.training.rehearsal import updates_that_fit
from noether.training.start import TrainRequest


def train_worker(context: WorkerContext, request: TrainRequest) -> int:
    """Train as one rank of a run; return DONE, or CHECKPOINTED if the run was stopped with everything saved."""
    stop = AgreedStop()  # Handlers come first: a stop requested while data is read takes effect at the first boundary.
    with stop.listening(meets=context.world_size > 1), joined_group(context) as group:
        stop.join(group)
        output, own_code = request.config.output_path.expanduser(), request.config.own_code()
        with refusals_told(output, DISK_ERRNOS), code_granted(own_code):
            return _train(context, request, group, stop)


def _train(context: WorkerContext, request: TrainRequest, group: Group, stop: AgreedStop) -> int:
    target = group.from_first(request.target)
    assert target is not None  # Rank 0 always has a target.
    run = _build(request, target, group)
    callbacks = [kind() for kind in callback_classes(run.config.trainer.callbacks)]
    if target.checkpoint is not None:
        _resume(run, target.checkpoint, context.host)
    is_complete = group.from_first(group.is_first and open_run.is_complete(run))
    _begin(run, request, stop, is_complete)
    reason = 0 if is_complete else _update_and_evaluate(run, stop, request.deadline, callbacks)
    if is_complete and group.is_first:
        _report_complete(run)
    stop.finish()
    return open_run.leave(run, reason)


def _build(request: TrainRequest, target: ResumeTarget, group: Group) -> OpenRun:
    """Open this rank's log, and build everything that the run needs for training."""
    folder, lease = target.folder, target.lease
    assert lease is not None
    if told := os.environ.get(TOLD):
        write_record(Path(told), {"run": str(folder.path.absolute())})
    with refusals_told(folder.path):
        if group.is_first:
            lease.check()
        # Create the log folder on hosts that do not share rank 0's file system; on rank 0's host it exists.
        folder.logs.mkdir(parents=request.target is None, exist_ok=True)
        console = Console(folder.logs / f"rank-{group.rank}.log", speaks=group.is_first)
    resuming, batch = target.checkpoint is not None, request.plan.batch
    built = build_run(request.config, request.data, group, batch, resuming=resuming, verified=request.weights)
    run = OpenRun(**vars(built), folder=folder, lease=lease, console=console)
    check_selection(run)
    return run


def _resume(run: OpenRun, checkpoint: CheckpointFolder, host: str) -> None:
    # Warn before the checkpoint is read, because changed code may fail to read it.
    for difference in differences_of_resume(checkpoint.meta(), run.about, run.state.model):
        run.console.warn(difference)
    restore(run, checkpoint, host, run.console.warn)
    run.console.say(f"resumed {run.folder.run_id} after update {run.state.progress.updates}")


def _begin(run: OpenRun, request: TrainRequest, stop: AgreedStop, is_complete: bool) -> None:
    """Show the run and record its start, unless it is complete; report stops and the deadline from now on."""
    if run.group.is_first:
        stop.tell(lambda number: open_run.tell_of_stop(run, describe_stop(number)))
        about = run.describe()
        run.console.say(run.summary(about))
        if not is_complete:
            with refusals_told(run.folder.path):
                open_run.record_plan(run, {**request.plan.as_dict(), **about, "conditions": run.about["conditions"]})
    run.group.barrier()
    if request.deadline is not None:
        request.deadline.save_s = state_bytes(run.state) / ASSUMED_BYTES_PER_S
        stop.deadline = request.deadline
    run.write_if_first(lambda: record_meeting(run.folder, run.lease.own.number))


def _update_and_evaluate(run: OpenRun, stop: AgreedStop, deadline: Deadline | None, callbacks: list[Callback]) -> int:
    """Make the remaining updates, then write the result; return 0, or the reason if all ranks stopped early."""
    with open_run.open_run_services(run) as services:
        with open_run.open_trackers(run, services) as trackers, open_run.open_saver(run, trackers, deadline) as saver:
            loop = Loop(run, stop, trackers, saver, Validation(run, stop), open_run.open_profile(run), callbacks)
            with updates_that_fit(run.batch.micro):
                reason = loop.run()
        run.group.barrier()
        reason = reason or write_final_result(run, stop, loop.time_use)
        services.stopped = bool(reason)
    return reason


def _report_complete(run: OpenRun) -> None:
    """Print that the run is complete; write the report if it is missing."""
    run.console.say(f"the run is already complete: {run.folder.path}")
    read_metrics(run.folder.metrics, run.console.warn)  # Only to warn of damaged rows, which nothing else reads here.
    if run.config.tracker.report and not run.folder.report.exists():  # The run was killed before writing it.
        report_run(run.folder, run.console, run.lease)
