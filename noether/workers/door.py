"""The door of a run: the port where the launcher of rank 0 accepts the other launchers of the run, and no one else.

A client speaks first, and must prove within a few seconds that it is of this run. Only a few connections may be
unproven at a time: when more come, the oldest are closed, so that idle connections can neither use up the launcher's
descriptors nor keep a launcher of the run out.
"""

import socket
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from noether.common.json_lines import JsonLines
from noether.environments.endpoint import HeldPort, hold_port
from noether.environments.identity import RunIdentity
from noether.environments.placement import Endpoint, Placement
from noether.environments.published_port import PublishedPort
from noether.errors import RequestError
from noether.workers.context import RunTerms
from noether.workers.handshake import Caller, is_proof, new_nonce, proof

MOST_VISITORS = 64
VISIT_S = 10.0
MOST_ACCEPTED = 256
"""How many connections are accepted at a time, before the launcher looks after its run again."""

LONGEST_HELLO = 1 << 14
MOST_STRAYS_SHOWN = 20


@dataclass
class Visitor:
    """A connection that has not proved to be of this run."""

    connection: JsonLines
    came: float
    caller: Caller | None = None
    nonce: str = field(default_factory=new_nonce)


@dataclass(frozen=True)
class Guest:
    """A launcher that has proved to be of this run."""

    connection: JsonLines
    caller: Caller


class Door:
    """Accepts connections on a port that is held, and returns those that are of the run."""

    def __init__(self, held: HeldPort, identity: RunIdentity, key: str) -> None:
        self._held, self._identity, self._key = held, identity, key
        held.socket.setblocking(False)
        self.visitors: list[Visitor] = []
        self._strays: set[tuple[str, int]] = set()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._held.endpoint.port

    def descriptors(self) -> list[socket.socket]:
        """Returns the sockets to wait for: the port's, and those of unproven connections."""
        return [self._held.socket, *(visitor.connection.socket for visitor in self.visitors)]

    def tend(self, taken: Collection[int]) -> list[Guest]:
        """Accepts connections, reads what they sent, and closes those that took too long; returns the new guests.

        Args:
            taken: ranks that a launcher answers for already.
        """
        now = time.monotonic()
        self._accept(now)
        guests: list[Guest] = []
        for visitor in list(self.visitors):
            messages, alive = visitor.connection.read()
            for message in messages[:2]:
                if visitor.caller is None:
                    alive = alive and self._hear(visitor, message)
                elif is_proof(message.get("proof"), self._key, "guest", visitor.nonce, visitor.caller.nonce):
                    self.visitors.remove(visitor)
                    if self._welcome(visitor, {*taken, *(rank for guest in guests for rank in guest.caller.ranks)}):
                        guests.append(Guest(visitor.connection, visitor.caller))
                    break
                else:
                    alive = False
            if visitor in self.visitors and (not alive or now - visitor.came > VISIT_S):
                self._send_away(visitor)
        return guests

    def _accept(self, now: float) -> None:
        for _ in range(MOST_ACCEPTED):
            try:
                connection, _ = self._held.socket.accept()
            except OSError:
                return  # Nobody waits, or no descriptor is free until a visitor has gone.
            self.visitors.append(Visitor(JsonLines(connection, LONGEST_HELLO), now))
            if len(self.visitors) > MOST_VISITORS:
                silent = next((visitor for visitor in self.visitors if visitor.caller is None), self.visitors[0])
                self._send_away(silent)

    def _hear(self, visitor: Visitor, message: dict[str, object]) -> bool:
        """Takes a visitor's first line, and answers it; returns whether it may stay."""
        try:
            caller = Caller.from_message(message)
        except ValueError:
            return False
        answer = {
            "run": self._identity.as_text(),
            "nonce": visitor.nonce,
            "proof": proof(self._key, "host", caller.nonce, visitor.nonce),
        }
        if not visitor.connection.send(answer):
            return False
        if caller.identity != self._identity:
            self._say_stray(caller)
            return False
        visitor.caller = caller
        return max(caller.ranks) < self._identity.world_size

    def _say_stray(self, caller: Caller) -> None:
        who = (caller.host, caller.pid)
        if who in self._strays or len(self._strays) >= MOST_STRAYS_SHOWN:
            return
        self._strays.add(who)
        print(
            f"noether: rank {caller.ranks[0]} on {caller.host} (pid {caller.pid}) of another run was refused: it is of "
            f"{caller.identity.printable()}; this run is {self._identity}, and goes on",
            file=sys.stderr,
            flush=True,
        )

    def _welcome(self, visitor: Visitor, taken: Collection[int]) -> bool:
        caller = visitor.caller
        assert caller is not None
        double = sorted(set(taken) & set(caller.ranks))
        if not double:
            return visitor.connection.send({"welcome": 1})
        visitor.connection.send({"double": double[0]})
        visitor.connection.close()
        return False

    def _send_away(self, visitor: Visitor) -> None:
        self.visitors.remove(visitor)
        visitor.connection.close()

    def close(self) -> None:
        """Closes every unproven connection, and the port."""
        for visitor in self.visitors:
            visitor.connection.close()
        self.visitors.clear()
        self._held.close()


def open_door(placement: Placement, terms: RunTerms) -> Door | None:
    """Opens the door where this process answers for rank 0 and other launchers for other ranks; else returns None.

    Where nobody asked for the port that all of them work out, and another program has it, a free one is taken and
    published in a folder that all hosts see.

    Raises:
        RequestError: the port is taken, and it was asked for, or there is no folder to publish another in.
    """
    ranks = {worker.rank for worker in placement.workers}
    if 0 not in ranks or len(ranks) == placement.world_size:
        return None
    return Door(_hold(placement, terms), terms.identity, terms.key)


def _hold(placement: Placement, terms: RunTerms) -> HeldPort:
    endpoint = placement.endpoint
    if endpoint.served_by:
        return hold_port(beside_served(placement))
    published = None
    if terms.shared_folder is not None and not endpoint.asked_by:
        published = PublishedPort(terms.shared_folder, terms.identity)
        published.remove()  # Of an attempt whose ranks never met; they would look for it there.
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


def beside_served(placement: Placement) -> Endpoint:
    """Returns where to listen beside a store that a launcher serves: a free port, on loopback where that is enough."""
    host = "127.0.0.1" if placement.local_world_size == placement.world_size else placement.endpoint.host
    return Endpoint(host, 0)
