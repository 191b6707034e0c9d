"""Checkpoints written while training goes on: one at a time, and again where the disk refused."""

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

from noether.checkpoints.format import CheckpointFolder, newest_intact, write_checkpoint
from noether.checkpoints.pruning import prune_checkpoints
from noether.checkpoints.snapshot import Snapshot, safetensors_parts
from noether.common.errors import NoetherError
from noether.common.numbers import size_text
from noether.common.whole_file import UNFENCED, Publisher
from noether.runs.resuming import continue_line

FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 60.0

LAST_RETRIES_S = 15.0
"""How long a run that is about to leave tries to write its last checkpoint."""


LONGEST_WAIT_S = 30.0
"""How long training stands still for a checkpoint on its way when the next one is due.

A write that is merely slower than usual comes through in it, a disk that stalls costs no more than this, and the ranks
that wait for rank 0, twice as long or distributed.init_timeout_s (600 s), are far from taking it for lost.
"""


@dataclass(frozen=True)
class Written:
    """A checkpoint with this selection metric is on the disk, so many seconds after its snapshot was taken."""

    checkpoint: CheckpointFolder
    seconds: float
    metric: float | None


class _Abandoned(Exception):
    """A newer checkpoint is wanted."""


class CheckpointWriter:
    """Writes snapshots in a thread of its own. Used on rank 0 alone.

    At most one snapshot is on its way, so that memory holds one copy of the state and no more. One that the disk
    refuses is tried again until it is written or a newer one takes its place; meanwhile training goes on.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        by: Publisher = UNFENCED,
        before_rename: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes the run's checkpoints folder.

        Args:
            folder: where the checkpoints lie.
            keep: newest checkpoints kept.
            by: gives checkpoints their names and removes old ones, where it may.
            before_rename: called by the thread when a checkpoint is about to get its name; raises what forbids it.

        Raises:
            NoetherError: where the system has no thread to give.
        """
        self.folder, self.keep, self._by, self._before_rename = folder, keep, by, before_rename
        self._state: Literal["idle", "writing", "waiting to retry"] = "idle"
        self._abandon = False
        self._written_bytes = self._total_bytes = 0
        self._changed = threading.Condition()
        self._news: deque[Written | str] = deque()
        self._failure: BaseException | None = None
        self._refused: OSError | None = None
        self.updates = 0
        self._started = time.monotonic()
        self.given_up = False
        """Whether the last snapshot was given up for a newer one before it was written."""
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

    def make_room(self, *, hurry: bool = False, limit_s: float | None = None) -> bool:
        """Waits until the next snapshot may be taken.

        A write on its way is waited for, unless there is a hurry and it has not come half the way: what comes next
        is newer. One that the disk has refused so far is given up.

        Args:
            hurry: nothing comes after the next snapshot.
            limit_s: how long to wait; None: as long as it takes.

        Returns:
            Whether there is room; not where the disk still has the last one after so long.
        """
        with self._changed:
            self._abandon = hurry and self._written_bytes * 2 < self._total_bytes
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._state != "writing", limit_s):
                return False
            self._abandon = True
            self._changed.notify_all()
            self._abandon = self._changed.wait_for(lambda: self._state == "idle", limit_s)
            return self._abandon

    def on_its_way(self) -> str:
        """Returns which update's snapshot is being written, and since when, as a phrase."""
        seconds = time.monotonic() - self._started
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
        return f"that of update {self.updates} has been on its way to the disk since {since}, for {seconds:.0f} s"

    def start(self, snapshot: Snapshot, *, verify: bool = False) -> None:
        """Writes a snapshot in the background; `make_room` must have been called.

        Args:
            snapshot: must stay as it is until `make_room` returns.
            verify: read it back when it is written.
        """
        with self._changed:
            assert self._state == "idle"
            self._state, self._abandon, self._refused = "writing", False, None
            self._written_bytes, self._total_bytes = 0, snapshot.size
            self.updates, self._started, self.given_up = snapshot.updates, time.monotonic(), False
            self._work.put((snapshot, verify))

    def wait(self, limit_s: float) -> bool:
        """Waits for a write on its way; returns whether the disk has taken or refused it within `limit_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state != "writing", limit_s)

    def news(self) -> list[Written | str]:
        """Returns what has happened since the last call; where the disk has refused a checkpoint, in words.

        Raises:
            FencedError: where a later start of the run has the folder.
        """
        if self._failure is not None:
            raise self._failure
        return [self._news.popleft() for _ in range(len(self._news))]

    def finish(self, limit_s: float = LAST_RETRIES_S) -> NoetherError | None:
        """Waits for the snapshot on its way; returns why it could not be written, or None.

        Args:
            limit_s: how long a disk that refuses is asked again.
        """
        deadline = time.monotonic() + limit_s
        with self._changed:
            while self._state != "idle":
                left = deadline - time.monotonic()
                if self._state == "waiting to retry" and left <= 0:
                    self._abandon = True
                    self._changed.notify_all()
                self._changed.wait(max(left, 0.05) if self._state == "waiting to retry" else None)
        if self._failure is not None:
            if isinstance(self._failure, NoetherError):
                return self._failure
            raise self._failure
        return None if self._refused is None else self._cannot_write(self._refused)

    def close(self) -> None:
        """Waits a while for a write on its way, and gives up one that the disk has refused so far."""
        idle = self.make_room(limit_s=LONGEST_WAIT_S)
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
            f"  expected  room for {size_text(self._total_bytes)}, on a writable disk\n"
            f"  fix       make room, then {continue_line(self.folder.parent)}; {reached}"
        )

    def _serve(self) -> None:
        for snapshot, verify in iter(self._work.get, None):
            try:
                self._write_until_done(snapshot, verify)
            except _Abandoned:
                self.given_up = True
            except BaseException as failure:
                self._failure = failure  # Raised where the run asks for news.
            finally:
                self._set("idle")

    def _write_until_done(self, snapshot: Snapshot, verify: bool) -> None:
        started, pause = time.monotonic(), FIRST_RETRY_S
        while True:
            self._set("writing")
            self._written_bytes = 0
            try:
                checkpoint = self._write(snapshot, verify)
            except OSError as error:
                self._refused = error
                self._news.append(
                    f"the checkpoint of update {snapshot.updates} could not be written: {error.strerror or error}; "
                    f"training continues; it is tried again in {pause:.0f} s"
                )
                self._set("waiting to retry")
                with self._changed:
                    if self._changed.wait_for(lambda: self._abandon, timeout=pause):
                        raise _Abandoned from None
                pause = min(LONGEST_RETRY_S, 2 * pause)
            else:
                self._refused = None
                seconds = time.monotonic() - started
                self._news.append(Written(checkpoint, seconds, snapshot.meta.get("metric")))
                return

    def _write(self, snapshot: Snapshot, verify: bool) -> CheckpointFolder:
        tensors = {name: self._counted(safetensors_parts(named)) for name, named in snapshot.tensors.items()}
        files = {**tensors, **{name: [text.encode()] for name, text in snapshot.texts.items()}}
        checkpoint = write_checkpoint(
            self.folder, snapshot.updates, files, dict(snapshot.meta), by=self._by, before_rename=self._before_rename
        )
        damage = checkpoint.damage() if verify else None
        if damage:
            raise OSError(errno.EIO, f"read back, {damage}")
        # Only now, so that the last good one is never the one that goes.
        with suppress(OSError):  # What cannot be removed now is removed after the next one.
            prune_checkpoints(self.folder, self.keep, self._by)
        return checkpoint

    def _counted(self, parts: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for part in parts:
            if self._abandon:
                raise _Abandoned
            yield part
            self._written_bytes += len(part)

    def _set(self, state: Literal["idle", "writing", "waiting to retry"]) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()
