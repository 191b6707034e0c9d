"""A stop that all ranks make at the same boundary: of an update, or of a batch of an evaluation."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from noether.common.signals import STOP_SIGNALS
from noether.distributed.deadline import Deadline
from noether.distributed.group import Group
from noether.errors import InterruptedStartError

SECOND_INTERRUPT_S = 0.5
"""Two Ctrl-C closer together are one: wrappers pass on what the terminal has sent to the program already."""

AGREE_EVERY_S = 0.2
"""Seconds between two agreements while updates are shorter than that; longer ones agree at every boundary.

An agreement costs about half a millisecond where the ranks leave no core free (benchmarks/stop.py): this keeps it under
1 % of the time, and nobody minds a fifth of a second.
"""

LONGEST_PACE = 25
"""Most boundaries from one agreement to the next: how far a run goes on if its updates are suddenly much slower."""

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

    Once there is something to save, a handler sets a flag and nothing else. The ranks reduce their flags at a boundary
    and read them at the next, so the reduction travels while the update computes. Short updates agree every few
    boundaries: how many, the ranks agree on as well, with the flags.
    """

    def __init__(self) -> None:
        self._group: Group | None = None
        self._deadline: Deadline | None = None
        self._meets = False
        self._signal = 0
        self._first = 0.0
        self._pending: tuple[torch.Tensor, object] | None = None
        self._last_asked: float | None = None
        self._boundaries = 0  # Since the ranks last asked each other,
        self._to_skip = 0  # and before they do so again.

    @contextmanager
    def listening(self, *, meets: bool = False) -> Iterator["AgreedStop"]:
        """Handles the stop signals until left. A second signal, milliseconds later too, changes nothing.

        Args:
            meets: this rank is about to wait for others, perhaps for minutes, and has nothing to save: until it has
                joined them, a signal raises InterruptedStartError where it finds the main thread.
        """
        self._meets = meets
        previous = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def join(self, group: Group) -> None:
        """From now on the ranks of `group` agree; until then nothing that a signal asks for is agreed."""
        self._meets, self._group = False, group

    def leave_before(self, deadline: Deadline | None) -> None:
        """Asks for a stop as a deadline comes near. One rank that has a deadline is enough."""
        self._deadline = deadline

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = number == self._signal == signal.SIGINT
        if again and time.monotonic() - self._first >= SECOND_INTERRUPT_S:
            # A person at the keyboard who presses Ctrl-C again wants to leave at once.
            raise KeyboardInterrupt
        first = not self._signal
        if first:
            self._first = time.monotonic()
        self._signal = number
        if first and self._meets:
            raise InterruptedStartError(number)

    def agreed(self) -> int:
        """Returns why all ranks stop now (a signal's number or TIME_LIMIT), or 0. Every rank calls it per boundary."""
        return self._boundary(may_skip=True)

    def check(self) -> None:
        """The same inside what can be cut short and done again: the ranks agree at every call.

        Raises:
            StopAgreed: on every rank at the same call.
        """
        reason = self._boundary(may_skip=False)
        if reason:
            raise StopAgreed(reason)

    def finish(self) -> int:
        """Returns what was agreed last; every rank calls it once, at the end."""
        return self._signal if self._is_alone() else self._read()

    def _boundary(self, *, may_skip: bool) -> int:
        if self._is_alone():
            return self._own_reason()
        decided = self._read()
        self._boundaries += 1
        if may_skip and self._to_skip:
            self._to_skip -= 1
        else:
            self._ask()
        return decided

    def _is_alone(self) -> bool:
        return self._group is None or self._group.world_size == 1

    def _own_reason(self) -> int:
        near = self._deadline is not None and self._deadline.is_near()
        return self._signal or (TIME_LIMIT if near else 0)

    def _ask(self) -> None:
        """Starts the reduction of [why this rank wants to stop, −boundaries that it would skip after this one]."""
        assert self._group is not None
        now = time.monotonic()
        pace = 1
        if self._last_asked is not None:
            pace = boundaries_between_agreements((now - self._last_asked) / self._boundaries)
        self._last_asked, self._boundaries = now, 0
        # The least of the skips: as often as the rank with the longest updates would.
        flags = torch.tensor([self._own_reason(), 1 - pace], dtype=torch.int32)
        self._pending = (flags, self._group.start_max(flags))

    def _read(self) -> int:
        if self._pending is None:
            return 0
        flags, work = self._pending
        self._pending = None
        work.wait()  # type: ignore[attr-defined]
        reason, skip = flags.tolist()
        self._to_skip = -skip
        return int(reason)


def boundaries_between_agreements(boundary_s: float) -> int:
    """Returns how many boundaries, `boundary_s` seconds apart, to go from one agreement to the next, at least 1."""
    return max(1, min(LONGEST_PACE, int(AGREE_EVERY_S / max(boundary_s, 1e-6))))
