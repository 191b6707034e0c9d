"""The link of rank 0's launcher: it accepts the other launchers, says where the ranks meet, and names who failed."""

import secrets
import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from noether.environments.placement import Endpoint
from noether.environments.published_port import PublishedPort
from noether.workers.connector import OwnAddress
from noether.workers.context import RunTerms, WorkerReport
from noether.workers.gathering import Gathering, late_error
from noether.workers.link import Link, Peer, doing_from, report_from
from noether.workers.listener import RunListener
from noether.workers.rank_state import MeetingPoint


class Hub(Link):
    """The link of rank 0's launcher. If it answers for all ranks, there are no other launchers and no listener."""

    def __init__(
        self,
        own_ranks: Collection[int],
        host: str,
        terms: RunTerms,
        endpoint: Endpoint,
        listener: RunListener | None = None,
    ) -> None:
        super().__init__(tuple(own_ranks), host, terms)
        self._endpoint, self._listener = endpoint, listener
        self.stop_wanted = 0
        self.store_port, self.log_folder = endpoint.port, Path()
        self._world_size = terms.identity.world_size if listener is not None else len(self.own_ranks)
        self.gathering = Gathering(self._world_size, endpoint, terms.timeouts.init_timeout_s)
        self._own_address: OwnAddress | None = None
        if listener is not None:
            self._own_address = OwnAddress(endpoint, listener.port, host, terms.timeouts.init_timeout_s)
            self._own_address.start()

    def descriptors(self) -> list[Any]:
        """Returns what becomes readable when there is something to do."""
        own = self._own_address
        wake = [own.reader] if own is not None and own.is_alive() else []
        return [*wake, *(self._listener.descriptors() if self._listener else []), *super().descriptors()]

    def note_arrivals(self, ranks: Collection[int]) -> None:
        """Notes which of this launcher's ranks have joined."""
        self.gathering.add(ranks)

    def poll(self) -> None:
        """Accepts launchers, does what every link does, and says where to meet once all ranks have joined."""
        if self._listener is not None:
            for launcher in self._listener.poll({*self.own_ranks, *self.remote_ranks}):
                peer = Peer(launcher.connection, time.monotonic(), launcher.caller.host, launcher.caller.ranks)
                self.peers.append(peer)
                if self.asked:
                    peer.connection.send({"ask": 1})
        super().poll()
        if self.meeting is None:
            self._decide_meeting()

    def _decide_meeting(self) -> None:
        gathering, own = self.gathering, self._own_address
        if own is not None and own.refusal is not None:
            self.meeting = own.refusal
            self.send_all({"refused": own.refusal.summary})
        elif gathering.is_complete and (own is None or own.address):
            address = own.address if own is not None else self._endpoint.host
            point = MeetingPoint(address, self.store_port, secrets.token_hex(16), str(self.log_folder.absolute()))
            self.meeting = point
            self.send_all({"meet": [point.port, point.secret, point.log_folder]})
            if self.terms.shared_folder is not None and self._listener is not None:
                PublishedPort(self.terms.shared_folder, self.terms.identity).remove()
        elif not gathering.is_complete and gathering.left_s <= 0:
            limit_s = self.terms.timeouts.init_timeout_s
            self.meeting = late_error(gathering.missing, self._world_size, self._endpoint, limit_s)
            self.send_all({"late": gathering.missing})
        else:
            gathering.say_who_is_missing(self.own_ranks, self.host)

    @property
    def remote_ranks(self) -> list[int]:
        """The ranks whose launchers are connected."""
        return sorted(rank for peer in self.peers for rank in peer.ranks)

    def is_waiting(self) -> bool:
        """Whether other launchers have not said good-bye yet."""
        return bool(self.peers)

    def ask(self) -> None:
        """Asks the other launchers what their ranks do."""
        self.asked = True
        self.send_all({"ask": 1})

    def silent_ranks(self) -> list[int]:
        """Returns the ranks elsewhere whose launchers were asked and have not answered."""
        return sorted(rank for peer in self.peers if not peer.answered for rank in peer.ranks)

    def boundaries(self) -> list[int] | None:
        """Returns how far the ranks of each other launcher have come, or None while one has not said so."""
        told = [peer.boundary for peer in self.peers if peer.ranks]
        return None if None in told else [boundary for boundary in told if boundary is not None]

    def announce(self, verdict: WorkerReport) -> None:
        """Tells every launcher who failed first."""
        self.send_all({"verdict": asdict(verdict)})

    def _take(self, peer: Peer, message: dict[str, Any]) -> None:
        if "arrived" in message:
            self.gathering.add({int(rank) for rank in message["arrived"]} & set(peer.ranks))
        elif "report" in message:
            report = report_from(message["report"])
            if report.rank not in peer.ranks:
                raise ValueError("a report about another launcher's rank")
            self.reports.append(report)
        elif "doing" in message:
            peer.answered = True
            for entry in message["doing"]:
                self.doing[int(entry["rank"])] = doing_from(entry)
        elif "stop" in message:
            self.stop_wanted = self.stop_wanted or int(message["stop"])
        elif "boundary" in message:
            peer.boundary = int(message["boundary"])
        elif "bye" in message:
            peer.ranks = ()  # All its ranks have ended well, so none is lost when it disconnects.

    def _drop(self, peer: Peer, silent: bool) -> None:
        super()._drop(peer, silent)
        told = {report.rank for report in self.reports if report.kind != "finished"}
        for rank in peer.ranks:
            if rank not in told:
                what = (
                    f"has not been heard of for {self.silence_s:g} s: its host is down, or cut off from this one"
                    if silent
                    else "is gone without a word, and its launcher with it (killed?)"
                )
                self.reports.append(WorkerReport.of_launcher(rank, peer.host, "lost", what))

    def close(self) -> None:
        """Closes the connections and the port."""
        super().close()
        if self._listener is not None:
            self._listener.close()
