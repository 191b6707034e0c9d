"""How often a run was started, how far each attempt came, and whether starting it again still helps. No torch here."""

import time
from dataclasses import dataclass
from itertools import takewhile, zip_longest

from noether.common.whole_file import Publisher
from noether.runs.folder import RunFolder
from noether.runs.records import Row, append_row, is_count, read_rows, write_record


@dataclass(frozen=True)
class AttemptRecord:
    """One attempt at a run: its number, the update it went on after (0: of a new run), and the last it has saved.

    `last_update` and `outcome` are None where it was killed and the run has not been started since.
    """

    number: int
    start_update: int
    last_update: int | None
    outcome: str | None
    host: str
    started: str
    job: str


def record_attempt(
    folder: RunFolder, number: int, start_update: int, host: str, job: str = "", *, unique: str = ""
) -> None:
    """Adds an attempt to attempts.jsonl, as it takes the folder. Raises OSError where it cannot be.

    `job` is the scheduler's name for it, `unique` its random id.
    """
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    row = {"number": number, "id": unique, "start_update": start_update, "host": host, "started": started, "job": job}
    append_row(folder.attempts, row)


def record_meeting(folder: RunFolder, number: int) -> None:
    """Adds that the ranks of an attempt have met, which they do listening for signals. Raises OSError as above."""
    append_row(folder.attempts, {"number": number, "ranks_met": True})


def have_ranks_met(folder: RunFolder, number: int) -> bool:
    """Whether every rank of an attempt listens for signals: those that come earlier end a process as it stands."""
    return any(row.get("number") == number and row.get("ranks_met") for row in read_rows(folder.attempts))


def record_outcome(folder: RunFolder, number: int, last_update: int, outcome: str) -> None:
    """Adds how an attempt ended (done, SIGTERM, the time limit, …). Raises OSError where it cannot be written."""
    append_row(folder.attempts, {"number": number, "last_update": last_update, "outcome": outcome})


def read_attempts(folder: RunFolder) -> list[AttemptRecord]:
    """Returns the attempts at a run, oldest first; one that was killed came as far as the next began."""
    attempts: dict[int, Row] = {}
    for row in read_rows(folder.attempts):
        if is_count(row.get("number")):
            attempts.setdefault(row["number"], {}).update(row)
    rows = [row for row in attempts.values() if is_count(row.get("start_update"))]
    records = []
    for row, following in zip_longest(rows, rows[1:]):
        last = row.get("last_update", following and following["start_update"])
        outcome = row.get("outcome", following and "killed")
        record = AttemptRecord(
            number=row["number"],
            start_update=row["start_update"],
            last_update=last if is_count(last) else None,
            outcome=None if outcome is None else str(outcome),
            **{name: str(row.get(name, "")) for name in ("host", "started", "job")},
        )
        records.append(record)
    return records


def record_stop(folder: RunFolder, reason: str, saved: int, by: Publisher) -> None:
    """Writes stopped.json: that everything is saved, up to an update, and what the next attempt needs to know."""
    content = {
        "reason": reason,
        "update": saved,
        "attempts_without_progress": attempts_without_progress(folder, saved),
    }
    write_record(folder.stopped, content, by)


def attempts_without_progress(folder: RunFolder, reached: int) -> int:
    """Returns how many attempts of one job in a row, the newest included, have added no update to what they found.

    Rank 0 leaves it in stopped.json, and whoever requeues the job gives up at a limit: a run that is stopped at the
    same place each time would otherwise keep its nodes for ever. A newly submitted job counts from zero.
    """
    attempts = read_attempts(folder)[::-1]
    in_vain = takewhile(lambda one: one.start_update == reached and one.job == attempts[0].job, attempts)
    return len(list(in_vain))
