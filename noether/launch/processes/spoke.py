"""The link of every parent process but rank 0's, which it connects to."""

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from noether.launch.detect.placement import Endpoint
from noether.launch.processes.connector import HANGING_S, Connector
from noether.launch.processes.context import RunInfo, WorkerReport
from noether.launch.processes.link import Link, Peer, report_from
from noether.launch.processes.rank_state import MeetingPoint


class Spoke(Link):
    """The link of a parent process to rank 0's parent process, the hub."""

    def __init__(self, own_ranks: Collection[int], host: str, run_info: RunInfo, endpoint: Endpoint) -> None:
        super().__init__(tuple(own_ranks), host, run_info, endpoint, run_info.identity.world_size)
        self._connector: Connector | None = None
        self._owed: list[Mapping[str, Any]] = []
        self.held = self._is_in = False
        self.stop_at: tuple[int, int] | None = None
        self.question: Mapping[str, Any] | None = None
        self._number = 0
        if endpoint.port:
            self.look_for(endpoint.port)

    def look_for(self, port: int) -> None:
        """Starts to look for the listener, once its port is known: a launcher's store may have to be asked for it."""
        if self._connector is None:
            self._connector = Connector(replace(self.endpoint, port=port), self.host, self.own_ranks, self.run_info)
            self._connector.start()

    def descriptors(self) -> list[Any]:
        """Returns what becomes readable when there is something to do."""
        looks = not self.peers and not self.is_settled
        wake = [self._connector.reader] if self._connector is not None and looks else []
        return [*wake, *super().descriptors()]

    def note_arrivals(self, ranks: Collection[int]) -> set[int]:
        """Notes which of the own ranks have joined, and tells the hub; the time for meeting it runs from the first."""
        fresh = super().note_arrivals(ranks)
        if fresh:
            self.send({"arrived": sorted(fresh)})
        return fresh

    def poll(self) -> None:
        """Takes the result of connecting, then does what every link does."""
        connector = self._connector
        if connector is not None:
            connector.deadline = self.deadline
        if connector is not None and not self.peers and not self.is_settled:
            if connector.error is not None:
                self.not_met, self.failure = connector.error, connector.failure
            elif connector.connection is not None and not self._is_in:
                self._is_in = True
                self.peers.append(Peer(connector.connection, time.monotonic(), self.endpoint.host, (0,)))
                for message in self._owed:
                    self.send_all(message)
            elif time.monotonic() > self.deadline + HANGING_S:
                self.not_met = connector.late()
        super().poll()

    def send(self, message: Mapping[str, Any]) -> None:
        """Tells the hub something, as soon as it is found."""
        if self.peers:
            self.send_all(message)
        else:
            self._owed.append(message)

    def tell(self, report: WorkerReport) -> None:
        """Tells the hub how a rank ended."""
        self.send({"report": asdict(report)})

    def answer(self, said: Any) -> None:
        """Answers the hub's latest question, with what JSON can say."""
        self.question = None
        self.send({"answer": said, "number": self._number})

    def bye(self) -> None:
        """Says that all ranks here ended well."""
        self.send({"bye": 1})

    def _take(self, peer: Peer, message: dict[str, Any]) -> None:
        if "ask" in message:
            self.question, self._number = dict(message["ask"]), int(message["number"])
        elif "failure" in message:
            self.failure = report_from(message["failure"])
        elif "meet" in message:
            port, secret, log_folder = message["meet"]
            address = self._connector.address if self._connector is not None else ""
            self.meeting = MeetingPoint(address, int(port), str(secret), str(log_folder))
        elif "hold" in message:
            self.held = True
        elif "stop_at" in message:
            boundary, reason = map(int, message["stop_at"])
            self.stop_at = (boundary, reason)

    def _drop(self, peer: Peer, silent: bool) -> None:
        super()._drop(peer, silent)
        if self.failure is None:
            what = (
                f"has not been heard of for {self.silence_s:g} s: its host is down, or this one is cut off from it"
                if silent
                else "is gone without a word, and its parent process with it (killed?); it served the store of the run"
            )
            self.reports.setdefault(0, WorkerReport(0, self.endpoint.host, "lost", what))
