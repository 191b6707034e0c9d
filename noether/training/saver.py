"""What every rank does for a checkpoint, and who may write to the run folder."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noether.distributed.deadline import Deadline
from noether.distributed.group import Group
from noether.training.checkpoint_writer import CheckpointWriter, Written, describe_refusal
from noether.training.fence import Fence
from noether.training.snapshot import Shadow, Snapshot
from noether.training.state import TrainingState, random_state, saved_tensors, saved_texts


@dataclass
class Saver:
    """Turns states into checkpoints: every rank gives its random numbers, rank 0 copies the rest aside and writes.

    group: the ranks.
    folder: the run's checkpoints folder. keep: newest checkpoints kept.
    about: further content of meta.json.
    sync: brings the history onto the disk; a checkpoint gets its name after the rows that led to it.
    warn: told where the disk refuses.
    fence: rank 0's right to write. deadline: learns how long a checkpoint takes.
    """

    group: Group
    folder: Path
    keep: int
    about: dict[str, Any]
    sync: Callable[[], None]
    warn: Callable[[str], None]
    fence: Fence | None
    deadline: Deadline | None = None
    _shadow: Shadow = field(default_factory=Shadow, init=False)
    _writer: CheckpointWriter | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.group.is_first:
            self._writer = CheckpointWriter(self.folder, keep=self.keep, before_rename=self._before_rename)

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def save(self, state: TrainingState, metric: float | None, *, leaving: bool) -> None:
        """Copies the state as it is between two updates and has it written. Every rank calls it.

        Args:
            state: what is saved.
            metric: the selection metric measured at this update, if it was.
            leaving: nothing comes after it: returns, on every rank, when it is written and read back.

        Raises:
            NoetherError: on every rank where `leaving` and it cannot be written; else on rank 0 where a later start
                has taken the run over.
        """
        random_numbers = self.group.gather(random_state(self.group.device))
        failure = None
        if self._writer is not None:
            self._writer.make_room(hurry=leaving)
            own = {f"rank{rank}/{key}": v for rank, numbers in enumerate(random_numbers) for key, v in numbers.items()}
            tensors = self._shadow.copy(saved_tensors(state) | {"random.safetensors": own})
            meta = {**self.about, "metric": metric, "world_size": self.group.world_size}
            self._writer.start(Snapshot(state.progress.updates, tensors, saved_texts(state), meta), verify=leaving)
            failure = self._writer.finish() if leaving else None
        self.group.wait_for_first()  # It may have waited for the disk.
        if leaving:
            failure = self.group.from_first(failure)
            if failure is not None:
                raise failure

    def news(self) -> list[Written]:
        """Returns the checkpoints written since the last call; warns of those that the disk refused.

        Raises:
            FencedError: on rank 0, where a later start has taken the run over.
        """
        written = []
        for news in self._writer.news() if self._writer is not None else ():
            if isinstance(news, Written):
                written.append(news)
                if self.deadline is not None:
                    self.deadline.save_s = max(self.deadline.save_s, news.seconds)
            else:
                self.warn(describe_refusal(news))
        return written

    def _before_rename(self) -> None:
        self.sync()
        if self.fence is not None:
            self.fence.check()
