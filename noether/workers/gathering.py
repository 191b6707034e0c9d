"""Which ranks of a run have come to the meeting, and when it is too late for the others."""

import time
from collections.abc import Collection

from noether.environments.placement import Endpoint
from noether.errors import NoetherError
from noether.workers.connector import QUIET_S, say_waiting

MOST_SHOWN = 16


class Gathering:
    """Kept by the launcher of rank 0: the time runs from the moment at which its own first rank has come."""

    def __init__(self, world_size: int, endpoint: Endpoint, limit_s: float) -> None:
        self._world_size, self._endpoint, self._limit_s = world_size, endpoint, limit_s
        self._here: set[int] = set()
        self._began: float | None = None
        self._quiet = True

    def add(self, ranks: Collection[int]) -> None:
        """Notes ranks that have come."""
        if ranks and self._began is None:
            self._began = time.monotonic()
        self._here.update(ranks)

    @property
    def missing(self) -> list[int]:
        """The ranks that have not come."""
        return [rank for rank in range(self._world_size) if rank not in self._here]

    @property
    def is_complete(self) -> bool:
        """Whether all have come."""
        return len(self._here) == self._world_size

    @property
    def left_s(self) -> float:
        """Seconds that are left for the others to come."""
        return self._limit_s if self._began is None else self._began + self._limit_s - time.monotonic()

    def say_who_is_missing(self, own: Collection[int], host: str) -> None:
        """Says once whom the ranks here wait for, where they have waited for a while."""
        if self._quiet and self._began is not None and time.monotonic() - self._began >= QUIET_S:
            self._quiet = False
            whom = f"rank {shown(self.missing)} of {self._world_size}"
            say_waiting(f"rank {min(own)} on {host}", whom, self._endpoint, self._limit_s)


def shown(ranks: Collection[int]) -> str:
    """Returns "1, 2, 3", the first of many."""
    listed = sorted(ranks)
    more = f" and {len(listed) - MOST_SHOWN} more" if len(listed) > MOST_SHOWN else ""
    return ", ".join(map(str, listed[:MOST_SHOWN])) + more


def late_error(missing: Collection[int], world_size: int, endpoint: Endpoint, limit_s: float) -> NoetherError:
    """Returns how every rank that came ends when others did not."""
    return NoetherError(
        f"rank {shown(missing)} of {world_size} did not join within {limit_s:g} s\n"
        f"  seen      {world_size - len(missing)} at {endpoint.host} port {endpoint.port}\n"
        "  expected  all of them\n"
        "  fix       see what their hosts say; distributed.init_timeout_s=1800 where they are slow to start"
    )
