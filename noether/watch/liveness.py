"""Whether a run is alive, as its folder alone tells: also one on another machine. No torch here."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from noether.runs.folder import RunFolder
from noether.runs.overview import LOST, RUNNING, WAITING, last_attempt, state_and_reason, submitted_job
from noether.runs.records import Row, number
from noether.watch.inside import changed

SILENT = "silent"
"""A run on another host that has not ended, and has written nothing for longer than it usually takes."""
LEAST_PATIENCE_S = 60.0
_PATIENCE = 5


@dataclass(frozen=True)
class Liveness:
    """A run's state and what it was read from.

    last_sign: when it last wrote anything, in seconds since the epoch; None where it has written nothing.
    """

    state: str
    why: str
    last_sign: float | None


def read_liveness(folder: RunFolder, recent: Sequence[Row], now: float | None = None) -> Liveness:
    """Reads a run's state from its folder; its process is looked up only where it runs on this host.

    `recent` are its last training rows, which say how often it writes; `now` is in seconds since the epoch.
    """
    now = time.time() if now is None else now
    attempt = last_attempt(folder)
    state, why = state_and_reason(folder, attempt, None)
    logs = folder.logs.glob("rank-*.log") if folder.logs.is_dir() else ()
    times = map(changed, (folder.metrics, folder.attempt, folder.plan, *logs))
    sign = max((moment for moment in times if moment is not None), default=None)
    if attempt is None and state == LOST and (job := submitted_job(folder)):
        return Liveness(WAITING, f"submitted as job {job}, not started yet", sign)
    if state == LOST and attempt is not None and attempt.exit_code is None and attempt.alive() is None:
        patience, silent_for = patience_s(recent), now - (sign or attempt.began)
        where = f"on {attempt.host}, as its folder tells"
        if silent_for <= patience:
            return Liveness(RUNNING, where, sign)
        return Liveness(SILENT, f"{where}; nothing was written for longer than {patience:.0f} s", sign)
    return Liveness(state, why, sign)


def patience_s(recent: Sequence[Row]) -> float:
    """Returns the seconds after which a run counts as silent: five times its longest recent gap, a minute at least."""
    times = [moment for row in recent if (moment := number(row, "time")) is not None]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return max(LEAST_PATIENCE_S, _PATIENCE * max(gaps, default=0.0))
