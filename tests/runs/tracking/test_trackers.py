"""The history of a run has whole lines, has no duplicates after a resume, and is readable by TensorBoard itself."""

import io
import os
import re

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from noether.common.console import Console
from noether.common.errors import NoetherError
from noether.runs.metrics import OF_THE_LOOP, Metric, Metrics
from noether.runs.records import read_metrics
from noether.runs.tracking.console import ConsoleTracker
from noether.runs.tracking.tensorboard import TensorBoardFile
from noether.runs.tracking.tracker import MetricsFile, Trackers


def training(update: int, loss: float = 1.0) -> dict:
    measured = {"gradient_norm": 0.5, "samples_per_second": 80.0, "memory_mib": 500.0, "device_use": 0.9}
    place = {"kind": "training", "update": update, "epoch": update / 10, "samples": update * 8}
    return {**place, "loss": loss, "learning_rate": 1e-3, **measured}


ERROR = Metric("surface_pressure/relative_l2", "%", "lower", "relative L2", of="surface_pressure", headline=True)
METRICS = Metrics.of(*OF_THE_LOOP, ERROR)
EVALUATION = {
    **{"kind": "evaluation", "split": "validation", "weights": "ema", "update": 4, "epoch": 0.4, "samples": 32},
    "metrics": {"loss": 0.5, "surface_pressure/relative_l2": 0.051, "surface_pressure/mse": 3.0},
}


def test_a_checkpoint_that_is_written_again_is_told_of_once(tmp_path) -> None:
    """An attempt that is stopped in an evaluation saves the same update again, and so does the next attempt."""
    path, row = tmp_path / "metrics.jsonl", {"kind": "checkpoint", "update": 4, "seconds": 0.1}
    for _ in range(2):
        file = MetricsFile(path, start_update=4)
        file.log(row)
        file.log({**row, "seconds": 0.2})
        file.close()
    assert [row["update"] for row in read_metrics(path)] == [4]


def test_rows_that_are_missing_are_told_of(tmp_path) -> None:
    path, said = tmp_path / "metrics.jsonl", []
    first = MetricsFile(path, 0)
    for update in (1, 2, 3):
        first.log(training(update))
    first.close()
    MetricsFile(path, 3, warn=said.append, rows=3).close()
    assert said == []
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
    MetricsFile(path, 3, warn=said.append, rows=3).close()
    assert ["lost 2 of its 3 rows up to update 3" in text for text in said] == [True]


def test_a_resumed_run_writes_no_row_twice(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, start_update=0)
    for update in (2, 4, 6):
        first.log(training(update))
    first.close()
    with path.open("a") as file:
        file.write('{"kind": "training", "upd')  # A kill cut this row off.
    second = MetricsFile(path, start_update=4)
    for update in (6, 8):
        second.log(training(update, loss=2.0))
    second.close()
    assert list(tmp_path.iterdir()) == [path]
    assert [(row["update"], row["loss"]) for row in read_metrics(path)] == [(2, 1.0), (4, 1.0), (6, 2.0), (8, 2.0)]


def test_tensorboard_reads_the_event_files_and_a_resume_replaces_what_is_redone(tmp_path) -> None:
    first = TensorBoardFile(tmp_path, start_update=0, described=METRICS)
    for update in (2, 4, 6):
        first.log(training(update))
    first.log(EVALUATION)
    first.close()
    second = TensorBoardFile(tmp_path, start_update=4, described=METRICS)
    second.log(training(6, loss=2.0))
    second.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    scalars = [(event.step, event.value) for event in events.Scalars("training/loss")]
    assert scalars == [(2, 1.0), (4, 1.0), (6, 2.0)]
    assert events.Scalars("validation (ema)/surface_pressure/relative_l2")[0].value == pytest.approx(0.051)


def test_tensorboard_forgets_a_start_that_was_killed_before_anything_was_saved(tmp_path) -> None:
    for loss in (1.0, 2.0):  # The second attempt repeats every update of the first.
        file = TensorBoardFile(tmp_path, start_update=0, described=METRICS)
        for update in (2, 4) if loss == 1.0 else (2, 4, 6):
            file.log(training(update, loss))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("training/loss")] == [(2, 2.0), (4, 2.0), (6, 2.0)]


@pytest.fixture
def full(monkeypatch) -> list[bool]:
    """Return a one-item list: whether the disk is full. A disk that is not full accepts only part of each write."""
    is_full, write = [False], os.write

    def refusing(descriptor: int, content: bytes) -> int:
        if is_full[0]:
            raise OSError(28, "No space left on device")
        return write(descriptor, content[:10])

    monkeypatch.setattr(os, "write", refusing)
    return is_full


def test_rows_that_the_disk_refuses_are_held_back_told_of_once_and_written_later(tmp_path, full) -> None:
    file, warnings = MetricsFile(tmp_path / "metrics.jsonl", start_update=0), []
    full[0] = True
    trackers = Trackers([file], warnings.append)
    for update in (2, 4):
        trackers.log(training(update))
    with pytest.raises(OSError, match="No space left"):
        trackers.sync()
    full[0] = False
    trackers.log(training(6))
    trackers.sync()
    assert [row["update"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [2, 4, 6]
    assert warnings == ["rows are held back, because MetricsFile cannot write: No space left on device"]


@pytest.mark.parametrize("ends_by", [None, OSError(5, "a rank is gone")], ids=["by-itself", "with-another-failure"])
def test_rows_held_back_are_dropped_where_a_later_start_has_the_run(ends_by, tmp_path, full) -> None:
    metrics, events, lost = tmp_path / "metrics.jsonl", tmp_path / "events", [False]

    def check() -> None:
        if lost[0]:
            raise NoetherError("another start has the run")

    def train() -> None:
        with Trackers([MetricsFile(metrics, 0), TensorBoardFile(events, 0, METRICS)], check=check) as trackers:
            trackers.log(training(2))
            before.extend(path.read_bytes() for path in (metrics, *events.iterdir()))
            full[0] = True
            trackers.log(training(4))
            full[0], lost[0] = False, True
            with pytest.raises(NoetherError, match="another start"):
                trackers.sync()
            if ends_by:
                raise ends_by

    before: list[bytes] = []
    with pytest.raises(type(ends_by or NoetherError("")), match="a rank is gone" if ends_by else "another start"):
        train()
    assert [path.read_bytes() for path in (metrics, *events.iterdir())] == before


def test_without_a_terminal_there_is_a_line_per_interval(tmp_path) -> None:
    stream = io.StringIO()
    console = Console(tmp_path / "rank-0.log", speaks=True, stream=stream)
    score = Metric("drag/r2", "", "higher", "R²", "drag", headline=True, score=True)
    known = Metrics.of(*METRICS.values(), score)
    tracker = ConsoleTracker(console, described=known, start_update=0, total_updates=10, total_epochs=1.0)
    for update in range(1, 5):
        tracker.advance(update)
    tracker.log(training(4))
    tracker.log(EVALUATION)
    tracker.log({**EVALUATION, "metrics": {"loss": 0.5, "drag/r2": 0.99996}})
    tracker.log({"kind": "checkpoint", "update": 4, "path": "runs/x/checkpoints/update-000000004"})
    tracker.close()
    lines = stream.getvalue().splitlines()
    assert lines == [
        "update       4/10  epoch   0.40  loss 1.000  lr 0.001000  80.00 samples/s  500.0 MiB",
        "update       4  validation (EMA weights)  loss 0.5000  surface_pressure 5.10%",
        "update       4  validation (EMA weights)  loss 0.5000  drag R² 0.999960",
    ]
    assert "update-000000004" in (tmp_path / "rank-0.log").read_text()


@pytest.mark.parametrize("width", [160, 80, 40])
def test_the_display_of_a_terminal_is_never_cut_off(width: int, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    length = {"start_update": 0, "total_updates": 2412, "total_epochs": 36.0}
    tracker = ConsoleTracker(Console(None, speaks=True, stream=stream), described=METRICS, **length)
    tracker.log(training(1500))
    tracker.close()
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()).strip()
    assert "…" not in last
    for words in ("/2412", "loss 1", "lr 0.001000", "80.00 samples/s", "500.0 MiB", " left"):
        assert words in last
