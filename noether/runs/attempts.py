"""How often a run was started, how far each start came, and whether starting it again still helps. No torch here."""

import json
import time
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from noether.common.appending_file import AppendingFile
from noether.runs.folder import RunFolder


@dataclass(frozen=True)
class AttemptRecord:
    """One start of a run: its number, the update it began after, and the last it is known to have saved.

    `last_update` and `outcome` are None where the start was killed and nobody has started the run since.
    """

    attempt: int
    first_update: int
    last_update: int | None
    outcome: str | None
    host: str
    started: str
    job: str


def record_start(folder: RunFolder, attempt: int, first_update: int, host: str, job: str = "") -> None:
    """Adds a start to attempts.jsonl; `job` is the scheduler's name for it. Raises OSError where it cannot be."""
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    row = {"attempt": attempt, "first_update": first_update, "host": host, "started": started, "job": job}
    _add(folder.attempts, row)


def record_outcome(folder: RunFolder, attempt: int, last_update: int, outcome: str) -> None:
    """Adds how a start ended (done, SIGTERM, the time limit, …). Raises OSError where it cannot be written."""
    _add(folder.attempts, {"attempt": attempt, "last_update": last_update, "outcome": outcome})


def read_attempts(folder: RunFolder) -> list[AttemptRecord]:
    """Returns the starts of a run, oldest first; one that was killed came as far as the next began."""
    starts: dict[int, dict[str, Any]] = {}
    for line in folder.attempts.read_text().splitlines() if folder.attempts.exists() else ():
        try:
            row = json.loads(line)
            starts.setdefault(row["attempt"], {}).update(row)
        except (ValueError, KeyError, TypeError):
            continue  # Cut off by the kill that it would have told of.
    rows = [row for row in starts.values() if "first_update" in row]
    records = []
    for row, following in zip_longest(rows, rows[1:]):
        last = row.get("last_update", following["first_update"] if following else None)
        outcome = row.get("outcome", "killed" if following else None)
        records.append(
            AttemptRecord(
                row["attempt"],
                row["first_update"],
                last,
                outcome,
                row.get("host", ""),
                row.get("started", ""),
                row.get("job", ""),
            )
        )
    return records


def attempts_without_progress(folder: RunFolder, reached: int) -> int:
    """Returns how many starts of one job in a row, the newest included, have added no update to what they found.

    Rank 0 leaves it in stopped.json, and whoever requeues the job gives up at a limit: a run that is stopped at the
    same place each time would otherwise keep its nodes for ever. A job that is submitted anew begins to count anew.
    """
    starts = read_attempts(folder)[::-1]
    others = (n for n, start in enumerate(starts) if start.first_update != reached or start.job != starts[0].job)
    return next(others, len(starts))


def _add(path: Path, row: dict[str, Any]) -> None:
    # A line that a kill cut off is ended first.
    before = path.read_bytes() if path.exists() else b""
    row_start = "\n" if before and not before.endswith(b"\n") else ""
    file = AppendingFile(path)
    try:
        file.append((row_start + json.dumps(row) + "\n").encode())
        file.sync()
    finally:
        file.close()
