"""Starts a run from its configuration: prepares the data, checks the folder, shows the plan, starts the workers."""

import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

from noether.checkpoints.format import newest_update, remove_leftovers
from noether.checkpoints.resume import ResumeTarget, find_target
from noether.common.console import Console
from noether.common.signals import STOP_SIGNALS, ignore_the_end_of_others, leave_with_what_was_made
from noether.common.whole_file import write_whole
from noether.config.compose import dump_config
from noether.config.schema import RunConfig
from noether.data.progress import prepare_with_bar
from noether.distributed.deadline import find_deadline
from noether.environments.placement import Placement
from noether.errors import ExitCode, NoetherError, RequestError
from noether.planning.plan import RunPlan, plan_run, render_plan, run_info
from noether.runs.attempts import record_stop
from noether.runs.folder import RunFolder, refusals_told
from noether.runs.lease import Lease, take_lease
from noether.runs.provenance import describe_environment
from noether.runs.records import write_record
from noether.runs.reset import is_own_attempt, place_aside, set_aside
from noether.runs.trust import mark_own
from noether.training.preflight import check_compiler, check_torch
from noether.training.refusing import other_hosts_told
from noether.training.request import TrainRequest
from noether.training.tensorboard_page import beside_run
from noether.workers.run import run_placement
from noether.workers.worker import failure_report, write_error_file


def start_run(config: RunConfig, plan: RunPlan, started: float, *, reset: bool, tensorboard: bool) -> int:
    """Starts the run that was planned, as `train_here` says; its time limit counts from `started` (monotonic)."""
    if plan.placement.workers[0].rank > 0:
        return _join(config, plan)
    with other_hosts_told(config):
        folder, lease, request = _prepare(config, plan, started, reset)
    code: int = ExitCode.FAILED
    try:
        with beside_run(folder, tensorboard):
            code = _run(plan.placement, request, folder.logs)
            if code == ExitCode.CHECKPOINTED:
                ignore_the_end_of_others()
            if number := _stopped_at_start(code):
                ignore_the_end_of_others()
                record_stop(folder, signal.Signals(number).name, newest_update(folder.checkpoints), lease)
                code = ExitCode.CHECKPOINTED
    except NoetherError as error:
        code = error.exit_code
        if isinstance(error, RequestError):  # A port that is taken; no rank started that could keep it.
            write_error_file(failure_report(error, 0, plan.placement.host), folder.logs)
        raise
    finally:
        lease.release(code)
    return code


def _prepare(config: RunConfig, plan: RunPlan, started: float, reset: bool) -> tuple[RunFolder, Lease, TrainRequest]:
    """Looks after all that can refuse the run before its ranks start, and writes what was asked and planned."""
    placement = plan.placement
    check_torch(plan)
    check_compiler(config, plan)
    console = Console(None, speaks=True)
    target, aside = _choose_folder(config, console, placement, reset)
    target.folder.check_writable()
    console.say(*render_plan(plan, every_reason=False), "", sep="\n")
    data = prepare_with_bar(config, console)
    # Last, so that a request that is refused leaves no empty folder among the runs, and the old one in its place.
    if aside is not None:
        set_aside(target.folder, aside)
        console.say(f"reset  the old run is kept as {aside}")
    target.folder.create()
    with refusals_told(target.folder.path):
        lease = take_lease(target.folder, placement.restarts, is_task=placement.launcher == "slurm")
        target = replace(target, lease=lease)
        lease.drop(target.folder.stopped)
        write_record(target.folder.environment, describe_environment(), lease)
        if target.checkpoint is None:
            _record(config, plan, target.folder, lease)
    remove_leftovers(target.folder.checkpoints)
    console.say(f"run    {target.folder.path}")
    for change in target.changes:
        console.say(f"changed since the checkpoint: {change}")
    deadline = find_deadline(config.trainer.timeout_min, config.slurm.timeout_min, os.environ, started=started)
    if deadline is not None:
        console.say(f"limit  {deadline.describe()}: the run stops before it, with everything saved")
    return target.folder, lease, TrainRequest(config, target, data, plan.as_dict(), deadline)


def _stopped_at_start(code: int) -> int:
    """Returns the signal that ended ranks before they had met, or 0: what was saved before is still the newest.

    Not a Ctrl-C: a person who starts a run and ends it at once does not want it to go on.
    """
    return next((number for number in STOP_SIGNALS if code == 128 + number and number != signal.SIGINT), 0)


def _join(config: RunConfig, plan: RunPlan) -> int:
    """Answers for ranks above 0 alone: what the run's folder is, and whether there is a run, rank 0 says."""
    with other_hosts_told(config):
        check_torch(plan)
        check_compiler(config, plan)
        data = prepare_with_bar(config, Console(None, speaks=False))
    with tempfile.TemporaryDirectory(prefix="noether-") as scratch:
        request = TrainRequest(config, None, data, plan.as_dict())
        code = _run(plan.placement, request, Path(scratch), logs_stay=False)
        if not _stopped_at_start(code) and code != ExitCode.CHECKPOINTED:
            return code
        ignore_the_end_of_others()
        return ExitCode.CHECKPOINTED


def _run(
    placement: Placement,
    request: TrainRequest,
    log_folder: Path,
    target: str = "noether.training.train.train_worker",
    *,
    logs_stay: bool = True,
) -> int:
    """Runs this process's workers on what all ranks of the run are given alike; returns the exit code.

    Raises:
        RequestError: DISTRIBUTED_TIMEOUT_S is not a number of seconds.
    """
    with other_hosts_told(request.config):
        info = replace(run_info(request.config, placement, os.environ), logs_stay=logs_stay)
        return run_placement(placement, target, request, log_folder, info)


def _choose_folder(
    config: RunConfig, console: Console, placement: Placement, reset: bool
) -> tuple[ResumeTarget, Path | None]:
    """Finds where a run starts, and where the folder is kept that it replaces; None where it replaces none.

    A job that was queued again, or that a launcher restarts, has the same words: it goes on with what the first start
    has begun.
    """
    if not reset:
        return find_target(config, console.warn), None
    folder = RunFolder(config.output_path.expanduser() / str(config.run_id))
    if placement.restarts > 0 and is_own_attempt(folder):
        return find_target(config.model_copy(update={"resume": "auto"}), console.warn), None
    return ResumeTarget(folder, None), place_aside(folder)


def dry_run_here(config: RunConfig, *, as_json: bool, reset: bool = False) -> int:
    """Builds everything, makes one update and one evaluation batch, and says what it took. Leaves nothing."""
    with other_hosts_told(config):
        plan = plan_run(config)
        check_torch(plan)
        check_compiler(config, plan)
        console = Console(None, speaks=not as_json and plan.placement.workers[0].rank == 0)
        aside = _choose_folder(config, console, plan.placement, reset)[1]
        if aside is not None:
            console.say(f"reset  the existing run would be kept as {aside}\n")
        RunFolder(config.output_path.expanduser()).check_writable()
        console.say(*render_plan(plan, every_reason=False), "", sep="\n")
        data = prepare_with_bar(config, console)
    leave_with_what_was_made()
    with tempfile.TemporaryDirectory(prefix="noether-dry-run-", ignore_cleanup_errors=True) as scratch:
        folder = RunFolder(Path(scratch))
        request = TrainRequest(config, ResumeTarget(folder, None), data, plan.as_dict(), quiet=as_json)
        code = _run(plan.placement, request, folder.logs, "noether.training.dry_run.dry_run_worker", logs_stay=False)
        if code == ExitCode.DONE and as_json:
            print((folder.path / "dry_run.json").read_text())
    return code


def _record(config: RunConfig, plan: RunPlan, folder: RunFolder, lease: Lease) -> None:
    """Writes what was asked and planned before the first worker starts, so that a crash leaves it."""
    write_record(folder.plan, plan.as_dict(), lease)
    mark_own(folder, config)
    write_whole(folder.config, dump_config(config), lease)  # Last: from now on there is a run of this name.
