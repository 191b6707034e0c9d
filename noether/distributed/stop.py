"""A stop that all ranks make at the same boundary: of an update, or of a batch of an evaluation."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from noether.distributed.deadline import Deadline
from noether.distributed.group import Group

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)

SECOND_INTERRUPT_S = 0.5
"""Two Ctrl-C closer together are one: wrappers pass on what the terminal has sent to the program already."""

TIME_LIMIT = 1000
"""Where a signal's number stands otherwise: the deadline is near."""


class StopAgreed(Exception):
    """All ranks stop for `reason`, in the middle of something that can be done again."""

    def __init__(self, reason: int) -> None:
        super().__init__(describe_stop(reason))
        self.reason = reason


def describe_stop(reason: int) -> str:
    """Returns what a run stopped for: a signal's name, or "the time limit"."""
    return "the time limit" if reason == TIME_LIMIT else signal.Signals(reason).name


class AgreedStop:
    """Turns a signal at any rank, or a deadline, into a stop of all ranks at the same boundary.

    A handler sets a flag and nothing else. At every boundary the ranks reduce their flags; the reduction started at
    one boundary is read at the next, so it travels while the update computes and costs the loop next to nothing.
    """

    def __init__(self) -> None:
        self._group: Group | None = None
        self._deadline: Deadline | None = None
        self._signal = 0
        self._first = 0.0
        self._pending: tuple[torch.Tensor, object] | None = None

    @contextmanager
    def listening(self) -> Iterator["AgreedStop"]:
        """Handles the stop signals until left. A second signal, milliseconds later too, changes nothing."""
        previous = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def join(self, group: Group) -> None:
        """From now on the ranks of `group` agree; until then a signal is only remembered."""
        self._group = group

    def leave_before(self, deadline: Deadline | None) -> None:
        """Asks for a stop as a deadline comes near. One rank that has a deadline is enough."""
        self._deadline = deadline

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = number == self._signal == signal.SIGINT
        if again and time.monotonic() - self._first >= SECOND_INTERRUPT_S:
            # A person at the keyboard who presses Ctrl-C again wants to leave at once.
            raise KeyboardInterrupt
        if not self._signal:
            self._first = time.monotonic()
        self._signal = number

    def agreed(self) -> int:
        """Returns why all ranks stop now (a signal's number or TIME_LIMIT), or 0. Every rank calls it per boundary."""
        near = self._deadline is not None and self._deadline.is_near()
        own = self._signal or (TIME_LIMIT if near else 0)
        if self._group is None or self._group.world_size == 1:
            return own
        decided = self._read()
        flag = torch.tensor([own], dtype=torch.int32)
        self._pending = (flag, self._group.start_max(flag))
        return decided

    def check(self) -> None:
        """The same, inside what can be cut short and done again.

        Raises:
            StopAgreed: on every rank at the same call.
        """
        reason = self.agreed()
        if reason:
            raise StopAgreed(reason)

    def finish(self) -> int:
        """Returns what was agreed at the last boundary; every rank calls it once, at the end."""
        alone = self._group is None or self._group.world_size == 1
        return self._signal if alone else self._read()

    def _read(self) -> int:
        if self._pending is None:
            return 0
        flag, work = self._pending
        self._pending = None
        work.wait()  # type: ignore[attr-defined]
        return int(flag.item())
