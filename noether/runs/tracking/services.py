"""Send a run's rows to services such as W&B and MLflow, or to a user's own service, given by its dotted path.

A service never ends or slows a run: a thread calls it, and an exception from it is reported once.
"""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from noether.common.atomic_write import UNFENCED, Writer
from noether.common.dotted_path import load_object
from noether.common.errors import RequestError
from noether.runs.lease import FencedError
from noether.runs.metrics import Metrics
from noether.runs.records import Row, read_record, write_record
from noether.runs.tracking.tracker import Tracker, logged

HELD_ROWS = 10_000
"""Maximum number of rows that wait for a slow service. Further rows are dropped, with a warning."""
CLOSE_SECONDS = 30.0
"""Longest time that a run waits at its end for a service to take the remaining rows."""


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run that a service receives.

    session: the id that the service returned at the run's first start, so that a requeued run remains one run in the
        service; None at the first start. described: descriptions of the metrics, which are logged as `GROUP/METRIC`.
    weights: the kinds of weights to evaluate, the selected kind first; each has a group, such as `validation (ema)`.
    """

    run_id: str
    folder: Path
    settings: Mapping[str, Any]
    described: Metrics
    weights: Sequence[str] = ()
    session: str | None = None


class Service(Protocol):
    """Interface of a service. Its methods may raise any exception; the run continues."""

    def open(self, facts: RunFacts) -> str:
        """Create the run in the service, or resume the run `facts.session`; return its id, with which it is resumed."""

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Log the metrics of one row."""

    def close(self, ended: str) -> None:
        """Write the remaining rows. `ended`: done, stopped (resumable), failed, or lost (a newer attempt took over)."""


CLASSES = {
    "wandb": "noether.runs.tracking.wandb_service.WandbService",
    "mlflow": "noether.runs.tracking.mlflow_service.MlflowService",
}
"""The class of each name in `noether.config.trainer.SERVICES`."""
_ONE_AT_A_TIME = threading.Lock()  # Services open concurrently, and all write the same file of ids.


class ServiceTracker(Tracker):
    """Tracker that passes rows to one service in a thread. `sync` does not wait for the service."""

    def __init__(
        self, name: str, service: Service, facts: RunFacts, warn: Callable[[str], None], writer: Writer = UNFENCED
    ) -> None:
        self._name, self._service, self._facts, self._warn, self._writer = name, service, facts, warn, writer
        self._rows: queue.Queue[tuple[dict[str, float], int] | str] = queue.Queue(HELD_ROWS)
        self._failed = self._dropped = False
        self._offered = self._taken = 0
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            folder, session = self._facts.folder, self._service.open(self._facts)
            if session != self._facts.session:
                with _ONE_AT_A_TIME:
                    write_record(folder / "trackers.json", {**sessions(folder), self._name: session}, self._writer)
            while not isinstance(entry := self._rows.get(), str):
                self._service.log(*entry)
                self._taken += 1
            self._service.close(entry)
        except Exception as error:  # The run does not depend on the service.
            self._failed = True
            self._warn(f"the tracker {self._name} has failed and gets no more rows: {type(error).__name__}: {error}")

    def log(self, row: Row) -> None:
        """Pass a row's metrics to the thread."""
        numbers = {f"{group}/{name}": value for group, name, value in logged(row)}
        self._offered += bool(numbers)
        if self._failed or not numbers:
            return
        try:
            self._rows.put_nowait((numbers, int(row["update"])))
        except queue.Full:
            if not self._dropped:
                self._dropped = True
                self._warn(f"the tracker {self._name} is slower than the run: rows are dropped")

    def close(self) -> None:
        """Do nothing here: `end` closes the service, because it also reports how the run ended."""

    def end(self, ended: str) -> None:
        """Pass `ended` to the thread, then wait for the service to finish; each step takes at most `CLOSE_SECONDS`."""
        if not self._failed:
            with suppress(queue.Full):
                self._rows.put(ended, timeout=CLOSE_SECONDS)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._warn(f"the tracker {self._name} is not done after {CLOSE_SECONDS:.0f} s; its last rows may be lost")
        elif self._taken < self._offered:  # Warn again: the first warning may be hours of output ago.
            self._warn(f"the tracker {self._name} took {self._taken} of {self._offered} rows; the run's folder has all")


@dataclass
class Services:
    """Context manager of a run's services. On exit, it reports to them how the run ended, and repeats `left_out`.

    left_out: warnings about services that failed to load. stopped: whether the run stopped before it was complete.
    """

    trackers: Sequence[ServiceTracker]
    left_out: Sequence[str]
    warn: Callable[[str], None]
    stopped: bool = False

    def __enter__(self) -> "Services":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        ended = "stopped" if self.stopped else "done"
        if error is not None:
            ended = "lost" if isinstance(error, FencedError) else "failed"
        for tracker in self.trackers:
            tracker.end(ended)
        for text in self.left_out:
            self.warn(text)


def open_services(names: Sequence[str], facts: RunFacts, warn: Callable[[str], None], writer: Writer) -> Services:
    """Load the named services, with a tracker each. Warn, now and at the end, of services that fail to load.

    facts: the run's facts, without a session. writer: writes the run's ids in the services, if it holds the lease.
    """
    trackers, left_out = [], []
    for name in names:
        try:
            service: Service = load_object(name, "tracker.services", CLASSES)()
        except Exception as error:  # Its module or constructor may raise anything.
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, RequestError):
                why = f"{error.summary} ({error.seen})"
            left_out.append(f"the tracker {name} is left out: {why}")
            warn(left_out[-1])
            continue
        own = replace(facts, session=sessions(facts.folder).get(name))
        trackers.append(ServiceTracker(name, service, own, warn, writer))
    return Services(trackers, left_out, warn)


def sessions(folder: Path) -> dict[str, str]:
    """Return the run's id in each service, as an earlier attempt stored it, by service name."""
    return {name: str(value) for name, value in read_record(folder / "trackers.json").items()}
