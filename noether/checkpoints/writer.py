"""Write checkpoints in a background thread, one at a time, from the states that all ranks contribute."""

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
"""Number of bytes that are hashed and written at a time."""

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
    """The content of a checkpoint: tensors by file and name, texts by file, and further content of meta.json."""

    updates: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    texts: Mapping[str, str]
    meta: Mapping[str, Any]

    @property
    def size(self) -> int:
        """The total size of all tensors in bytes."""
        return sum(tensor.nbytes for tensors in self.tensors.values() for tensor in tensors.values())


class StagingBuffer:
    """Memory for one copy of a state, reused from one checkpoint to the next.

    Allocating new memory would take longer than the copy itself, because the system clears every page first. Copies
    from a GPU go to page-locked memory.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Tensor] = {}

    def copy(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Copy tensors to CPU memory, and return when the copies are complete. The next call overwrites them."""
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
    """Yield the pieces of a safetensors file: a header, then views of the tensors, which are contiguous on the CPU."""
    # Sort the widest types first, so that every tensor starts at a multiple of its element size.
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
"""Number of attempts to write the last checkpoint of a run that is about to exit, and the seconds between them."""
LONGEST_CLOSE_S = 30.0
"""Longest time that an ending run waits while a checkpoint is being written: a dead disk must not block its exit."""


@dataclass(frozen=True)
class Written:
    """A checkpoint that is on disk, its selection metric, and the seconds that the write took."""

    checkpoint: CheckpointFolder
    seconds: float
    metric: float | None


class CheckpointWriter:
    """Writes snapshots in a background thread, on rank 0 only.

    Only one snapshot is written at a time, so that memory holds only one copy of the state. If the disk refuses a
    snapshot, the error is reported, and training continues; nothing is retried before the next checkpoint is due.
    folder: the run's checkpoint folder. keep: how many of the newest checkpoints to keep. writer: renames and removes
    checkpoints if it holds the lease. before_rename: called in the thread before a rename; prevents it by raising.
    """

    refused: OSError | None = None
    """The error with which the disk refused the last snapshot; None if it was written or is being written."""

    def __init__(
        self, folder: Path, *, keep: int, writer: Writer = UNFENCED, before_rename: Callable[[], None] = lambda: None
    ) -> None:
        """Start the thread. NoetherError: the system cannot start another thread."""
        self.folder, self.keep, self._writer, self._before_rename = folder, keep, writer, before_rename
        self._idle = threading.Event()
        self._idle.set()
        self._news: deque[Written | str] = deque()
        self._failure: BaseException | None = None
        self.updates = self._size = 0
        self._started = time.monotonic()
        self._work: SimpleQueue[tuple[Snapshot, bool] | None] = SimpleQueue()
        # Start the thread now, so that none has to be started in the middle of a run. It is a daemon, so that a disk
        # that never answers does not keep a failed process alive.
        self._thread = threading.Thread(target=self._serve, name="checkpoint", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise NoetherError(
                f"cannot start the thread that writes checkpoints\n  seen      {error}\n"
                "  expected  one more thread for this user\n  fix       raise ulimit -u (or a container's --pids-limit)"
            ) from None

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait until no snapshot is being written; return False if that takes over `limit_s` (None: no limit)."""
        return self._idle.wait(limit_s)

    def on_its_way(self) -> str:
        """Describe in a phrase the snapshot that is being written: its update, and for how long the write has run."""
        seconds = time.monotonic() - self._started
        return f"the write of update {self.updates} has been in progress for {seconds:.0f} s"

    def start(self, snapshot: Snapshot, *, last: bool = False) -> None:
        """Start to write a snapshot, which must not change until it is written. No other may be in progress."""
        assert self._idle.is_set()
        self._idle.clear()
        self.refused, self.updates, self._size = None, snapshot.updates, snapshot.size
        self._started = time.monotonic()
        self._work.put((snapshot, last))

    def write_last(self, snapshot: Snapshot) -> NoetherError | None:
        """Write the last snapshot, with retries, and read it back; return the error if that fails, else None."""
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
        """Return events since the last call: written checkpoints, and messages about those that the disk refused.

        FencedError: a later attempt at the run has taken the folder. Other errors of the thread are raised as well.
        """
        if self._failure is not None:
            raise self._failure
        return [self._news.popleft() for _ in range(len(self._news))]

    def close(self) -> None:
        """Wait up to `LONGEST_CLOSE_S` for a write in progress, and end the thread."""
        idle = self.wait(LONGEST_CLOSE_S)
        self._work.put(None)
        if idle:
            # Wait until the thread has freed its last snapshot, or torch may abort the process (pytorch issue 38228).
            self._thread.join()

    def _cannot_write(self, error: OSError) -> NoetherError:
        reached = "it continues from the last intact one"
        with suppress(OSError):
            good = newest_intact(self.folder)
            reached = f"it continues after update {good.updates}" if good else "it starts from the beginning"
        return NoetherError(
            f"the last checkpoint cannot be written to {self.folder}\n"
            f"  seen      {error.strerror or error}\n"
            f"  expected  {size_text(self._size)} of free space on a writable disk\n"
            f"  fix       free disk space, then {continue_line(self.folder.parent)}; {reached}"
        )

    def _serve(self) -> None:
        for snapshot, last in iter(self._work.get, None):
            try:
                checkpoint = self._write(snapshot, verify=last)
                seconds = time.monotonic() - self._started
                self._news.append(Written(checkpoint, seconds, snapshot.meta.get("metric")))
            except OSError as error:
                self.refused = error
                then = "retrying" if last else "training continues, and tries again at the next checkpoint"
                why = error.strerror or error
                self._news.append(f"the checkpoint of update {snapshot.updates} could not be written: {why}; {then}")
            except BaseException as failure:
                self._failure = failure  # `news` and `write_last` raise or return it.
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
        # Prune only now, so that the last good checkpoint is never removed.
        with suppress(OSError):  # A failed removal is repeated after the next checkpoint.
            prune_checkpoints(self.folder, self.keep, self._writer)
        return checkpoint


SAID_AFTER_S = 5.0
"""Seconds after which the run reports that it is waiting for a checkpoint being written."""


@dataclass
class Saver:
    """Saves checkpoints: every rank contributes its random states; rank 0 adds the other state and writes the files.

    group: the ranks. writer: the writer on rank 0; None on other ranks.
    about: further content of meta.json. selected_by: the selection metric.
    warn: receives warnings about the disk. deadline: receives the longest time that writing a checkpoint has taken.
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
        """Copy the state and start to write it as a checkpoint. Every rank calls this between two updates.

        If the previous checkpoint is still being written, skip this one with a warning; but wait if this one is the
        best so far or the run's last. Set `progress.best_metric` on every rank to the best metric so far. Ignore the
        metric of a checkpoint that the disk refused, so that a later checkpoint can become the best.
        metric: the selection metric measured at this update, or None.
        leaving: whether this is the run's last checkpoint. If so, every rank waits until it is written and read back,
            and raises NoetherError if that fails.
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
        self.group.wait_for_first(LONGEST_FINISH_S)  # Rank 0 may wait for the disk for a long time.
        failure, progress.best_metric = self.group.from_first((failure, progress.best_metric))
        if failure is not None:
            raise failure

    def _has_room(self, writer: CheckpointWriter, progress: Progress, metric: float | None, leaving: bool) -> bool:
        """Return whether a snapshot may be taken now. For the last or the best checkpoint, wait, then return True.

        If the best checkpoint could be skipped, its weights would be lost for good, and the speed of the disk would
        decide with which weights the run ends.
        """
        is_best = self.selected_by.is_better(metric, progress.best_metric)
        if not (leaving or is_best or writer.wait(0)):
            self.warn(
                f"the checkpoint of update {progress.updates} is skipped: {writer.on_its_way()}; "
                "training continues, and tries again at the next checkpoint"
            )
            return False
        if not writer.wait(SAID_AFTER_S):
            which = "last" if leaving else "best"
            self.warn(f"the {which} checkpoint has to wait: {writer.on_its_way()}; then the run continues")
            writer.wait()
        if writer.refused is not None and progress.best_metric != self._best_before:
            self.warn(f"the best checkpoint so far (update {writer.updates}) could not be written, and is dropped")
            progress.best_metric = self._best_before
        return True

    def news(self) -> list[Written]:
        """Return the checkpoints written since the last call; warn of those that the disk refused.

        FencedError: on rank 0, if a later attempt has taken over the run.
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
