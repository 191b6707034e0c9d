"""What the parent process hands to its workers. No torch here."""

from dataclasses import dataclass
from pathlib import Path

from noether.checkpoints.resume import ResumeTarget
from noether.common.stamped_file import StampedFile
from noether.config.schema import RunConfig
from noether.launch.planning.plan import RunPlan
from noether.launch.process_group.deadline import Deadline


@dataclass(frozen=True)
class TrainRequest:
    """What the parent process hands to its workers.

    target: where the run starts from, as the process that answers for rank 0 decided; None in a process without
        rank 0, which receives it from there.
    data: folder of the data on this host. plan: of this host. quiet: print nothing.
    weights: what a run begins with, as that process verified it on its host.
    deadline: when the run must have left, as the process that answers for rank 0 found; None: unknown.
    """

    config: RunConfig
    target: ResumeTarget | None
    data: Path | None
    plan: RunPlan
    weights: StampedFile | None = None
    deadline: Deadline | None = None
    quiet: bool = False
