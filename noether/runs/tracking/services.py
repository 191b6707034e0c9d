"""Rows of a run → services such as W&B and MLflow, by name or by the dotted path of a user's own.

A service never ends or slows a run: a thread calls it, and whatever it raises is reported once.
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
"""Rows that wait for a slow service; beyond that, new ones are dropped, with a warning."""
CLOSE_SECONDS = 30.0
"""How long the end of a run waits for a service to take what is left."""


@dataclass(frozen=True)
class RunFacts:
    """What a service is told about a run.

    `session` is what the service returned at the run's first start, None there: with it, a requeued run stays one run.
    `described` says what is known of the metrics whose numbers it is given, as `GROUP/METRIC`. `weights` are those that
    are evaluated, the selected first: there is a group of each, `group_name("validation", "ema")`.
    """

    run_id: str
    folder: Path
    settings: Mapping[str, Any]
    described: Metrics
    weights: Sequence[str] = ()
    session: str | None = None


class Service(Protocol):
    """What a service offers. Each method may raise anything: the run goes on."""

    def open(self, facts: RunFacts) -> str:
        """Begins the run, or goes on with `facts.session`; returns the id that goes on with it."""

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Take the numbers of one row."""

    def close(self, ended: str) -> None:
        """Write what is left. `ended`: done, stopped (saved, to go on later), failed, or lost to a newer start."""


CLASSES = {
    "wandb": "noether.runs.tracking.wandb_service.WandbService",
    "mlflow": "noether.runs.tracking.mlflow_service.MlflowService",
}
"""The class of each name in `noether.config.trainer.SERVICES`."""
_ONE_AT_A_TIME = threading.Lock()  # Services open at the same time, and their ids are in one file.


class ServiceTracker(Tracker):
    """Passes rows to one service through a thread of its own. `sync` promises nothing of what a service has."""

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
        except Exception as error:  # Whatever a service raises: the run does not depend on it.
            self._failed = True
            self._warn(f"the tracker {self._name} takes no more rows: {type(error).__name__}: {error}")

    def log(self, row: Row) -> None:
        """Hands a row's numbers to the thread."""
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
        """Wait for nothing: no row comes any more, but how the run ends is not known yet."""

    def end(self, ended: str) -> None:
        """Tell the service, and wait for it to take what is left, for at most `CLOSE_SECONDS` each."""
        if not self._failed:
            with suppress(queue.Full):
                self._rows.put(ended, timeout=CLOSE_SECONDS)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._warn(f"the tracker {self._name} is not done after {CLOSE_SECONDS:.0f} s: its last rows may be lost")
        elif self._taken < self._offered:  # Said where it happened too, which may be hours of output ago.
            self._warn(f"the tracker {self._name} took {self._taken} of {self._offered} rows; the run's folder has all")


@dataclass
class Services:
    """A run's services, which are told how it ended when this is left; what could not be had is said again.

    left_out: what to say of those. stopped: whether the run is not complete.
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
    """Return a tracker for each name; one that cannot be had is reported, now and at the end.

    `facts`: of the run, without a session. `writer` writes the ids of the run in the services, where it may.
    """
    trackers, left_out = [], []
    for name in names:
        try:
            service: Service = load_object(name, "tracker.services", CLASSES)()
        except Exception as error:  # Whatever its module or constructor raises.
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
    """Return the id of the run in each service, by the service's name, as an earlier start kept it."""
    return {name: str(value) for name, value in read_record(folder / "trackers.json").items()}
