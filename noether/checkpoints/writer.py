"""Checkpoints written while training goes on, one at a time: what every rank gives, and the thread that writes."""

import errno
import json
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from noether.checkpoints.format import CheckpointFolder, newest_intact, prune_checkpoints, write_checkpoint
from noether.checkpoints.state import Progress, TrainingState, random_state, saved_tensors, saved_texts
from noether.common.atomic_write import UNFENCED, Writer
from noether.common.errors import NoetherError
from noether.common.numbers import size_text
from noether.launch.process_group.deadline import Deadline
from noether.launch.process_group.group import LONGEST_FINISH_S, Group
from noether.runs.continue_line import continue_line
from noether.runs.metrics import Metric

CHUNK_BYTES = 16 * 2**20
"""So much is hashed and written at a time."""

# https://github.com/huggingface/safetensors#format
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Snapshot:
    """All that a checkpoint holds: tensors by file and name, texts by file, and further content of meta.json."""

    updates: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    texts: Mapping[str, str]
    meta: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensors in self.tensors.values() for tensor in tensors.values())


class StagingBuffer:
    """Memory for one copy of a state, kept from one checkpoint to the next.

    Memory that is new costs more than the copy itself: the system clears every page of it first. From a GPU the
    copy goes to page-locked memory.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Tensor] = {}

    def copy(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Return copies, in CPU memory that the next call overwrites; complete on return."""
        copies: dict[str, dict[str, Tensor]] = {}
        streams = set()
        for file, named in tensors.items():
            copies[file] = {}
            for name, tensor in named.items():
                kept = self._kept.get((file, name))
                if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
                    kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                    self._kept[file, name] = kept
                copies[file][name] = kept.copy_(tensor, non_blocking=True)
                if tensor.is_cuda:
                    streams.add(torch.cuda.current_stream(tensor.device))
        for stream in streams:
            stream.synchronize()
        return copies


def safetensors_parts(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the file of contiguous tensors in CPU memory piece by piece, their own memory among them: no copies."""
    # Widest types first, so that every tensor lies at a multiple of its element's size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, position = {}, 0
    for name, tensor in ordered:
        end = position + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for _, tensor in ordered:
        content = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data) if tensor.nbytes else memoryview(b"")
        for start in range(0, len(content), CHUNK_BYTES):
            yield content[start : start + CHUNK_BYTES]


LAST_TRIES, LAST_PAUSE_S = 6, 3.0
"""How often a run that is about to leave tries to write its last checkpoint, and the seconds between two tries."""
LONGEST_CLOSE_S = 30.0
"""How long a run that fails waits for a checkpoint on its way: a disk that never answers must not keep it."""


@dataclass(frozen=True)
class Written:
    """A checkpoint with this selection metric is on the disk, so many seconds after its snapshot was taken."""

    checkpoint: CheckpointFolder
    seconds: float
    metric: float | None


class CheckpointWriter:
    """Writes snapshots in a thread of its own. Used on rank 0 alone.

    At most one snapshot is on its way, so that memory holds one copy of the state and no more. One that the disk
    refuses is told of, and training goes on: the next one that is due is the next try.
    folder: the run's checkpoints. keep: newest ones kept. by: gives them names and removes old ones, where it may.
    before_rename: called by the thread when a checkpoint is about to get its name; raises what forbids it.
    """

    refused: OSError | None = None
    """Why the disk has refused the last snapshot; None where it was written, or is on its way."""

    def __init__(
        self, folder: Path, *, keep: int, writer: Writer = UNFENCED, before_rename: Callable[[], None] = lambda: None
    ) -> None:
        """Raise NoetherError where the system has no thread to give."""
        self.folder, self.keep, self._writer, self._before_rename = folder, keep, writer, before_rename
        self._idle = threading.Event()
        self._idle.set()
        self._news: deque[Written | str] = deque()
        self._failure: BaseException | None = None
        self.updates = self._size = 0
        self._started = time.monotonic()
        self._work: SimpleQueue[tuple[Snapshot, bool] | None] = SimpleQueue()
        # Once, so that no thread is wanted in the middle of a run, and a daemon, so that a disk that never answers does
        # not keep a failed process.
        self._thread = threading.Thread(target=self._serve, name="checkpoint", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise NoetherError(
                f"there is no thread for writing checkpoints\n  seen      {error}\n"
                "  expected  one more thread for this user\n  fix       ulimit -u (or the container's --pids-limit)"
            ) from None

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait until nothing is on its way; return whether that is so within `limit_s` (None: however long)."""
        return self._idle.wait(limit_s)

    def on_its_way(self) -> str:
        """Return which update's snapshot is being written, and for how long it has been, as a phrase."""
        seconds = time.monotonic() - self._started
        return f"that of update {self.updates} has been on its way to the disk for {seconds:.0f} s"

    def start(self, snapshot: Snapshot, *, last: bool = False) -> None:
        """Write a snapshot in the background, where none is on its way; it must stay as it is until none is."""
        assert self._idle.is_set()
        self._idle.clear()
        self.refused, self.updates, self._size = None, snapshot.updates, snapshot.size
        self._started = time.monotonic()
        self._work.put((snapshot, last))

    def write_last(self, snapshot: Snapshot) -> NoetherError | None:
        """Write the snapshot after which nothing comes, and read it back; return why it cannot be, or None."""
        for number in range(LAST_TRIES):
            if number:
                time.sleep(LAST_PAUSE_S)
            self.start(snapshot, last=True)
            self.wait()
            if isinstance(self._failure, NoetherError):
                return self._failure
            if self._failure is not None:
                raise self._failure
            refused = self.refused
            if refused is None:
                break
        return None if refused is None else self._cannot_write(refused)

    def news(self) -> list[Written | str]:
        """Return what has happened since the last call; a checkpoint that the disk refused in words.

        FencedError: a later start of the run has the folder.
        """
        if self._failure is not None:
            raise self._failure
        return [self._news.popleft() for _ in range(len(self._news))]

    def close(self) -> None:
        """Wait a while for a write on its way, and end the thread."""
        idle = self.wait(LONGEST_CLOSE_S)
        self._work.put(None)
        if idle:
            # It frees the last snapshot, and torch aborts a process that ends meanwhile (pytorch issue 38228).
            self._thread.join()

    def _cannot_write(self, error: OSError) -> NoetherError:
        reached = "it continues from the last intact one"
        with suppress(OSError):
            good = newest_intact(self.folder)
            reached = f"it continues after update {good.updates}" if good else "it starts from the beginning"
        return NoetherError(
            f"the last checkpoint cannot be written to {self.folder}\n"
            f"  seen      {error.strerror or error}\n"
            f"  expected  room for {size_text(self._size)}, on a writable disk\n"
            f"  fix       make room, then {continue_line(self.folder.parent)}; {reached}"
        )

    def _serve(self) -> None:
        for snapshot, last in iter(self._work.get, None):
            try:
                checkpoint = self._write(snapshot, verify=last)
                seconds = time.monotonic() - self._started
                self._news.append(Written(checkpoint, seconds, snapshot.meta.get("metric")))
            except OSError as error:
                self.refused = error
                then = "it is tried again" if last else "training continues, and the next one that is due will be tried"
                why = error.strerror or error
                self._news.append(f"the checkpoint of update {snapshot.updates} could not be written: {why}; {then}")
            except BaseException as failure:
                self._failure = failure  # Raised where the run asks for news.
            finally:
                self._idle.set()

    def _write(self, snapshot: Snapshot, *, verify: bool) -> CheckpointFolder:
        tensors = {name: safetensors_parts(named) for name, named in snapshot.tensors.items()}
        files = {**tensors, **{name: [text.encode()] for name, text in snapshot.texts.items()}}
        meta, before = dict(snapshot.meta), self._before_rename
        checkpoint = write_checkpoint(
            self.folder, snapshot.updates, files, meta, writer=self._writer, before_rename=before
        )
        damage = checkpoint.damage() if verify else None
        if damage:
            raise OSError(errno.EIO, f"read back, {damage}")
        # Only now, so that the last good one is never the one that goes.
        with suppress(OSError):  # What cannot be removed now is removed after the next one.
            prune_checkpoints(self.folder, self.keep, self._writer)
        return checkpoint


SAID_AFTER_S = 5.0
"""After so long the run says that it stands still for a checkpoint on its way."""


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
    _staging: StagingBuffer = field(default_factory=StagingBuffer, init=False)

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *error: object) -> None:
        if self.writer is not None:
            self.writer.close()

    def save(self, state: TrainingState, metric: float | None, *, leaving: bool) -> None:
        """Copy the state as it is between two updates and has it written. Every rank calls it.

        Where the last checkpoint is still on its way, this one is skipped, with a warning; not the best one so far, nor
        the last of all, which wait for it. `best_metric` is set, on every rank, to the best of the checkpoints that are
        kept: a metric whose checkpoint the disk has refused is none, so that the next better one is selected again.
        metric: the selection metric measured at this update, if it was.
        leaving: nothing comes after it: returns, on every rank, when it is written and read back; raises NoetherError
            on every rank where it cannot be.
        """
        random_numbers = self.group.gather(random_state(self.group.device))
        failure, progress = None, state.progress
        if self.writer is not None and self._has_room(self.writer, progress, metric, leaving):
            self._best_before = progress.best_metric
            if self.selected_by.is_better(metric, progress.best_metric):
                progress.best_metric = metric
            own = {f"rank{rank}/{key}": v for rank, numbers in enumerate(random_numbers) for key, v in numbers.items()}
            tensors = self._staging.copy(saved_tensors(state) | {"random.safetensors": own})
            meta = {**self.about, "metric": metric, "better": self.selected_by.better}
            snapshot = Snapshot(progress.updates, tensors, saved_texts(state), meta)
            if leaving:
                failure = self.writer.write_last(snapshot)
            else:
                self.writer.start(snapshot)
        self.group.wait_for_first(LONGEST_FINISH_S)  # Rank 0 may have waited for the disk, for as long as that took.
        failure, progress.best_metric = self.group.from_first((failure, progress.best_metric))
        if failure is not None:
            raise failure

    def _has_room(self, writer: CheckpointWriter, progress: Progress, metric: float | None, leaving: bool) -> bool:
        """Return whether the checkpoint of this update can be taken, once that is so where it must be.

        The best one is never skipped: the state it holds does not come again, so that how fast a disk is would decide
        with which weights the run ends.
        """
        is_best = self.selected_by.is_better(metric, progress.best_metric)
        if not (leaving or is_best or writer.wait(0)):
            self.warn(
                f"the checkpoint of update {progress.updates} is skipped: {writer.on_its_way()}; "
                "training continues, and the next one that is due will be tried"
            )
            return False
        if not writer.wait(SAID_AFTER_S):
            which = "last" if leaving else "best"
            self.warn(f"the {which} checkpoint has to wait: {writer.on_its_way()}; the run goes on when it is written")
            writer.wait()
        if writer.refused is not None and progress.best_metric != self._best_before:
            self.warn(f"the best checkpoint so far (update {writer.updates}) could not be written, and is dropped")
            progress.best_metric = self._best_before
        return True

    def news(self) -> list[Written]:
        """Return the checkpoints written since the last call; warn of those that the disk refused.

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
