"""What every worker runs: join the group, build the problem, train or resume, evaluate, report."""

import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from noether.checkpoints.format import (
    CheckpointFolder,
    drop_checkpoints_after,
    newest_update,
    selected_checkpoint,
)
from noether.checkpoints.resume import StartingPoint
from noether.checkpoints.saver import Saver
from noether.checkpoints.state import load_checkpoint, load_weights, model_tensors, state_bytes
from noether.common.console import Console
from noether.common.whole_file import ANYBODY, Publisher, write_whole
from noether.config.compose import dump_config
from noether.config.schema import RunConfig
from noether.distributed.deadline import ASSUMED_BYTES_PER_S, Deadline
from noether.distributed.group import LONGEST_FINISH_S, Group, joined_group
from noether.distributed.stop import AgreedStop, StopAgreed, describe_stop
from noether.errors import ExitCode, NoetherError, RequestError
from noether.evaluation.final import EvaluatedWeights, evaluate_run
from noether.evaluation.tables import result_tables
from noether.runs.attempts import attempts_without_progress, record_outcome, record_start
from noether.runs.folder import DISK_ERRNOS, DiskRefusal, RunFolder, refusals_told
from noether.runs.lease import FencedError, Lease
from noether.runs.provenance import provenance
from noether.runs.records import read_record, write_record
from noether.runs.trust import mark_own
from noether.tracking.console import ConsoleTracker
from noether.tracking.metrics_file import MetricsFile
from noether.tracking.services import open_services
from noether.tracking.tracker import Tracker, Trackers
from noether.training.arithmetic import measure_arithmetic
from noether.training.build import Run, already_past, build_run
from noether.training.equality import differences_of_resume
from noether.training.loop import Loop
from noether.training.profile import UpdateProfile
from noether.training.request import TrainRequest
from noether.training.validation import Validation
from noether.workers.context import WorkerContext
from noether.workers.failure import REFUSED_BY_FIRST


def train_worker(context: WorkerContext, request: TrainRequest) -> int:
    """Trains as one rank of a run.

    Returns:
        ExitCode.DONE, or ExitCode.CHECKPOINTED where a signal or a time limit stopped the run with everything saved.
    """
    # Handlers first: a stop that is asked for while data is read is kept until the first update boundary.
    stop = AgreedStop()
    with stop.listening(meets=context.world_size > 1), joined_group(context) as group:
        stop.join(group)
        with refusals_told(request.config.output_path.expanduser(), DISK_ERRNOS):
            return _train(context, request, group, stop)


def _train(context: WorkerContext, request: TrainRequest, group: Group, stop: AgreedStop) -> int:
    config, start = request.config, group.from_first(request.start)
    assert start is not None  # Rank 0's own.
    if isinstance(start, RequestError):
        raise start if group.is_first else RequestError(REFUSED_BY_FIRST, seen=start.summary)
    if isinstance(request.start, RequestError):
        raise request.start  # This host cannot take part; the others hear it from its launcher.
    assert start.lease is not None
    folder, lease = start.folder, start.lease
    with refusals_told(folder.path):
        folder.logs.mkdir(parents=True, exist_ok=True)  # Where the hosts share no file system, each has its own logs.
        console = Console(folder.logs / f"rank-{group.rank}.log", speaks=group.is_first)
    # A run that goes on has weights of its own, and need not find those that it began with.
    goes_on = start.checkpoint is not None
    own = config.model_copy(update={"initial_weights": None}) if goes_on else config
    run = build_run(own, request.data, group)
    if start.checkpoint is not None:
        _resume(run, start, group, console, config.seed, context.host)
    began_at = run.state.progress.updates
    if began_at > run.length.total_updates:
        raise already_past(config, run.length, began_at)
    left_to_do = began_at < run.length.total_updates or run.state.progress.evaluation_pending
    if group.is_first:
        console.say(run.summary(config))
        if left_to_do:
            with refusals_told(folder.path):
                _record(config, folder, {**request.plan, **run.describe()}, began_at, lease)
    group.barrier()
    if request.deadline is not None:
        request.deadline.save_s = state_bytes(run.state) / ASSUMED_BYTES_PER_S
        stop.leave_before(request.deadline)
    if group.is_first:
        _note(console, lambda: record_start(folder, lease.own.number, began_at, context.host, lease.own.job or ""))
    try:
        with (
            _trackers(config, folder, console, run, began_at, lease if group.is_first else None) as trackers,
            _saver(config, run, group, folder, lease, trackers, console, request.deadline) as saver,
        ):
            validate, profile = Validation(config, run, group, stop), _profile(config, run, folder, group, console)
            loop = Loop(config, run, group, stop, trackers=trackers, saver=saver, validate=validate, profile=profile)
            reason = loop.run()
        group.barrier()
        # Rank 0 says whether there is a result: other hosts may not see its files.
        if not reason and group.from_first(left_to_do or not read_record(folder.result, console.warn)):
            reason = _finish(config, folder, run, group, console, stop, lease, loop.time_use)
        elif not reason and group.is_first:
            console.say(f"the run was complete already: {folder.path}")
        stop.finish()
    except FencedError:
        raise  # A newer start owns the folder, so write nothing.
    except BaseException:
        if group.is_first:
            with suppress(FencedError):
                _note(console, lambda: _record_failure(folder, lease))
        raise
    return _leave(reason, folder, lease, run, group, console)


def _leave(reason: int, folder: RunFolder, lease: Lease, run: Run, group: Group, console: Console) -> int:
    """Records how this start ended, and says how to go on where it was stopped; returns the exit code."""
    outcome = describe_stop(reason) if reason else "done"
    if group.is_first:
        _note(console, lambda: record_outcome(folder, lease.own.number, newest_update(folder.checkpoints), outcome))
    if not reason:
        return ExitCode.DONE
    if group.is_first:
        # Before any rank leaves: a scheduler that sees one leave may kill the others, and their exit code with them.
        _note(console, lambda: _record_stop(folder, outcome, run.state.progress.updates, lease))
    group.barrier()
    if group.is_first:
        console.say(_how_to_go_on(folder, outcome, run.state.progress.updates, run.length.total_updates))
    return ExitCode.CHECKPOINTED


def _resume(run: Run, start: StartingPoint, group: Group, console: Console, seed: int, host: str) -> None:
    """Puts the checkpoint that the run goes on from into its state, and says what will not be as before."""
    assert start.checkpoint is not None
    checkpoint = CheckpointFolder(start.checkpoint)
    if not checkpoint.path.is_dir():
        raise RequestError(
            "the checkpoint that rank 0 goes on from is not on this host",
            seen=f"no {checkpoint.path} on {host}",
            expected="the run's folder at the same path on every host",
            fix="output_path=FOLDER      (on a file system that all hosts share, or a copy of the run on each)",
        )
    load_checkpoint(run.state, group, checkpoint, seed)
    console.say(f"resumed {start.folder.path.resolve().name} after update {run.state.progress.updates}")
    threads = torch.get_num_threads()
    for difference in differences_of_resume(checkpoint.meta(), group.world_size, threads, run.state.model):
        console.warn(difference)


def _profile(config: RunConfig, run: Run, folder: RunFolder, group: Group, console: Console) -> UpdateProfile | None:
    if config.trainer.profile is None:
        return None
    updates = run.length.count_updates(config.trainer.profile)
    return UpdateProfile(folder.path / "profile", updates, group.rank, group.device, console.warn)


def _record_failure(folder: RunFolder, lease: Lease) -> None:
    lease.check()
    record_outcome(folder, lease.own.number, newest_update(folder.checkpoints), "failed")


def _record_stop(folder: RunFolder, reason: str, update: int, lease: Lease) -> None:
    """Writes stopped.json: everything is saved, and what whoever may start the run again needs to know."""
    content = {
        "reason": reason,
        "update": update,
        "attempts_without_progress": attempts_without_progress(folder, newest_update(folder.checkpoints)),
    }
    write_record(folder.stopped, content, lease)


def _saver(
    config: RunConfig,
    run: Run,
    group: Group,
    folder: RunFolder,
    lease: Lease,
    trackers: Trackers,
    console: Console,
    deadline: Deadline | None,
) -> Saver:
    about = {
        "run_id": folder.path.resolve().name,
        "effective_batch_size": run.plan.effective,
        "micro_batch_size": run.plan.micro,
        "threads": torch.get_num_threads(),
        "updates_per_epoch": run.length.updates_per_epoch,
        "config": config.model_dump(mode="json"),
        "provenance": provenance(),
    }
    keep = config.trainer.keep_checkpoints
    best = run.state.progress.best_metric
    return Saver(
        group=group,
        folder=folder.checkpoints,
        keep=keep,
        about=about,
        sync=trackers.sync,
        warn=console.warn,
        lease=lease,
        deadline=deadline,
        best=best,
    )


def _note(console: Console, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        console.warn(f"{error.filename or 'a record of the run'} cannot be written: {error.strerror}")


def _record(config: RunConfig, folder: RunFolder, plan: dict[str, Any], began_at: int, lease: Lease) -> None:
    """Writes what the run is from now on; what an earlier attempt made after this update is of another history."""
    mark_own(folder, config.model_dump(mode="json"))
    write_whole(folder.config, dump_config(config), lease)
    write_record(folder.plan, plan, lease)
    drop_checkpoints_after(folder.checkpoints, began_at, lease)
    lease.drop(folder.result)


def _trackers(
    config: RunConfig, folder: RunFolder, console: Console, run: Run, start: int, lease: Lease | None
) -> Trackers:
    """Returns what shows and keeps the rows; lease: rank 0's right to write, None on the others."""
    trackers: list[Tracker] = [
        ConsoleTracker(console, start=start, total_updates=run.length.total_updates, total_epochs=run.length.epochs)
    ]
    if lease is None:
        return Trackers(trackers, console.warn)
    with refusals_told(folder.path):
        trackers.append(MetricsFile(folder.metrics, start, lease, console.warn, rows=run.state.progress.rows))
        if config.tracker.tensorboard:
            from noether.tracking.tensorboard import TensorBoardFile

            trackers.append(TensorBoardFile(folder.tensorboard, start, lease))
    trackers += open_services(config.tracker.services, folder.path, config.model_dump(mode="json"), console.warn)
    return Trackers(trackers, console.warn, lease.check)


def _finish(
    config: RunConfig,
    folder: RunFolder,
    run: Run,
    group: Group,
    console: Console,
    stop: AgreedStop,
    lease: Lease,
    time_use: dict[str, Any],
) -> int:
    """Evaluates the test split with the selected weights, and writes the result and the report.

    Returns:
        0, or why all ranks stopped before it was through; the next start of the run does it again.
    """
    started = time.perf_counter()
    weights, model = next(iter(run.state.evaluation_models().items()))
    name = ""
    if group.is_first:
        selected = selected_checkpoint(folder.checkpoints, console.warn)
        name = selected.path.name
        load_weights(model, selected, weights)
    # Sent, not read: other hosts may not see the files of rank 0's, or not yet.
    name = group.from_first(name)
    group.copy_from_first(model_tensors(model).values())
    try:
        result = evaluate_run(
            config,
            run.problem,
            EvaluatedWeights(model, weights, name, run.state.progress.updates),
            "test",
            folder,
            group,
            run.precision,
            batch_size=config.trainer.evaluation_batch_size or run.plan.micro,
            world_size=group.world_size,
            at_boundary=stop.check,
            by=lease,
        )
        if group.is_first:
            result |= {"time_use": time_use, "arithmetic": measure_arithmetic(run, time_use)}
            _show_result(config, folder, run, console, result, lease)
            console.only_log(f"evaluated in {time.perf_counter() - started:.1f} s")
    except StopAgreed as stopped:
        return stopped.reason
    except DiskRefusal as refusal:
        raise NoetherError(
            f"the result of the run cannot be written to {folder.path}; training is complete and saved\n"
            f"  seen      {refusal.seen}\n"
            f"  expected  {refusal.expected}\n"
            "  fix       make room and run the same command with resume=auto: only the evaluation is made again"
        ) from None
    # A launcher may end what is left a while after the first rank has left, as srun --wait does.
    group.wait_for_first(LONGEST_FINISH_S)
    return 0


def _show_result(
    config: RunConfig, folder: RunFolder, run: Run, console: Console, result: dict[str, Any], lease: Lease
) -> None:
    console.say("")
    for table in result_tables(result, run.problem.task.fields):
        console.say(table)
    with refusals_told(folder.path):
        write_record(folder.result, result, lease)
    if config.tracker.report:
        report_run(folder, console, lease)


def report_run(folder: RunFolder, console: Console, by: Publisher = ANYBODY) -> None:
    """Writes the report and says where it is; a run whose weights and figures are saved does not fail for its page."""
    from noether.report import write_report

    try:
        path = write_report(folder, by)
    except OSError as error:
        console.warn(
            f"the report could not be written ({type(error).__name__}: {error}); to make it later:\n"
            f"  noether report {shlex.quote(str(folder.path))}"
        )
    else:
        console.say(f"\nreport {path}")


def _how_to_go_on(folder: RunFolder, reason: str, updates: int, total: int) -> str:
    return (
        f"stopped by {reason} after update {updates} of {total}, everything is saved; go on with the same command and\n"
        f"  resume={folder.path}"
    )
