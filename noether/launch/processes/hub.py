"""Links between parent processes: rank 0's (the hub) accepts all others (the spokes), and decides which rank failed."""

import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from noether.common.errors import JoinError
from noether.common.numbers import counted
from noether.launch.detect.endpoint import PublishedPort
from noether.launch.detect.placement import Endpoint
from noether.launch.processes.connector import HANGING_S, NOTICE_S, AddressLookup, Connector, own_address, say_waiting
from noether.launch.processes.context import MeetingPoint, RunInfo, WorkerReport, listed
from noether.launch.processes.link import Caller, Link, Peer, report_from
from noether.launch.processes.listener import RunPorts


class Hub(Link):
    """The link of rank 0's parent process. If it is the only parent process of the run, it has no listener."""

    def __init__(
        self, own_ranks: Collection[int], host: str, run_info: RunInfo, endpoint: Endpoint, ports: RunPorts
    ) -> None:
        listener = self._listener = ports.listener
        world_size = run_info.identity.world_size if listener is not None else len(own_ranks)
        super().__init__(tuple(own_ranks), host, run_info, endpoint, world_size)
        self._read: Callable[[Any], Any] | None = None
        self.answers: dict[tuple[int, ...], Any] = {}
        self.stop_wanted = 0
        self.store_port = ports.store_port
        self._has_said_who_is_missing = False
        self._own_address: AddressLookup | None = None
        if listener is not None:
            caller = Caller(host, os.getpid(), self.own_ranks, run_info.identity, listener.own_nonce)
            look = partial(own_address, endpoint, listener.port, caller, run_info)
            self._own_address = AddressLookup("own-address", look)
            self._own_address.start()

    def descriptors(self) -> list[Any]:
        """Return the descriptors that become readable when there is something to do."""
        own = self._own_address
        wake = [own.reader] if own is not None and own.is_alive() else []
        return [*wake, *(self._listener.descriptors() if self._listener else []), *super().descriptors()]

    def poll(self) -> None:
        """Accept parent processes, do what every link does, and announce the meeting point when all ranks are here."""
        if self._listener is not None:
            for peer in self._listener.poll(self.expected):
                self.peers.append(peer)
                if self._read is not None:
                    peer.connection.send({"ask": 1})
            self._take_refusals(self._listener.refusals)
        super().poll()
        if not self.is_settled:
            self._decide_meeting()

    def _take_refusals(self, refusals: list[WorkerReport]) -> None:
        """Record each refusal as an absent rank's failure, because the refusing host may number its ranks wrongly."""
        for report in refusals if (expected := self.expected) else ():
            rank = report.rank if report.rank in expected else min(expected)
            self.reports.setdefault(rank, replace(report, rank=rank))
        refusals.clear()

    @property
    def missing(self) -> list[int]:
        """The ranks that have not joined."""
        return [rank for rank in range(self.world_size) if rank not in self.arrived]

    @property
    def expected(self) -> set[int]:
        """The ranks whose parent processes have not connected."""
        return set(self.missing) - {*self.own_ranks, *self.remote_ranks}

    def _decide_meeting(self) -> None:
        own, missing, limit_s = self._own_address, self.missing, self.run_info.distributed.init_timeout_s
        waited_s = limit_s - (self.deadline - time.monotonic())
        if own is not None and own.error is not None:
            self.not_met = own.error
        elif not missing and (own is None or own.address):
            address = own.address if own is not None else self.endpoint.host
            log_folder = str(self.run_info.log_folder.absolute())
            self.meeting = MeetingPoint(address, self.store_port, secrets.token_hex(16), log_folder)
            self.send_all({"meet": [self.store_port, self.meeting.secret, log_folder]})
            if self.run_info.shared_folder is not None and self._listener is not None:
                PublishedPort(self.run_info.shared_folder, self.run_info.identity).remove()
        elif missing and waited_s >= limit_s + (HANGING_S if own is not None and own.is_alive() else 0.0):
            strays = self._listener.strays.values() if self._listener is not None else ()
            named = ", ".join(f"rank {stray.ranks[0]} on {stray.host}" for stray in strays)
            refused = f"; refused because they belong to another run: {named}" if named else ""
            self.not_met = JoinError(
                "ranks-late", f"rank {listed(missing)} of {self.world_size} did not join within {limit_s:g} s",
                seen=f"{counted(len(self.arrived), 'rank')} at {self.endpoint.host} port {self.endpoint.port}{refused}",
                expected="all ranks within this time",
                fix="read the output on these ranks' hosts; distributed.init_timeout_s=1800 if they start slowly",
            )  # fmt: skip
        elif missing and waited_s >= NOTICE_S and not self._has_said_who_is_missing:
            self._has_said_who_is_missing = True
            who, whom = f"rank {min(self.own_ranks)} on {self.host}", f"rank {listed(missing)} of {self.world_size}"
            say_waiting(who, whom, self.endpoint, limit_s)

    @property
    def remote_ranks(self) -> list[int]:
        """The ranks whose parent processes are connected."""
        return sorted(rank for peer in self.peers for rank in peer.ranks)

    @property
    def came(self) -> set[tuple[int, ...]]:
        """For each other parent process that has joined, or has sent or received a refusal, its ranks."""
        return self._listener.came if self._listener is not None else set()

    def ask(self, read: Callable[[Any], Any]) -> None:
        """Request an answer from each other parent process, including parents that connect after this call.

        The attribute `answers` holds each answer under its sender's ranks. `read` parses an answer's JSON data; it
        raises ValueError, KeyError or TypeError if the data are invalid.
        """
        self._read = read
        self.send_all({"ask": 1})

    def silent(self) -> list[Peer]:
        """Return the connected parent processes that have not answered `ask`."""
        return [peer for peer in self.peers if peer.ranks and peer.ranks not in self.answers]

    def boundaries(self) -> list[int] | None:
        """Return the last boundary that any rank of each other parent has passed; None until all have reported it."""
        told = [peer.boundary for peer in self.peers if peer.ranks]
        return None if None in told else [boundary for boundary in told if boundary is not None]

    def refuse_latecomers(self, failure: WorkerReport) -> None:
        """Tell the parent processes that connect from now on why there is no run to join."""
        if self._listener is not None and not self.is_settled:
            self._listener.refuse_all(failure, len(self.own_ranks))

    def _take(self, peer: Peer, message: dict[str, Any]) -> None:
        if "arrived" in message:
            self.note_arrivals({int(rank) for rank in message["arrived"]} & set(peer.ranks))
        elif "report" in message:
            report = report_from(message["report"])
            if report.rank not in peer.ranks:
                raise ValueError("a report about another parent process's rank")
            self.reports.setdefault(report.rank, report)
        elif "answer" in message:
            if self._read is not None:
                self.answers[peer.ranks] = self._read(message["answer"])
        elif "stop" in message:
            self.stop_wanted = self.stop_wanted or int(message["stop"])
        elif "boundary" in message:
            peer.boundary = int(message["boundary"])
        elif "bye" in message:
            peer.ranks = ()  # All ranks of this peer have ended well, so none is lost when the peer disconnects.

    def _drop(self, peer: Peer, silent: bool) -> None:
        super()._drop(peer, silent)
        what = "lost its connection (the process that started it has probably died)"
        if silent:
            what = f"has not been heard from for {self.silence_s:g} s: its host is down, or cut off from this one"
        for rank in peer.ranks:
            self.reports.setdefault(rank, WorkerReport(rank, peer.host, "lost", what))

    def close(self) -> None:
        """Close the connections and the port."""
        super().close()
        if self._listener is not None:
            self._listener.close()


class Spoke(Link):
    """The link of a parent process to rank 0's parent process, the hub."""

    def __init__(self, own_ranks: Collection[int], host: str, run_info: RunInfo, endpoint: Endpoint) -> None:
        super().__init__(tuple(own_ranks), host, run_info, endpoint, run_info.identity.world_size)
        self._connector: Connector | None = None
        self._owed: list[Mapping[str, Any]] = []
        self.held = self.asked = self._is_in = False
        self.stop_at: tuple[int, int] | None = None
        if endpoint.port:
            self.look_for(endpoint.port)

    def look_for(self, port: int) -> None:
        """Begin to connect to the listener at `port`, unless this has already begun."""
        if self._connector is None:
            self._connector = Connector(replace(self.endpoint, port=port), self.host, self.own_ranks, self.run_info)
            self._connector.start()

    def descriptors(self) -> list[Any]:
        """Return the descriptors that become readable when there is something to do."""
        looks = not self.peers and not self.is_settled
        wake = [self._connector.reader] if self._connector is not None and looks else []
        return [*wake, *super().descriptors()]

    def note_arrivals(self, ranks: Collection[int]) -> set[int]:
        """Record own ranks that have joined, and tell the hub. The first one starts the time limit to reach the hub."""
        if fresh := super().note_arrivals(ranks):
            self.send({"arrived": sorted(fresh)})
        return fresh

    def poll(self) -> None:
        """Take the connector's result, a connection or an error; then do what every link does."""
        connector = self._connector
        if connector is not None and not self.peers and not self.is_settled:
            connector.deadline = self.deadline
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
        """Send a message to the hub, or keep it until the hub is connected."""
        if self.peers:
            self.send_all(message)
        else:
            self._owed.append(message)

    def answer(self, said: Any) -> None:
        """Answer the hub's request with data that JSON can hold."""
        self.asked = False
        self.send({"answer": said})

    def _take(self, peer: Peer, message: dict[str, Any]) -> None:
        if "ask" in message:
            self.asked = True
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
                f"has not been heard from for {self.silence_s:g} s: its host is down, or this one is cut off from it"
                if silent
                else "lost its connection (the process that started it has probably died); it served the run's store"
            )
            self.reports.setdefault(0, WorkerReport(0, self.endpoint.host, "lost", what))
