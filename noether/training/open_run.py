"""A run that is built and open on one rank, and what is opened for it: trackers, the saver, a profile."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from noether.checkpoints.writer import CheckpointWriter, Saver
from noether.common.atomic_write import refusals_told
from noether.common.console import Console
from noether.launch.process_group.deadline import Deadline
from noether.runs.folder import RunFolder
from noether.runs.lease import Lease
from noether.runs.provenance import provenance, source_digests
from noether.runs.tracking.console import ConsoleTracker
from noether.runs.tracking.services import RunFacts, Services, open_services
from noether.runs.tracking.tracker import MetricsFile, Tracker, Trackers
from noether.training.build import Run, conditions_of
from noether.training.time_use import UpdateProfile


@dataclass(frozen=True)
class OpenRun(Run):
    """A run that is built, its folder, and the right to write there (`lease`), which rank 0 alone uses."""

    folder: RunFolder
    lease: Lease
    console: Console

    @cached_property
    def about(self) -> dict[str, Any]:
        """What each checkpoint of this start says of the run."""
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
        """Writes, on rank 0, a record that the run can do without: where the disk refuses, a warning says so."""
        try:
            if self.group.is_first:
                write()
        except OSError as error:
            self.console.warn(f"{error.filename or 'a record of the run'} cannot be written: {error.strerror}")


def open_run_services(run: OpenRun) -> Services:
    """Returns, on rank 0, what passes the rows to the services that the settings name."""
    names = run.config.tracker.services if run.group.is_first else ()
    weights = tuple(run.state.evaluation_models())
    facts = RunFacts(run.folder.run_id, run.folder.path, run.about["config"], run.described, weights)
    return open_services(names, facts, run.console.warn, run.lease)


def open_trackers(run: OpenRun, services: Services) -> Trackers:
    """Returns what shows the rows and, on rank 0, keeps them: those of a run that goes on after its state's update."""
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
    """Returns what writes the run's checkpoints."""
    writer = None
    if run.group.is_first:
        keep = run.config.trainer.keep_checkpoints
        # A checkpoint gets its name after the rows that led to it are on the disk.
        writer = CheckpointWriter(run.folder.checkpoints, keep=keep, writer=run.lease, before_rename=trackers.sync)
    return Saver(run.group, writer, run.about, run.selected_by, run.console.warn, deadline)


def open_profile(run: OpenRun) -> UpdateProfile | None:
    """Returns what records a profile of some updates, where the settings ask for one."""
    if run.config.trainer.profile is None:
        return None
    updates = run.length.count_updates(run.config.trainer.profile)
    return UpdateProfile(run.folder.path / "profile", updates, run.group.rank, run.group.device, run.console.warn)
