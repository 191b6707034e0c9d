"""A disk that stalls: training goes on, at most one checkpoint is on its way, and the best one stays what it says."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from noether.checkpoints import saver
from noether.checkpoints import writer as checkpoint_writer
from noether.checkpoints.format import list_checkpoints, selected_checkpoint
from noether.checkpoints.saver import Saver
from noether.checkpoints.state import Progress, TrainingState
from noether.checkpoints.writer import CheckpointWriter
from noether.core.tasks.base import Task
from noether.launch.detect.placement import Device, Endpoint, Worker
from noether.launch.process_group.group import Group
from noether.launch.processes.context import WorkerContext
from noether.runs.metrics import Metric
from tests.saved import META


class Scene:
    """A saver of one rank, and its disk: `hold` stalls it between a checkpoint's last flush and its rename."""

    def __init__(self, folder: Path) -> None:
        self.hold, self.reached, self.refuse, self.warnings = threading.Event(), threading.Event(), False, []
        self.hold.set()
        model = nn.Linear(3, 1)
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", enabled=False)
        self.state = TrainingState(model, None, optimizer, scaler, Task(), Progress())
        context = WorkerContext(Worker(0, 0, 0, Device("cpu")), 1, 1, "host", Endpoint("127.0.0.1", 0), 0, 1)
        group = Group(context, torch.device("cpu"))
        self.writer = CheckpointWriter(folder, keep=1, before_rename=self.sync)
        self.saver = Saver(group, self.writer, META, Metric("loss"), self.warnings.append)

    def sync(self) -> None:
        self.reached.set()
        assert self.hold.wait(60)
        if self.refuse:
            raise OSError(28, "No space left on device")

    def save(self, update: int, metric: float | None = None, *, leaving: bool = False) -> None:
        """What the loop does at a boundary."""
        self.state.progress.updates = update
        self.saver.save(self.state, metric, leaving=leaving)

    def settle(self) -> None:
        """Until nothing is being written: a write that is refused waits for its next try."""
        assert self.writer.wait(60)

    @property
    def kept(self) -> list[int]:
        return [checkpoint.updates for checkpoint in list_checkpoints(self.writer.folder)]


@pytest.fixture
def scene(tmp_path, monkeypatch) -> Iterator[Scene]:
    monkeypatch.setattr(saver, "LONGEST_WAIT_S", 0.5)
    monkeypatch.setattr(checkpoint_writer, "FIRST_RETRY_S", 60.0)
    made = Scene(tmp_path / "checkpoints")
    yield made
    made.hold.set()
    with made.saver:
        pass


def test_a_checkpoint_that_a_stalled_disk_has_no_room_for_is_given_up_in_words(scene) -> None:
    threads = threading.active_count()
    scene.hold.clear()
    scene.save(10)
    began = time.monotonic()
    scene.save(20)
    assert 0.4 < time.monotonic() - began < 20
    assert len(scene.warnings) == 1
    assert (
        "the checkpoint of update 20 is skipped: that of update 10 has been on its way to the disk since "
        in (scene.warnings[0])
    )
    assert threading.active_count() == threads, "one thread writes them all"
    assert scene.kept == []
    scene.hold.set()
    scene.settle()
    scene.save(30)
    scene.settle()
    scene.save(40, leaving=True)
    assert scene.kept == [40]
    assert [news.checkpoint.updates for news in scene.saver.news()] == [10, 30, 40]


def test_a_disk_that_stays_stalled_is_waited_for_once(scene) -> None:
    scene.hold.clear()
    scene.save(1)
    scene.save(2)
    began = time.monotonic()
    for update in range(3, 9):
        scene.save(update)
    assert time.monotonic() - began < 3, "six times the wait would be"
    assert len(scene.warnings) == 7
    scene.hold.set()


def progress_in(checkpoint) -> dict:
    return json.loads((checkpoint.path / "state.json").read_text())["progress"]


def test_a_best_one_that_was_given_up_is_not_the_one_to_beat(scene) -> None:
    """Else the next best, of all that are kept, would be a row in the history without weights."""
    scene.save(10, 0.9)
    scene.settle()
    scene.hold.clear()
    scene.save(15)
    scene.save(20, 0.3)
    assert scene.state.progress.best_metric == 0.9
    scene.hold.set()
    scene.settle()
    scene.save(30, 0.5)
    assert scene.state.progress.best_metric == 0.5
    scene.settle()
    scene.save(40, 0.7)
    scene.settle()
    scene.save(50, leaving=True)
    assert selected_checkpoint(scene.writer.folder, pytest.fail).updates == 30
    assert scene.kept == [30, 50]
    assert progress_in(list_checkpoints(scene.writer.folder)[-1])["best_metric"] == 0.5


def test_a_best_one_that_the_disk_refused_until_a_newer_came_is_not_the_one_to_beat(scene) -> None:
    scene.save(10, 0.9)
    scene.settle()
    scene.refuse = True
    scene.save(20, 0.3)
    assert scene.state.progress.best_metric == 0.3
    scene.settle()
    scene.refuse = False
    scene.save(30)
    assert scene.state.progress.best_metric == 0.9
    scene.settle()
    scene.save(40, leaving=True)
    assert selected_checkpoint(scene.writer.folder, pytest.fail).updates == 10
    assert progress_in(list_checkpoints(scene.writer.folder)[-1])["best_metric"] == 0.9


@pytest.mark.parametrize(("metric", "kept"), [(0.9, [10, 11]), (None, [11])], ids=["the-best", "any-other"])
def test_who_leaves_in_a_hurry_gives_up_what_has_barely_begun_but_not_the_best(
    scene, monkeypatch, metric, kept
) -> None:
    begun, go_on, parts = threading.Event(), threading.Event(), checkpoint_writer.safetensors_parts

    def slow(tensors):
        for part in parts(tensors):
            begun.set()
            assert go_on.wait(30)
            yield part

    monkeypatch.setattr(checkpoint_writer, "safetensors_parts", slow)
    scene.save(10, metric)
    assert begun.wait(30)
    threading.Timer(0.2, go_on.set).start()
    scene.save(11, leaving=True)
    assert scene.kept == kept
    assert not list(scene.writer.folder.glob(".update-*"))


def test_who_leaves_waits_for_a_stalled_disk_and_says_so(scene) -> None:
    scene.hold.clear()
    scene.save(10)
    assert scene.reached.wait(30)
    threading.Timer(2.0, scene.hold.set).start()
    scene.save(11, leaving=True)
    assert scene.kept == [11]
    assert "the last checkpoint has to wait: that of update 10 has been on its way" in scene.warnings[0]
