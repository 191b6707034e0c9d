"""What every rank does for a checkpoint, and who may write to the run folder."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from noether.checkpoints.snapshot import Snapshot, StagingBuffer
from noether.checkpoints.state import Progress, TrainingState, random_state, saved_tensors, saved_texts
from noether.checkpoints.writer import LONGEST_WAIT_S, CheckpointWriter, Written
from noether.common.errors import NoetherError
from noether.launch.process_group.deadline import Deadline
from noether.launch.process_group.group import LONGEST_FINISH_S, Group
from noether.runs.metrics import Metric


@dataclass
class Saver:
    """Turns states into checkpoints: every rank gives its random numbers, rank 0 copies the rest aside and writes.

    group: the ranks. writer: rank 0's; None on the others.
    about: further content of meta.json. selected_by: the selection metric.
    warn: told where the disk refuses. deadline: learns how long a checkpoint takes.
    """

    group: Group
    writer: CheckpointWriter | None
    about: dict[str, Any]
    selected_by: Metric
    warn: Callable[[str], None]
    deadline: Deadline | None = None
    _best_before: float | None = field(default=None, init=False)
    _patience_s: float = field(default=0.0, init=False)
    _shadow: StagingBuffer = field(default_factory=StagingBuffer, init=False)

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *error: object) -> None:
        if self.writer is not None:
            self.writer.close()

    def save(self, state: TrainingState, metric: float | None, *, leaving: bool) -> None:
        """Copies the state as it is between two updates and has it written. Every rank calls it.

        Where the disk still has the last checkpoint after `LONGEST_WAIT_S`, this one is given up, with a warning.
        `best_metric` is set, on every rank, to the best of the checkpoints that are kept: a metric whose checkpoint was
        given up is none, so that the next one that is better is selected again.

        Args:
            state: what is saved.
            metric: the selection metric measured at this update, if it was.
            leaving: nothing comes after it: returns, on every rank, when it is written and read back.

        Raises:
            NoetherError: on every rank where `leaving` and it cannot be written; else on rank 0 where a later start
                has taken the run over.
        """
        random_numbers = self.group.gather(random_state(self.group.device))
        failure, progress = None, state.progress
        if self.writer is not None and self._make_room(self.writer, progress, leaving=leaving):
            self._best_before = progress.best_metric
            if self.selected_by.is_better(metric, progress.best_metric):
                progress.best_metric = metric
            own = {f"rank{rank}/{key}": v for rank, numbers in enumerate(random_numbers) for key, v in numbers.items()}
            tensors = self._shadow.copy(saved_tensors(state) | {"random.safetensors": own})
            meta = {**self.about, "metric": metric, "better": self.selected_by.better}
            self.writer.start(Snapshot(progress.updates, tensors, saved_texts(state), meta), verify=leaving)
            self._patience_s = LONGEST_WAIT_S
            if leaving:
                failure = self._finish(self.writer)
        # Rank 0 may have waited for the disk: as long as it takes where it leaves.
        self.group.wait_for_first(LONGEST_FINISH_S if leaving else 2 * LONGEST_WAIT_S)
        failure, progress.best_metric = self.group.from_first((failure, progress.best_metric))
        if failure is not None:
            raise failure

    def _make_room(self, writer: CheckpointWriter, progress: Progress, *, leaving: bool) -> bool:
        """Returns whether the checkpoint of this update can be taken; where nothing comes after it, once it can."""
        # The best one is worth the wait even in a hurry: nothing that comes after it would be selected in its place.
        hurry = leaving and progress.best_metric == self._best_before
        began = time.monotonic()
        room = writer.make_room(hurry=hurry, limit_s=self._patience_s)
        self._patience_s = max(0.0, self._patience_s - (time.monotonic() - began))
        if not room and leaving:
            self.warn(f"the last checkpoint has to wait: {writer.on_its_way()}; the run ends when both are written")
            room = writer.make_room(hurry=hurry)
        elif not room:
            self.warn(
                f"the checkpoint of update {progress.updates} is skipped: {writer.on_its_way()}; "
                "training continues, and the next one that is due will be tried"
            )
        if room and writer.given_up:
            if progress.best_metric != self._best_before:
                self.warn(
                    f"the best checkpoint so far (update {writer.updates}) could not be written before the one of "
                    f"update {progress.updates} was due, and is dropped"
                )
            progress.best_metric = self._best_before
        return room

    def _finish(self, writer: CheckpointWriter) -> NoetherError | None:
        if not writer.wait(LONGEST_WAIT_S):
            self.warn(f"waiting for the last checkpoint: {writer.on_its_way()}; the run ends when it is written")
        return writer.finish()

    def news(self) -> list[Written]:
        """Returns the checkpoints written since the last call; warns of those that the disk refused.

        Raises:
            FencedError: on rank 0, where a later start has taken the run over.
        """
        written = []
        for news in self.writer.news() if self.writer is not None else ():
            if isinstance(news, Written):
                written.append(news)
                if self.deadline is not None:
                    self.deadline.save_s = max(self.deadline.save_s, news.seconds)
            else:
                self.warn(news)
        return written
