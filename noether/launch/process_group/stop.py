"""Stop all ranks at the same boundary: between two updates, or between two batches of an evaluation."""

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
"""The reason for a stop if the deadline is near. Any other reason is the number of a signal."""


LATE_BATCH_LIMIT_S = 15.0
"""The longest wait (s) for a batch after a signal in a run of several ranks: half of Slurm's and Kubernetes' grace."""


class StopAgreed(Exception):
    """Raised to end repeatable work, such as an evaluation, if all ranks stop; `reason` is why they stop."""

    def __init__(self, reason: int) -> None:
        super().__init__(describe_stop(reason))
        self.reason = reason


def describe_stop(reason: int) -> str:
    """Return the text for the reason of a stop: a signal's name, or "the time limit"."""
    return "the time limit" if reason == TIME_LIMIT else signal.Signals(reason).name


class AgreedStop:
    """Turns a signal at any rank, or a deadline, into a stop of all ranks at the same boundary.

    As soon as there is something to save, a signal only sets a flag; `ParentLink.pass_boundary` finds the boundary.
    """

    def __init__(self) -> None:
        self._group: Group | None = None
        self.deadline: Deadline | None = None
        """The deadline: this rank requests a stop shortly before it. It is enough that one rank has a deadline."""
        self._meets = False
        self._signal = 0
        self._first = 0.0
        self._told: Callable[[int], None] | None = None

    @contextmanager
    def listening(self, *, meets: bool = False) -> Iterator["AgreedStop"]:
        """Handle stop signals inside the block. A second Ctrl-C, `SECOND_INTERRUPT_S` later, raises KeyboardInterrupt.

        With `meets=True`, this rank may wait for minutes until the other ranks join, with nothing to save. Until it has
        joined them, a signal therefore raises InterruptedStartError in the main thread.
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
        """Call `told` once when a signal comes, sooner than a signal handler, which Python can delay for minutes."""
        self._told = told
        if self._signal:
            told(self._signal)

    def _tell_at_once(self, reader: int) -> None:
        """Run in a thread: read the signal numbers that the interpreter writes, and report the first stop signal."""
        with open(reader, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] in STOP_SIGNALS and self._told is not None:
                    self._told(number[0])
                    return

    def join(self, group: Group) -> None:
        """Make this rank agree on stops with the ranks of `group`. Before this call, it decides alone."""
        self._meets, self._group = False, group
        group.parent.while_waiting = self._leave_a_vain_wait

    def _leave_a_vain_wait(self) -> None:
        """Obey a stop signal that comes while this rank waits for a batch, because the batch may never come.

        If the run has one rank, raise StopAgreed: the run stops after the previous update. If there are several ranks,
        raise InterruptedStartError after `LATE_BATCH_LIMIT_S`: the others wait inside an update, and cannot save.
        """
        assert self._group is not None
        if self._signal and self._group.world_size == 1:
            raise StopAgreed(self._signal)
        if self._signal and time.monotonic() - self._first >= LATE_BATCH_LIMIT_S:
            kept = "it waited for a batch that did not come; what was saved before is kept"
            raise InterruptedStartError(self._signal, kept)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = number == self._signal == signal.SIGINT
        if again and time.monotonic() - self._first >= SECOND_INTERRUPT_S:
            # A person who presses Ctrl-C a second time wants the run to end at once.
            raise KeyboardInterrupt
        first = not self._signal
        if first:
            self._first = time.monotonic()
        self._signal = number
        if first and self._meets:
            raise InterruptedStartError(number)

    def agreed(self) -> int:
        """Return why all ranks stop now: a signal number, TIME_LIMIT, or 0 for no stop. Call this at each boundary."""
        near = self.deadline is not None and self.deadline.is_near()
        reason = self._signal or (TIME_LIMIT if near else 0)
        if self._group is None or self._group.world_size == 1:
            return reason
        if not self._group.parent.is_there:
            return int(max(own for (own,) in self._group.table([reason])))
        return self._group.parent.pass_boundary(reason)

    def check(self) -> None:
        """Raise StopAgreed if the ranks agree on a stop; every rank raises at the same call. For repeatable work."""
        if reason := self.agreed():
            raise StopAgreed(reason)

    def finish(self) -> None:
        """Pass the last boundary. Every rank calls this once, at the end.

        This rank requests no stop here, because there is no later boundary to stop at.
        """
        if self._group is not None and self._group.world_size > 1:
            self._group.parent.pass_boundary(0)
