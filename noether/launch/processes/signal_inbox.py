"""Turns stop signals into messages, for a loop that waits for several things."""

import collections
import contextlib
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from noether.common.signals import STOP_SIGNALS, ignore_the_end_of_others


class SignalInbox:
    """Notes number and time of each stop signal while entered; `reader` becomes readable and wakes a waiting loop.

    A process that was asked to stop ignores SIGTERM from then on: srun sends it to all tasks once one has ended, and
    it would end this one, which is leaving, with another code than its own.
    """

    def __enter__(self) -> "SignalInbox":
        self._queue: collections.deque[tuple[int, float]] = collections.deque()
        self._is_leaving = False
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._is_leaving |= number != signal.SIGINT
        self._queue.append((number, time.monotonic()))
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"!")

    def received(self) -> list[tuple[int, float]]:
        """Return (signal number, monotonic seconds) of what came since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.reader, 4096)
        return [self._queue.popleft() for _ in range(len(self._queue))]

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            if number == signal.SIGTERM and self._is_leaving:
                ignore_the_end_of_others()
            elif handler is not None:
                signal.signal(number, handler)
        os.close(self.reader)
        os.close(self._writer)
