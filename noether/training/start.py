"""Start a run on this host, from the checks of the request to the start of the workers."""

import os
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from noether.checkpoints.format import newest_update, remove_leftovers
from noether.checkpoints.resume import ResumeTarget, find_target
from noether.common.atomic_write import refusals_told, write_whole
from noether.common.console import Console
from noether.common.errors import ExitCode, NoetherError, signal_code
from noether.common.processes import STOP_SIGNALS, ignore_the_end_of_others, leave_with_what_was_made
from noether.common.safe_open import StampedFile
from noether.config.compose import dump_config
from noether.config.distributed import with_environment
from noether.config.schema import RunConfig
from noether.core.data.build import prepare_with_bar
from noether.launch.detect.placement import Placement
from noether.launch.plan import RunPlan, plan_run, render_placement, run_info
from noether.launch.process_group.deadline import Deadline, find_deadline
from noether.launch.processes.context import RunInfo
from noether.launch.processes.run import run_placement
from noether.launch.start import Start
from noether.runs.folder import RunFolder
from noether.runs.lease import (
    FencedError,
    Lease,
    attempts_so_far,
    killed_while_stopping,
    record_outcome,
    record_stop,
    take_lease,
)
from noether.runs.overview import is_own_attempt, place_aside, set_aside
from noether.runs.provenance import describe_environment
from noether.runs.records import write_record
from noether.runs.trust import mark_own
from noether.training.preflight import check_own_code_of_ranks, check_software, check_start
from noether.training.tensorboard_page import beside_run


@dataclass(frozen=True)
class TrainRequest:
    """The parent process's request to its workers.

    target: where the run starts, chosen by rank 0's parent; other parents give None, and their ranks ask rank 0.
    data: the data folder on this host. plan: the plan for this host. quiet: print nothing.
    weights: the file of the initial weights, as the parent of rank 0 verified it on its host.
    deadline: the time by which the run must have exited, found by the parent of rank 0; None if unknown.
    """

    config: RunConfig
    target: ResumeTarget | None
    data: Path | None
    plan: RunPlan
    weights: StampedFile | None = None
    deadline: Deadline | None = None
    quiet: bool = False


# Names, not functions, because only the ranks import these modules.
TRAIN, DRY_RUN = "noether.training.train.train_worker", "noether.training.dry_run.dry_run_worker"


def start_run(config: RunConfig, plan: RunPlan, start: Start, *, reset: bool, tensorboard: bool) -> int:
    """Start the planned run; the arguments are those of `train_here`."""
    if plan.placement.workers[0].rank > 0:
        return _join(config, plan, start)
    check_software(config, plan.placement)
    console = Console(None, speaks=True)
    target, aside = _choose_folder(config, console, plan.placement, reset)
    weights = check_start(config, target)
    check_own_code_of_ranks(config, plan)
    data, info = _prepare(config, plan, start, console, logs_stay=True)
    # Done last, so that a refused request neither leaves an empty run folder nor moves the old one.
    if aside is not None:
        set_aside(target.folder, aside)
        console.say(f"reset  the old run is kept as {aside}")
    target, lease = _open_folder(config, plan, target)
    code: int = ExitCode.FAILED
    stopped_by: signal.Signals | None = None
    try:
        request = TrainRequest(config, target, data, plan, weights, _say_start(config, target, start, console))
        with beside_run(target.folder, tensorboard):
            code, stopped_by = _train(request, target.folder.logs, info, start)
            if stopped_by is not None:
                record_stop(target.folder, stopped_by.name, newest_update(target.folder.checkpoints), lease)
    except NoetherError as error:
        code = error.exit_code
        raise
    finally:
        _leave_folder(lease, code, stopped_by)
    return code


def _leave_folder(lease: Lease, code: int, stopped_by: signal.Signals | None) -> None:
    """Record how this attempt ended, unless its ranks have recorded it, and release the folder."""
    if stopped_by is not None or code not in (ExitCode.DONE, ExitCode.CHECKPOINTED):
        folder, outcome = lease.folder, stopped_by.name if stopped_by is not None else "failed"
        with suppress(OSError, FencedError):  # Another attempt owns the folder now, so write nothing.
            lease.check()
            record_outcome(folder, lease.own.number, newest_update(folder.checkpoints), outcome)
    lease.release(code)


def _prepare(
    config: RunConfig, plan: RunPlan, start: Start, console: Console, *, logs_stay: bool
) -> tuple[Path | None, RunInfo]:
    """Show the plan, prepare the data, reserve the run's ports; return this host's data folder and the ranks' info."""
    console.say(*render_placement(plan.placement, plan.batch, every_reason=False), "", sep="\n")
    data = prepare_with_bar(config, console)
    limits = with_environment(config.distributed, os.environ)
    info = replace(run_info(config, plan.placement, os.environ), distributed=limits, logs_stay=logs_stay)
    start.hold_ports(plan.placement, info)
    return data, info


def _run_ranks(target: str, request: TrainRequest, logs: Path, info: RunInfo, start: Start) -> int:
    """Run the ranks of this host; return their exit code."""
    code = run_placement(request.plan.placement, target, request, logs, info, start.ports)
    start.has_ranks = True
    return code


def _train(request: TrainRequest, logs: Path, info: RunInfo, start: Start) -> tuple[int, signal.Signals | None]:
    """Train; return the exit code, and the signal, if any, that ended ranks before all ranks had connected.

    Such a signal leaves the newest checkpoint unchanged, so the run is to be continued. Ctrl-C is an exception, because
    a person who ends a run right after its start does not want it continued.
    """
    code = _run_ranks(TRAIN, request, logs, info, start)
    asked = (signal.Signals(number) for number in STOP_SIGNALS if number != signal.SIGINT)
    stopped_by = next((number for number in asked if code == signal_code(number)), None)
    if stopped_by is None and code != ExitCode.CHECKPOINTED:
        return code, None
    ignore_the_end_of_others()
    return ExitCode.CHECKPOINTED, stopped_by


def _open_folder(config: RunConfig, plan: RunPlan, target: ResumeTarget) -> tuple[ResumeTarget, Lease]:
    """Create the run's folder, take its lease, and write the configuration and the plan."""
    folder, placement = target.folder, plan.placement
    folder.create()
    with refusals_told(folder.path):
        is_task = placement.launcher == "slurm"
        start_update = target.checkpoint.updates if target.checkpoint is not None else 0
        lease = take_lease(folder, is_task=is_task, start_update=start_update, after=target.attempts)
        lease.drop(folder.stopped)
        write_record(folder.environment, describe_environment(), lease)
        if target.checkpoint is None:  # Written before any worker starts, so that a crash leaves the plan behind.
            write_record(folder.plan, plan.as_dict(), lease)
            mark_own(folder, config)
            write_whole(folder.config, dump_config(config), lease)  # Last: from now on a run of this name exists.
    remove_leftovers(folder.checkpoints)
    return replace(target, lease=lease), lease


def _say_start(config: RunConfig, target: ResumeTarget, start: Start, console: Console) -> Deadline | None:
    """Print the run's folder and the changed settings; return the time by which the run must have exited."""
    console.say(f"run    {target.folder.path}")
    if killed := killed_while_stopping(target.folder, target.attempts):
        console.say(f"before {killed}")
    for change in target.changes:
        console.say(f"changed since the checkpoint: {change}")
    deadline = find_deadline(config.trainer.timeout_min, config.slurm.timeout_min, os.environ, started=start.moment)
    if deadline is not None:
        console.say(f"limit  {deadline.describe()}: the run stops before it, with everything saved")
    return deadline


def _join(config: RunConfig, plan: RunPlan, start: Start) -> int:
    """Start the ranks of a host without rank 0; the host of rank 0 chooses the folder, and may refuse the run."""
    check_software(config, plan.placement)
    data, info = _prepare(config, plan, start, Console(None, speaks=False), logs_stay=False)
    with tempfile.TemporaryDirectory(prefix="noether-") as scratch:
        return _train(TrainRequest(config, None, data, plan), Path(scratch), info, start)[0]


def _choose_folder(
    config: RunConfig, console: Console, placement: Placement, reset: bool
) -> tuple[ResumeTarget, Path | None]:
    """Return where a run starts, and where to keep the folder that the run replaces; None if it replaces no folder.

    If a requeued job or a launcher's restart repeats a command with `reset`, it continues the run of its first attempt.
    """
    if not reset:
        return find_target(config, console.warn), None
    folder = RunFolder(config.output_path.expanduser() / str(config.run_id))
    if placement.restarts > 0 and is_own_attempt(folder):
        return find_target(config.model_copy(update={"resume": "auto"}), console.warn), None
    attempts, aside = attempts_so_far(folder), place_aside(folder)
    return ResumeTarget(folder, None, attempts if aside is None else 0), aside


def dry_run_here(config: RunConfig, start: Start, *, as_json: bool, reset: bool = False) -> int:
    """Build everything, try two updates and an evaluation batch, and print their cost. Keep nothing."""
    plan = plan_run(config)
    start.placement = plan.placement
    check_software(config, plan.placement)
    console = Console(None, speaks=not as_json and plan.placement.workers[0].rank == 0)
    found, aside = _choose_folder(config, console, plan.placement, reset)
    if aside is not None:
        console.say(f"reset  the existing run would be kept as {aside}\n")
    if found.checkpoint is not None:
        console.say(f"resume the run would continue from {found.checkpoint.path}\n")
    weights = check_start(config, found)
    check_own_code_of_ranks(config, plan)
    data, info = _prepare(config, plan, start, console, logs_stay=False)
    leave_with_what_was_made()
    with tempfile.TemporaryDirectory(prefix="noether-dry-run-", ignore_cleanup_errors=True) as scratch:
        folder = RunFolder(Path(scratch))
        request = TrainRequest(config, replace(found, folder=folder), data, plan, weights, quiet=as_json)
        code = _run_ranks(DRY_RUN, request, folder.logs, info, start)
        if code == ExitCode.DONE and as_json:
            print((folder.path / "dry_run.json").read_text())
    return code
