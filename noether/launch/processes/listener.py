"""Reserves a run's ports before any rank starts, and accepts the other parent processes, on rank 0's host."""

import math
import os
import secrets
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import wait
from typing import Any

from noether.common.errors import RequestError
from noether.common.numbers import first_of
from noether.launch.detect.endpoint import HeldPort, PublishedPort, find_address, hold_port
from noether.launch.detect.identity import RunIdentity
from noether.launch.detect.placement import Endpoint, Placement
from noether.launch.processes.connector import REFUSAL_NOTICE_S, rank_twice, say_telling, who_listens
from noether.launch.processes.context import RunInfo, WorkerReport
from noether.launch.processes.link import (
    LONGEST_IDENTITY,
    LONGEST_LINE,
    Caller,
    JsonLines,
    Peer,
    is_proof,
    printable,
    proof,
    proves_refusal,
    refusal_from,
    refusal_line,
    say,
)
from noether.launch.processes.worker import failure_report

MOST_UNPROVEN = 64
PROOF_LIMIT_S = 10.0
MOST_ACCEPTED = 256
"""The maximum number of connections accepted in a row; then the parent process attends to its run again."""
LONGEST_HELLO = 1 << 14
MOST_STRAYS_SHOWN = 20


@dataclass
class UnprovenConnection:
    """A connection that has not yet proved that it belongs to this run."""

    connection: JsonLines
    came: float
    caller: Caller | None = None
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))


class RunListener:
    """Accepts connections on a reserved port, and returns the connections that belong to the run.

    `refusals`: the reports of parent processes that were started with the run but will not join it. `came`: the ranks
    of each parent that has proved that it belongs to the run, or was informed why there is no run to join.
    `own_nonce`: the nonce by which this process recognises its own test connection.
    """

    def __init__(self, held: HeldPort, run_info: RunInfo) -> None:
        self._held, self._run_info, self._identity = held, run_info, run_info.identity
        self._expected = set(range(run_info.identity.world_size))
        self._fewest_ranks = run_info.identity.world_size
        self.own_nonce = secrets.token_hex(16)
        self._own_refusal: WorkerReport | None = None
        self.refusals: list[WorkerReport] = []
        self.came: set[tuple[int, ...]] = set()
        self.port = held.endpoint.port
        held.socket.setblocking(False)
        self.unproven: list[UnprovenConnection] = []
        self.strays: dict[tuple[str, int], Caller] = {}

    def descriptors(self) -> list[socket.socket]:
        """Return the sockets to wait for: the listening socket, and those of unproven connections."""
        return [self._held.socket, *(candidate.connection.socket for candidate in self.unproven)]

    def poll(self, expected: Collection[int]) -> list[Peer]:
        """Accept connections and read their messages; return the parents that have proved that they are of this run.

        A connection without a proof is closed after a while. A parent whose rank is not in `expected` is turned away.
        """
        now, self._expected = time.monotonic(), set(expected)
        self._accept(now)
        accepted: list[Peer] = []
        for candidate in list(self.unproven):
            messages, alive = candidate.connection.read()
            for message in messages[:2]:
                if candidate.caller is None:
                    alive = alive and self._read_hello(candidate, message)
                elif candidate.caller.identity == self._identity and is_proof(
                    message.get("proof"), self._run_info.key, "client", candidate.nonce, candidate.caller.nonce
                ):
                    self.unproven.remove(candidate)
                    candidate.connection.longest_line = LONGEST_LINE
                    peer = Peer(candidate.connection, now, candidate.caller.host, candidate.caller.ranks)
                    if double := set(peer.ranks) - self._expected:
                        peer.connection.send({"double": min(double)})
                        peer.connection.close()
                    elif peer.connection.send({"welcome": 1}):
                        accepted.append(peer)
                        self._expected -= set(peer.ranks)
                        self.came.add(peer.ranks)
                    break
                else:
                    self._answer_refusal(candidate, candidate.caller, message)
                    alive = False
            if candidate in self.unproven and (not alive or now - candidate.came > PROOF_LIMIT_S):
                self._drop(candidate)
        return accepted

    def _accept(self, now: float) -> None:
        for _ in range(MOST_ACCEPTED):
            try:
                connection, _ = self._held.socket.accept()
            except OSError:
                return  # No connection waits, or this process has no free descriptor.
            self.unproven.append(UnprovenConnection(JsonLines(connection, LONGEST_HELLO), now))
            if len(self.unproven) > MOST_UNPROVEN:
                silent = next((candidate for candidate in self.unproven if candidate.caller is None), self.unproven[0])
                self._drop(silent)

    def _read_hello(self, candidate: UnprovenConnection, message: dict[str, object]) -> bool:
        """Answer a connection's first line; return whether to keep the connection."""
        try:
            caller = Caller.from_message(message)
        except ValueError:
            return False
        if caller.nonce == self.own_nonce:
            candidate.connection.send({"run": self._identity.as_text(), "nonce": candidate.nonce, "own": 1})
            return False
        own, start_key, nonces = self._identity, self._run_info.start_key, (caller.nonce, candidate.nonce)
        answer: dict[str, object] = {"run": own.as_text(), "nonce": candidate.nonce}
        answer["proof"] = proof(self._run_info.key, "server", *nonces)
        # If all ranks are here, a caller with other settings or devices is from another run, and gets no proof.
        is_stray = not caller.identity.is_of_same_start(own) or (caller.identity != own and not self._expected)
        if not is_stray:
            answer["start"] = proof(start_key, "start", *nonces)
        told = self._own_refusal is not None and caller.identity.configuration == own.configuration
        if told and not is_stray:
            self.came.add(caller.ranks)
            answer |= refusal_line(self._own_refusal, start_key, *nonces)
        if not candidate.connection.send(answer) or told:
            return False
        if is_stray:
            self._say_stray(caller)
            return False
        candidate.caller = caller
        return caller.identity != own or max(caller.ranks) < own.world_size

    def refuse_all(self, report: WorkerReport, own: int) -> WorkerReport:
        """Inform all parents of this run, as they connect, why there is no run to join; return the reason.

        The reason is `report`, or that a host has other settings. Return after `RunInfo.telling_s`, or as soon as all
        parents are informed; the count of parents assumes that each has `own` ranks, as this process has.
        """
        limit_s, self._own_refusal = self._run_info.telling_s, report
        began, quiet_s = time.monotonic(), REFUSAL_NOTICE_S
        while (waited_s := time.monotonic() - began) < limit_s:
            if len(self.came) >= math.ceil(self._fewest_ranks / own) - 1 and not self.unproven:
                break
            if waited_s >= quiet_s:
                quiet_s = limit_s
                say_telling(self._own_refusal, limit_s - waited_s)
            wait(self.descriptors(), min(1.0, limit_s - waited_s))
            for peer in self.poll(range(self._identity.world_size)):
                peer.connection.send({"failure": asdict(self._own_refusal)})
        return self._own_refusal

    def _answer_refusal(self, candidate: UnprovenConnection, caller: Caller, message: dict[str, object]) -> None:
        """Answer a parent that was started with this run but will not join it; record the reason why there is no run.

        If the parent's settings differ from rank 0's, record that difference, and not one of its consequences.
        """
        run_info, host, its, nonces = self._run_info, caller.host, caller.identity, (candidate.nonce, caller.nonce)
        if not self._expected or not proves_refusal(message, run_info.start_key, *nonces):
            return
        two_runs, differ = "", None
        if not its.job:
            two_runs = f"; or, for two runs, {self._held.endpoint.another_port} on all hosts of one of them"
        if its.configuration != self._identity.configuration and isinstance(settings := message.get("settings"), dict):
            differ = settings_differ(run_info.settings, settings, host, two_runs)
        if differ is None:
            refusal = self._own_refusal or refusal_from(message, run_info.start_key, *nonces)
            differ = ranks_differ(run_info, its, host, two_runs) if refusal is None else None
        if differ is not None:
            refusal = failure_report(differ, caller.ranks[0], host)
        if refusal is None:
            return
        self.came.add(caller.ranks)
        self.refusals.append(refusal)
        self._fewest_ranks = min(self._fewest_ranks, its.world_size)
        if self._own_refusal is not None:
            self._own_refusal = refusal
        candidate.connection.send(refusal_line(refusal, run_info.start_key, caller.nonce, candidate.nonce))

    def _say_stray(self, caller: Caller) -> None:
        who = (caller.host, caller.pid)
        if who in self.strays or len(self.strays) >= MOST_STRAYS_SHOWN:
            return
        self.strays[who] = caller
        say(
            f"rank {caller.ranks[0]} on {caller.host} (pid {caller.pid}) of another run was refused: it belongs to "
            f"{printable(caller.identity, LONGEST_IDENTITY)}; this run, {self._identity}, continues"
        )

    def _drop(self, candidate: UnprovenConnection) -> None:
        self.unproven.remove(candidate)
        candidate.connection.close()

    def close(self) -> None:
        """Close the port and every unproven connection."""
        for candidate in self.unproven:
            candidate.connection.close()
        self.unproven.clear()
        self._held.close()


VERSIONS = ("noether", "torch")
MOST_NAMED, LONGEST_VALUE = 4, 80


def settings_differ(
    first: Mapping[str, Any], other: Mapping[str, Any], host: str, two_runs: str
) -> RequestError | None:
    """Return the error for a host whose settings differ from rank 0's; None if they are equal or unknown.

    `first`: rank 0's settings, by dotted name. `other`: those of `host`. `two_runs`: the fix if two runs are intended.
    """
    differ = [name for name in {**first, **other} if first.get(name) != other.get(name)]
    if not (first and other and differ):
        return None
    by_version = any(name in VERSIONS for name in differ)

    def named(settings: Mapping[str, Any]) -> str:
        values = ((name, settings.get(name, "(no such setting)")) for name in differ)
        return first_of([f"{printable(name)}={printable(value, LONGEST_VALUE)}" for name, value in values], MOST_NAMED)

    return RequestError(
        "hosts-differ", f"{host} does not have the settings and versions of rank 0", seen=f"{named(other)} on {host}",
        expected=f"{named(first)}, as on rank 0's host",
        fix=f"the same {'image or environment' if by_version else 'settings'} on every host{two_runs}",
    )  # fmt: skip


def ranks_differ(first: RunInfo, other: RunIdentity, host: str, two_runs: str) -> RequestError | None:
    """Return the error for a host whose world size or device kind is not rank 0's; None if neither differs."""
    own, seen = first.identity, f"{printable(other, LONGEST_IDENTITY)} on {host}"
    expected = f"{own}, as on rank 0's host"
    if own.world_size != other.world_size:
        return RequestError(
            "world-sizes-differ",
            f"the run was started with {own.world_size} ranks on rank 0's host, but with {other.world_size} on {host}",
            seen=seen, expected=expected,
            fix=f"start {own.world_size} ranks in all, with the same command on every host{two_runs}",
        )  # fmt: skip
    if own.device_kind != other.device_kind:
        return RequestError(
            "device-kinds-differ", f"rank 0 computes on {own.device_kind}, but {host} on {other.device_kind}",
            seen=seen, expected=expected,
            fix="noether doctor      (on the host without a GPU; or accelerator=cpu on every host)",
        )  # fmt: skip
    return None


ANSWER_S = 2.0
"""The time (s) for a program on a run's port to answer as rank 0; after that, it counts as another program."""


@dataclass(frozen=True)
class RunPorts:
    """The ports that this process reserves for a run. Only the process with rank 0 of several ranks reserves ports.

    `listener`: accepts the other parent processes; None if there are none. `store`: the port for the ranks' store.
    """

    listener: RunListener | None = None
    store: HeldPort | None = None

    @property
    def store_port(self) -> int:
        """The number of the store's port; 0 if this process has not reserved it."""
        return self.store.endpoint.port if self.store is not None else 0

    @property
    def listener_port(self) -> int:
        """The number of the listener's port; 0 if there is none."""
        return self.listener.port if self.listener is not None else 0

    def close(self) -> None:
        """Close this process's copies of the ports. A rank's copy stays open."""
        for port in (self.listener, self.store):
            if port is not None:
                port.close()


def hold_ports(placement: Placement, run_info: RunInfo) -> RunPorts:
    """Reserve the ports of a run if this process has its rank 0.

    If other parent processes have ranks, the listener gets the endpoint's port, and the store gets any free port. If
    another program has the endpoint's port, and no setting requested this port, the listener gets a free port instead,
    which is published in a folder that all hosts see.

    RequestError: the port is taken, and it was requested or there is no folder in which to publish a different port.
    """
    ranks = tuple(worker.rank for worker in placement.workers)
    if 0 not in ranks or placement.world_size == 1:
        return RunPorts()
    beside = listener_endpoint(placement)
    if len(ranks) == placement.world_size:
        return RunPorts(store=hold_port(beside if placement.endpoint.served_by else placement.endpoint))
    caller = Caller(placement.host, os.getpid(), ranks, run_info.identity, secrets.token_hex(16))
    held = hold_port(beside) if placement.endpoint.served_by else _hold(placement.endpoint, caller, run_info)
    try:
        return RunPorts(RunListener(held, run_info), hold_port(beside))
    except RequestError:
        held.close()
        raise


def _hold(endpoint: Endpoint, caller: Caller, run_info: RunInfo) -> HeldPort:
    published = None
    if run_info.shared_folder is not None and not endpoint.asked_by:
        published = PublishedPort(run_info.shared_folder, run_info.identity)
        published.remove()  # An old file, from a launch whose ranks never met, would mislead this run's ranks.
    try:
        return hold_port(endpoint)
    except RequestError:
        with suppress(OSError):
            address = find_address(endpoint.host)
            there = who_listens(address, endpoint.port, caller, run_info.start_key, ANSWER_S)
            if there is not None and there.identity == run_info.identity:
                raise rank_twice(0, caller.host, run_info.identity) from None
        if published is None:
            raise
    held = hold_port(replace(endpoint, port=0))
    try:
        published.write(held.endpoint.host, held.endpoint.port)
    except OSError:
        held.close()
        return hold_port(endpoint)  # This raises the appropriate error.
    say(
        f"port {endpoint.port} on {endpoint.host} is taken by another program; the ranks meet at port "
        f"{held.endpoint.port}, published in {published.path.parent}"
    )
    return held


def listener_endpoint(place: Placement, port: int = 0) -> Endpoint:
    """Return the listener's endpoint for a run whose launcher serves the store: loopback if there is only one host."""
    host = "127.0.0.1" if place.local_world_size == place.world_size else place.endpoint.host
    return Endpoint(host, port, place.endpoint.asked_by)
