"""A stop that all ranks make at the same boundary: of an update, or of a batch of an evaluation."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from noether.common.errors import InterruptedStartError
from noether.common.processes import SECOND_INTERRUPT_S, STOP_SIGNALS, stops_handled
from noether.launch.process_group.deadline import Deadline
from noether.launch.process_group.group import Group

TIME_LIMIT = 1000
"""Where a signal's number stands otherwise: the deadline is near."""


VAIN_WAIT_S = 15.0
"""How long a rank of several that is to stop waits for a batch: half of what Slurm and Kubernetes leave it."""


class StopAgreed(Exception):
    """All ranks stop for `reason`, in the middle of something that can be done again."""

    def __init__(self, reason: int) -> None:
        super().__init__(describe_stop(reason))
        self.reason = reason


def describe_stop(reason: int) -> str:
    """Return what a run stopped for: a signal's name, or "the time limit"."""
    return "the time limit" if reason == TIME_LIMIT else signal.Signals(reason).name


class AgreedStop:
    """Turns a signal at any rank, or a deadline, into a stop of all ranks at the same boundary.

    Once there is something to save, a handler sets a flag and nothing else; `ParentLink.pass_boundary` finds where.
    """

    def __init__(self) -> None:
        self._group: Group | None = None
        self.deadline: Deadline | None = None
        """A stop is asked for as it comes near. One rank that has a deadline is enough."""
        self._meets = False
        self._signal = 0
        self._first = 0.0
        self._told: Callable[[int], None] | None = None

    @contextmanager
    def listening(self, *, meets: bool = False) -> Iterator["AgreedStop"]:
        """Handle the stop signals until left. A second signal, milliseconds later too, changes nothing.

        Where this rank `meets` others, it may wait for them for minutes and has nothing to save: until it has joined
        them, a signal raises InterruptedStartError where it finds the main thread.
        """
        self._meets = meets
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        threading.Thread(target=self._tell_at_once, args=(reader,), daemon=True).start()
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            with stops_handled(self._handle):
                yield self
        finally:
            signal.set_wakeup_fd(before)
            os.close(writer)

    def tell(self, told: Callable[[int], None]) -> None:
        """Has `told` called once with the signal's number, at once: the interpreter may call no handler for minutes."""
        self._told = told
        if self._signal:
            told(self._signal)

    def _tell_at_once(self, reader: int) -> None:
        """In a thread: reads the numbers that the interpreter writes as signals come."""
        with open(reader, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] in STOP_SIGNALS and self._told is not None:
                    self._told(number[0])
                    return

    def join(self, group: Group) -> None:
        """From now on the ranks of `group` agree; until then nothing that a signal asks for is agreed."""
        self._meets, self._group = False, group
        group.parent.while_waiting = self._leave_a_vain_wait

    def _leave_a_vain_wait(self) -> None:
        """Obeys a stop in the middle of a wait for a batch, which may never come.

        One rank stops there, at the update before. Of several, the others wait for this one inside the update, so that
        none of them can save: StopAgreed, or InterruptedStartError once the batch has had a while to come.
        """
        assert self._group is not None
        if self._signal and self._group.world_size == 1:
            raise StopAgreed(self._signal)
        if self._signal and time.monotonic() - self._first >= VAIN_WAIT_S:
            kept = "it waited for a batch that did not come; what was saved before is kept"
            raise InterruptedStartError(self._signal, kept)

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
        """Return why all ranks stop now (a signal's number or TIME_LIMIT), or 0. Every rank calls it per boundary."""
        near = self.deadline is not None and self.deadline.is_near()
        reason = self._signal or (TIME_LIMIT if near else 0)
        if self._group is None or self._group.world_size == 1:
            return reason
        if not self._group.parent.is_there:
            return int(max(own for (own,) in self._group.table([reason])))
        return self._group.parent.pass_boundary(reason)

    def check(self) -> None:
        """The same inside what can be cut short and done again: raises StopAgreed on every rank at the same call."""
        if reason := self.agreed():
            raise StopAgreed(reason)

    def finish(self) -> None:
        """Pass the last boundary; every rank calls it once, at the end.

        A rank that wants to stop now is too late for a boundary, and does not ask.
        """
        if self._group is not None and self._group.world_size > 1:
            self._group.parent.pass_boundary(0)
