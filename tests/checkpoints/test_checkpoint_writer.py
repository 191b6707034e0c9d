"""Checkpoints are written in the background from a copy of the state, and a failing disk is reported."""

import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from noether.checkpoints import writer as checkpoint_writer
from noether.checkpoints.format import list_checkpoints, newest_intact
from noether.checkpoints.writer import DTYPES, CheckpointWriter, Snapshot, StagingBuffer, Written, safetensors_parts
from noether.common.errors import NoetherError
from noether.runs.lease import FencedError
from tests.saved import META

TENSORS = {
    **{str(dtype): torch.tensor([[0, 1], [1, 1], [0, 0]]).to(dtype) for dtype in DTYPES},
    "step": torch.tensor(7.0),
    "none": torch.empty(0, 4),
    "random": torch.randn(3, dtype=torch.float64),
    "turned": torch.arange(12.0).reshape(3, 4).t(),
}


def test_safetensors_reads_every_type_as_if_it_had_written_the_file(tmp_path) -> None:
    tensors = StagingBuffer().copy({"f": TENSORS})["f"]
    (tmp_path / "own").write_bytes(b"".join(bytes(part) for part in safetensors_parts(tensors)))
    save_file({name: value.contiguous() for name, value in TENSORS.items()}, tmp_path / "theirs")
    own, theirs = load_file(tmp_path / "own"), load_file(tmp_path / "theirs")
    assert own.keys() == theirs.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert torch.equal(own[name], value), name
        assert own[name].dtype == theirs[name].dtype == value.dtype


def test_a_shadow_is_a_copy_in_memory_that_is_kept() -> None:
    shadow, weight = StagingBuffer(), torch.zeros(1000)
    first = shadow.copy({"f": {"w": weight}})["f"]["w"]
    weight += 1
    assert float(first.sum()) == 0, "training must not change the copy that is written"
    second = shadow.copy({"f": {"w": weight}})["f"]["w"]
    assert second.data_ptr() == first.data_ptr()
    assert torch.equal(second, weight)


def snapshot(updates: int, size: int = 1000) -> Snapshot:
    return Snapshot(updates, {"w.safetensors": {"w": torch.full((size,), float(updates))}}, {"s.json": "{}"}, META)


class Disk:
    """A fake disk: before each rename it raises the next queued error, as a failing disk or a lost lease would."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []

    def __call__(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture
def disk(monkeypatch) -> Disk:
    monkeypatch.setattr(checkpoint_writer, "LAST_PAUSE_S", 0.05)
    return Disk()


@pytest.fixture
def writer(disk, tmp_path: Path) -> CheckpointWriter:
    return CheckpointWriter(tmp_path / "checkpoints", keep=2, before_rename=disk)


def write(writer: CheckpointWriter, updates: int) -> None:
    writer.start(snapshot(updates))
    assert writer.wait(60)


def kept(writer: CheckpointWriter) -> list[int]:
    return [checkpoint.updates for checkpoint in list_checkpoints(writer.folder)]


def test_snapshots_are_written_one_after_the_other(writer) -> None:
    for updates in (1, 2):
        write(writer, updates)
    assert writer.write_last(snapshot(3)) is None
    assert kept(writer) == [2, 3]
    assert [news.checkpoint.updates for news in writer.news()] == [1, 2, 3]
    assert newest_intact(writer.folder, pytest.fail).updates == 3


def test_a_refused_checkpoint_is_told_of_and_the_next_one_is_written(writer, disk) -> None:
    disk.failures = [OSError(28, "No space left on device")]
    write(writer, 1)
    assert writer.refused is not None
    write(writer, 2)
    news = writer.news()
    assert [type(item) for item in news] == [str, Written]
    assert "update 1 could not be written: No space left on device; training continues, and tries again" in news[0]
    assert kept(writer) == [2]


@pytest.mark.parametrize("refusals", [2, 100], ids=["for-a-while", "to-the-end"])
def test_the_last_one_is_tried_again_and_an_error_says_from_where_it_goes_on(refusals, writer, disk) -> None:
    write(writer, 1)
    disk.failures = [OSError(28, "No space left on device")] * refusals
    error = writer.write_last(snapshot(2))
    if refusals == 2:
        assert error is None
        assert kept(writer) == [1, 2]
        return
    assert isinstance(error, NoetherError)
    assert "No space left on device" in str(error)
    assert "continues after update 1" in str(error)
    assert kept(writer) == [1]


def test_a_writer_that_was_shut_out_says_so_and_writes_nothing(writer, disk) -> None:
    disk.failures = [FencedError("another start")]
    assert isinstance(writer.write_last(snapshot(1)), FencedError)
    with pytest.raises(FencedError):
        writer.news()
    assert kept(writer) == []


def test_a_closed_writer_holds_no_tensors_that_its_thread_would_free_at_the_end_of_the_process(writer) -> None:
    freed = threading.Event()
    last = snapshot(1)
    # Freeing the tensor takes 0.3 s: if `close` did not wait for the thread, `freed` would not be set yet.
    weakref.finalize(last.tensors["w.safetensors"]["w"], lambda: (time.sleep(0.3), freed.set()))
    writer.start(last)
    del last
    writer.close()
    assert freed.is_set()
