"""A run that is built and open on one rank, with its records, trackers, checkpoint saver and profile."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from noether.checkpoints.format import list_checkpoints, newest_update
from noether.checkpoints.writer import CheckpointWriter, Saver
from noether.common.atomic_write import refusals_told, write_whole
from noether.common.console import Console
from noether.common.errors import ExitCode
from noether.config.compose import dump_config
from noether.launch.process_group.deadline import Deadline
from noether.launch.process_group.stop import describe_stop
from noether.runs.continue_line import continue_line
from noether.runs.folder import RunFolder
from noether.runs.lease import Lease, record_asked, record_outcome, record_stop
from noether.runs.provenance import provenance, source_digests
from noether.runs.records import last_update, read_metrics, read_record, write_record
from noether.runs.tracking.console import ConsoleTracker
from noether.runs.tracking.services import RunFacts, Services, open_services
from noether.runs.tracking.tracker import MetricsFile, Tracker, Trackers
from noether.runs.trust import mark_own
from noether.training.build import Run, conditions_of
from noether.training.time_use import UpdateProfile


@dataclass(frozen=True)
class OpenRun(Run):
    """A run that is built, with its folder and the lease for writing there; only rank 0 uses the lease."""

    folder: RunFolder
    lease: Lease
    console: Console

    @cached_property
    def about(self) -> dict[str, Any]:
        """The description of the run that every checkpoint of this attempt contains."""
        return {
            "run_id": self.folder.run_id,
            "world_size": self.group.world_size,
            "effective_batch_size": self.batch.effective,
            "micro_batch_size": self.batch.micro,
            "conditions": conditions_of(self.group.device),
            "data": dict(self.problem.data),
            "updates_per_epoch": self.length.updates_per_epoch,
            "config": self.config.model_dump(mode="json"),
            "provenance": provenance(),
            "sources": source_digests(self.config.own_code()),
        }

    def write_if_first(self, write: Callable[[], None]) -> None:
        """Write an optional record on rank 0; if the disk refuses, only warn."""
        try:
            if self.group.is_first:
                write()
        except OSError as error:
            self.console.warn(f"{error.filename or 'a record of the run'} cannot be written: {error.strerror}")


def open_run_services(run: OpenRun) -> Services:
    """Return the tracking services that the settings name; rank 0 sends them the log rows."""
    names = run.config.tracker.services if run.group.is_first else ()
    weights = tuple(run.state.evaluation_models())
    facts = RunFacts(run.folder.run_id, run.folder.path, run.about["config"], run.described, weights)
    return open_services(names, facts, run.console.warn, run.lease)


def open_trackers(run: OpenRun, services: Services) -> Trackers:
    """Return the trackers, which print the log rows and, on rank 0, also write them to files and services."""
    config, folder, console, lease, length = run.config, run.folder, run.console, run.lease, run.length
    start_update = run.state.progress.updates
    lengths = {"start_update": start_update, "total_updates": length.total_updates}
    trackers: list[Tracker] = [ConsoleTracker(console, described=run.described, **lengths, total_epochs=length.epochs)]
    if not run.group.is_first:
        return Trackers(trackers, console.warn)
    with refusals_told(folder.path):
        rows = run.state.progress.rows
        trackers.append(MetricsFile(folder.metrics, start_update, lease, console.warn, rows=rows))
        if config.tracker.tensorboard:
            from noether.runs.tracking.tensorboard import TensorBoardFile

            trackers.append(TensorBoardFile(folder.tensorboard, start_update, run.described, lease))
    return Trackers([*trackers, *services.trackers], console.warn, lease.check)


def open_saver(run: OpenRun, trackers: Trackers, deadline: Deadline | None) -> Saver:
    """Return the saver of the run's checkpoints."""
    writer = None
    if run.group.is_first:
        keep = run.config.trainer.keep_checkpoints
        # A checkpoint gets its final name only after all rows logged before it are on disk.
        writer = CheckpointWriter(run.folder.checkpoints, keep=keep, writer=run.lease, before_rename=trackers.sync)
    return Saver(run.group, writer, run.about, run.selected_by, run.console.warn, deadline)


def open_profile(run: OpenRun) -> UpdateProfile | None:
    """Return the recorder of a profile of some updates, if the settings request one."""
    if run.config.trainer.profile is None:
        return None
    updates = run.length.count_updates(run.config.trainer.profile)
    return UpdateProfile(run.folder.path / "profile", updates, run.group.rank, run.group.device, run.console.warn)


def is_complete(run: OpenRun) -> bool:
    """Return on rank 0 whether the run is over, and its folder contains the result and nothing of later updates."""
    if not run.is_over():
        return False
    newest = max(newest_update(run.folder.checkpoints), last_update(read_metrics(run.folder.metrics)) or 0)
    return newest <= run.state.progress.updates and bool(read_record(run.folder.result, run.console.warn))


def record_plan(run: OpenRun, plan: dict[str, Any]) -> None:
    """Write config and plan; delete the result, and checkpoints of later updates than the state's."""
    folder, lease = run.folder, run.lease
    mark_own(folder, run.config)
    write_whole(folder.config, dump_config(run.config), lease)
    write_record(folder.plan, plan, lease)
    for checkpoint in list_checkpoints(folder.checkpoints):
        if checkpoint.updates > run.state.progress.updates:
            lease.drop(checkpoint.path)
    lease.drop(folder.result)


def tell_of_stop(run: OpenRun, name: str) -> None:
    """Report and record a stop at once, because this process may be killed before the current update ends."""
    update = run.state.progress.updates + 1
    run.write_if_first(lambda: record_asked(run.folder, run.lease.own.number, name, update))
    run.console.say(f"{name}: the run saves and stops as soon as its current work is done (update {update})")


def leave(run: OpenRun, reason: int) -> int:
    """Record how this attempt ended, and print how to continue if it was stopped; return the exit code."""
    folder, lease, updates = run.folder, run.lease, run.state.progress.updates
    outcome = describe_stop(reason) if reason else "done"
    run.write_if_first(lambda: record_outcome(folder, lease.own.number, newest_update(folder.checkpoints), outcome))
    if not reason:
        return ExitCode.DONE
    # Print before any rank exits: when one exits, a scheduler may kill the others, whose exit code is then lost.
    run.write_if_first(lambda: record_stop(folder, outcome, newest_update(folder.checkpoints), lease))
    run.group.barrier()
    if run.group.is_first:
        run.console.say(
            f"stopped by {outcome} after update {updates} of {run.length.total_updates}, everything is saved; "
            f"to continue:\n  {continue_line(folder.path)}"
        )
    return ExitCode.CHECKPOINTED
