"""The parent processes agree at which boundary all ranks stop, at no cost to the ranks until one wants to stop.

decisions/06-agreed-stop.md says how. A rank counts first and then checks whether it must wait; its parent first sets
that it must wait and then reads the count. So no rank can have passed the boundary after the furthest, and no one
depends on a rank that is waiting for another in a collective.
"""

import time

from noether.launch.processes.hub import Hub
from noether.launch.processes.local_ranks import LocalRanks
from noether.launch.processes.rank_state import BOUNDARY, HELD, STOP_AT, STOP_REASON
from noether.launch.processes.spoke import Spoke

SETTLE_S = 0.001
"""Between saying that ranks are to wait and reading how far they are: longer than a processor keeps a write back."""


class StopAgreement:
    """One parent process's part in the agreement."""

    def __init__(self, ranks: LocalRanks) -> None:
        self._ranks, self._counters = ranks, [worker.counters for worker in ranks.workers.values()]
        self._furthest: int | None = None
        self._told = self._is_decided = False

    def poll(self, link: Hub | Spoke) -> None:
        """Does what is due."""
        if self._is_decided:
            return
        wanted = self._ranks.stop_wanted
        if isinstance(link, Spoke):
            if wanted and not self._told:
                self._told = True
                link.send({"stop": wanted})
            if link.held and self._furthest is None:
                link.send({"boundary": self._hold()})
            if link.stop_at is not None:
                self._decide(*link.stop_at)
            return
        reason = wanted or link.stop_wanted
        if not reason:
            return
        if self._furthest is None:
            link.send_all({"hold": 1})
            self._hold()
        counted = link.boundaries()
        if self._furthest is not None and counted is not None:
            boundary = max(self._furthest, *counted, 0) + 1
            link.send_all({"stop_at": [boundary, reason]})
            self._decide(boundary, reason)

    def _hold(self) -> int:
        for counters in self._counters:
            counters[HELD] = 1
        time.sleep(SETTLE_S)
        self._furthest = max(int(counters[BOUNDARY]) for counters in self._counters)
        return self._furthest

    def _decide(self, boundary: int, reason: int) -> None:
        self._is_decided = True
        for counters in self._counters:
            counters[STOP_REASON] = reason
            counters[STOP_AT] = boundary
