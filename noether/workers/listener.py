"""The listener of a run: the port where the parent of rank 0 accepts the other parents of the run, and no one else.

A client speaks first, and must prove within a few seconds that it is of this run. When many connections are unproven,
the oldest are closed: idle ones can neither use up the parent's descriptors nor keep a parent of the run out.
"""

import math
import secrets
import socket
import sys
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import wait

from noether.common.json_lines import LONGEST_LINE, JsonLines
from noether.environments.endpoint import HeldPort, hold_port
from noether.environments.placement import Endpoint, Placement
from noether.environments.published_port import PublishedPort
from noether.errors import RequestError
from noether.workers.connector import TELLING_QUIET_S, TELLING_S, say_telling
from noether.workers.context import RunInfo, WorkerReport
from noether.workers.handshake import LONGEST_IDENTITY, Caller, is_proof, printable, proof, refusal_from, refusal_line
from noether.workers.link import Peer
from noether.workers.settings_differ import settings_differ
from noether.workers.worker import failure_report

MOST_UNPROVEN = 64
PROOF_LIMIT_S = 10.0
MOST_ACCEPTED = 256
"""How many connections are accepted at a time, before the parent process looks after its run again."""

LONGEST_HELLO = 1 << 14
MOST_STRAYS_SHOWN = 20


@dataclass
class UnprovenConnection:
    """A connection that has not proved to be of this run."""

    connection: JsonLines
    came: float
    caller: Caller | None = None
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))


class RunListener:
    """Accepts connections on a port that is held, and returns those that are of the run.

    `refusals` are of parent processes that were started with the run and will not join it; `came` are the ranks
    of each that has proved to be of it, or has been told why there is no run to join.
    """

    def __init__(self, held: HeldPort, run_info: RunInfo) -> None:
        self._held, self._identity, self._key = held, run_info.identity, run_info.key
        self._start_key, self._settings = run_info.start_key, run_info.settings
        self._own_refusal: WorkerReport | None = None
        self.refusals: list[WorkerReport] = []
        self.came: set[tuple[int, ...]] = set()
        self.port = held.endpoint.port
        held.socket.setblocking(False)
        self.unproven: list[UnprovenConnection] = []
        self.strays: dict[tuple[str, int], Caller] = {}

    def descriptors(self) -> list[socket.socket]:
        """Returns the sockets to wait for: the port's, and those of unproven connections."""
        return [self._held.socket, *(candidate.connection.socket for candidate in self.unproven)]

    def poll(self, taken: Collection[int]) -> list[Peer]:
        """Accepts connections, reads what they sent, and closes those that took too long; returns new parent processes.

        A parent process that claims a rank of `taken` is refused.
        """
        now = time.monotonic()
        self._accept(now)
        accepted: list[Peer] = []
        for candidate in list(self.unproven):
            messages, alive = candidate.connection.read()
            for message in messages[:2]:
                if candidate.caller is None:
                    alive = alive and self._read_hello(candidate, message)
                elif candidate.caller.identity == self._identity and is_proof(
                    message.get("proof"), self._key, "client", candidate.nonce, candidate.caller.nonce
                ):
                    self.unproven.remove(candidate)
                    candidate.connection.longest_line = LONGEST_LINE
                    peer = Peer(candidate.connection, now, candidate.caller.host, candidate.caller.ranks)
                    double = {*taken, *(rank for other in accepted for rank in other.ranks)} & set(peer.ranks)
                    if double:
                        peer.connection.send({"double": min(double)})
                        peer.connection.close()
                    elif peer.connection.send({"welcome": 1}):
                        accepted.append(peer)
                        self.came.add(peer.ranks)
                    break
                else:
                    self._take_refusal(candidate, candidate.caller, message)
                    alive = False
            if candidate in self.unproven and (not alive or now - candidate.came > PROOF_LIMIT_S):
                self._drop(candidate)
        return accepted

    def _accept(self, now: float) -> None:
        for _ in range(MOST_ACCEPTED):
            try:
                connection, _ = self._held.socket.accept()
            except OSError:
                return  # Nobody waits, or no descriptor is free until a connection is closed.
            self.unproven.append(UnprovenConnection(JsonLines(connection, LONGEST_HELLO), now))
            if len(self.unproven) > MOST_UNPROVEN:
                silent = next((candidate for candidate in self.unproven if candidate.caller is None), self.unproven[0])
                self._drop(silent)

    def _read_hello(self, candidate: UnprovenConnection, message: dict[str, object]) -> bool:
        """Answers a connection's first line; returns whether to keep the connection."""
        try:
            caller = Caller.from_message(message)
        except ValueError:
            return False
        answer = {
            "run": self._identity.as_text(),
            "nonce": candidate.nonce,
            "proof": proof(self._key, "server", caller.nonce, candidate.nonce),
        }
        is_stray = not caller.identity.is_of_same_start(self._identity)
        if self._own_refusal is not None and not is_stray:
            self.came.add(caller.ranks)
            answer |= refusal_line(self._own_refusal, self._start_key, caller.nonce, candidate.nonce)
        if not candidate.connection.send(answer):
            return False
        if is_stray:
            self._say_stray(caller)
            return False
        candidate.caller = caller
        fits = caller.identity != self._identity or max(caller.ranks) < self._identity.world_size
        return fits and self._own_refusal is None

    def refuse_all(self, report: WorkerReport, own: int, limit_s: float) -> None:
        """Tells all other parent processes of this start, as they come, why there is no run to join.

        Returns once all have been told, which have as many ranks each as the `own`, or after `limit_s` seconds.
        """
        limit_s, self._own_refusal = min(limit_s, TELLING_S), report
        began, quiet_s = time.monotonic(), TELLING_QUIET_S
        others = math.ceil(self._identity.world_size / own) - 1
        while (len(self.came) < others or self.unproven) and (waited_s := time.monotonic() - began) < limit_s:
            if waited_s >= quiet_s:
                quiet_s = limit_s
                say_telling(report, limit_s - waited_s)
            wait(self.descriptors(), min(1.0, limit_s - waited_s))
            for peer in self.poll(()):
                peer.connection.send({"verdict": asdict(report)})

    def _take_refusal(self, candidate: UnprovenConnection, caller: Caller, message: dict[str, object]) -> None:
        refusal = refusal_from(message, self._start_key, candidate.nonce, caller.nonce)
        if refusal is not None:
            if isinstance(settings := message.get("settings"), dict):
                differ = settings_differ(self._settings, settings, caller.host)
                refusal = failure_report(differ, refusal.rank, refusal.host)
                candidate.connection.send(refusal_line(refusal, self._start_key, caller.nonce, candidate.nonce))
            self.came.add(caller.ranks)
            self.refusals.append(refusal)

    def _say_stray(self, caller: Caller) -> None:
        who = (caller.host, caller.pid)
        if who in self.strays or len(self.strays) >= MOST_STRAYS_SHOWN:
            return
        self.strays[who] = caller
        print(
            f"noether: rank {caller.ranks[0]} on {caller.host} (pid {caller.pid}) of another run was refused: it is of "
            f"{printable(caller.identity, LONGEST_IDENTITY)}; this run is {self._identity}, and continues",
            file=sys.stderr,
            flush=True,
        )

    def _drop(self, candidate: UnprovenConnection) -> None:
        self.unproven.remove(candidate)
        candidate.connection.close()

    def close(self) -> None:
        """Closes every unproven connection, and the port."""
        for candidate in self.unproven:
            candidate.connection.close()
        self.unproven.clear()
        self._held.close()


def open_listener(placement: Placement, run_info: RunInfo) -> RunListener | None:
    """Opens the listener where this process answers for rank 0 and other parents for other ranks; else returns None.

    Where nobody asked for the port that all of them work out, and another program has it, a free one is taken and
    published in a folder that all hosts see.

    Raises:
        RequestError: the port is taken, and it was asked for, or there is no folder to publish another in.
    """
    ranks = {worker.rank for worker in placement.workers}
    if 0 not in ranks or len(ranks) == placement.world_size:
        return None
    return RunListener(_hold(placement, run_info), run_info)


def _hold(placement: Placement, run_info: RunInfo) -> HeldPort:
    endpoint = placement.endpoint
    if endpoint.served_by:
        return hold_port(listener_endpoint(placement))
    published = None
    if run_info.shared_folder is not None and not endpoint.asked_by:
        published = PublishedPort(run_info.shared_folder, run_info.identity)
        published.remove()  # Of a start whose ranks never met; they would look for it there.
    try:
        return hold_port(endpoint)
    except RequestError:
        if published is None:
            raise
    held = hold_port(replace(endpoint, port=0))
    try:
        published.write(held.endpoint.host, held.endpoint.port)
    except OSError:
        held.close()
        return hold_port(endpoint)  # It refuses in the words that fit.
    print(
        f"noether: port {endpoint.port} on {endpoint.host} is taken by another program; the ranks meet at port "
        f"{held.endpoint.port}, published in {published.path.parent}",
        file=sys.stderr,
        flush=True,
    )
    return held


def listener_endpoint(place: Placement, port: int = 0) -> Endpoint:
    """Returns where the listener is beside a store that a launcher serves: on loopback where that is enough."""
    host = "127.0.0.1" if place.local_world_size == place.world_size else place.endpoint.host
    return Endpoint(host, port, place.endpoint.asked_by)
