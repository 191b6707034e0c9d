"""On a stalled disk, training continues, at most one checkpoint is in flight, and the best one is never skipped."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from learned import one_rank
from torch import nn

from noether.checkpoints import writer as saver
from noether.checkpoints.format import list_checkpoints, selected_checkpoint
from noether.checkpoints.state import Progress, TrainingState
from noether.checkpoints.writer import CheckpointWriter, Saver
from noether.core.tasks.base import Task
from noether.runs.metrics import Metric
from tests.saved import META


class Scene:
    """A saver of one rank and its disk; while `hold` is cleared, the disk stalls before it renames a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.hold, self.refuse, self.warnings = threading.Event(), False, []
        self.hold.set()
        model = nn.Linear(3, 1)
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", enabled=False)
        self.state = TrainingState(model, None, optimizer, scaler, Task(), Progress())
        self.writer = CheckpointWriter(folder, keep=1, before_rename=self.sync)
        self.saver = Saver(one_rank(), self.writer, META, Metric("loss"), self.warnings.append)

    def sync(self) -> None:
        assert self.hold.wait(60)
        if self.refuse:
            raise OSError(28, "No space left on device")

    def save(self, update: int, metric: float | None = None, *, leaving: bool = False) -> None:
        self.state.progress.updates = update
        self.saver.save(self.state, metric, leaving=leaving)

    def settle(self) -> None:
        assert self.writer.wait(60)

    @property
    def kept(self) -> list[int]:
        return [checkpoint.updates for checkpoint in list_checkpoints(self.writer.folder)]


@pytest.fixture
def scene(tmp_path, monkeypatch) -> Iterator[Scene]:
    monkeypatch.setattr(saver, "SAID_AFTER_S", 0.2)
    made = Scene(tmp_path / "checkpoints")
    yield made
    made.hold.set()
    with made.saver:
        pass


def test_what_is_due_while_a_stalled_disk_has_another_is_skipped_in_words(scene) -> None:
    threads = threading.active_count()
    scene.hold.clear()
    scene.save(10)
    for update in (20, 21):
        scene.save(update)
    since = "is skipped: the write of update 10 has been in progress for "
    assert [said.partition(since)[0] for said in scene.warnings] == [f"the checkpoint of update {n} " for n in (20, 21)]
    assert threading.active_count() == threads, "one thread must write all checkpoints"
    assert scene.kept == []
    scene.hold.set()
    scene.settle()
    scene.save(30)
    scene.settle()
    scene.save(40, leaving=True)
    assert scene.kept == [40]
    assert [news.checkpoint.updates for news in scene.saver.news()] == [10, 30, 40]


def progress_in(checkpoint) -> dict:
    return json.loads((checkpoint.path / "state.json").read_text())["progress"]


@pytest.mark.parametrize(("metric", "leaving"), [(0.3, False), (None, True)], ids=["best", "last"])
def test_the_best_and_the_last_wait_for_a_stalled_disk_and_say_so(scene, metric, leaving) -> None:
    """If the saver skipped the best checkpoint, the disk's speed would decide which weights are selected."""
    scene.save(10, 0.9)
    scene.settle()
    scene.hold.clear()
    scene.save(15)
    threading.Timer(1.0, scene.hold.set).start()
    scene.save(20, metric, leaving=leaving)
    scene.settle()
    assert len(scene.warnings) == 1
    which = "last" if leaving else "best"
    assert f"the {which} checkpoint has to wait: the write of update 15 has been in progress" in scene.warnings[0]
    assert scene.kept == ([10, 20] if leaving else [20])
    assert scene.state.progress.best_metric == (metric or 0.9)
    assert progress_in(list_checkpoints(scene.writer.folder)[-1])["best_metric"] == (metric or 0.9)


def test_a_best_one_that_the_disk_refused_is_not_the_one_to_beat(scene) -> None:
    """Otherwise the weights of update 30, the best that can still be saved, would not be kept."""
    scene.save(10, 0.9)
    scene.settle()
    scene.refuse = True
    scene.save(20, 0.3)
    assert scene.state.progress.best_metric == 0.3
    scene.settle()
    scene.refuse = False
    scene.save(30, 0.5)
    assert scene.state.progress.best_metric == 0.5
    scene.settle()
    scene.save(50, leaving=True)
    assert selected_checkpoint(scene.writer.folder, pytest.fail).updates == 30
    assert scene.kept == [30, 50]
    assert progress_in(list_checkpoints(scene.writer.folder)[-1])["best_metric"] == 0.5
    assert scene.warnings == ["the best checkpoint so far (update 20) could not be written, and is dropped"]
