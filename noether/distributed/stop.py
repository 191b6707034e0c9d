"""A stop that all ranks make at the same update."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from noether.distributed.group import Group

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


SECOND_INTERRUPT_S = 0.5
"""Two Ctrl-C closer together are one: wrappers pass on what the terminal has sent to the program already."""


class AgreedStop:
    """Turns a signal at any rank into a stop of all ranks after the same update.

    A handler sets a flag and nothing else. At every update boundary the ranks reduce their flags; the
    reduction started at one boundary is read at the next, so it travels while the update computes and
    costs the loop next to nothing.
    """

    def __init__(self) -> None:
        self._group: Group | None = None
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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = number == self._signal == signal.SIGINT
        if again and time.monotonic() - self._first >= SECOND_INTERRUPT_S:
            # A person at the keyboard who presses Ctrl-C again wants to leave at once.
            raise KeyboardInterrupt
        if not self._signal:
            self._first = time.monotonic()
        self._signal = number

    def agreed(self) -> int:
        """Returns the signal on which all ranks stop now, or 0. Every rank calls it once per update boundary."""
        if self._group is None or self._group.world_size == 1:
            return self._signal
        decided = self._read()
        flag = torch.tensor([self._signal], dtype=torch.int32)
        self._pending = (flag, self._group.start_max(flag))
        return decided

    def finish(self) -> int:
        """Returns the signal agreed at the last boundary; every rank calls it once, after the last update."""
        alone = self._group is None or self._group.world_size == 1
        return self._signal if alone else self._read()

    def _read(self) -> int:
        if self._pending is None:
            return 0
        flag, work = self._pending
        self._pending = None
        work.wait()  # type: ignore[attr-defined]
        return int(flag.item())
