"""Connects the doctor's processes at the run's own address and port.

They exchange lines of JSON over plain TCP, so that a host whose torch is broken can still say so. Rank 0's process
listens on the port that a run would use; it may pass the listening socket on, and the connections stay open.
"""

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST_LINE = 1 << 20
RETRY_SECONDS = 0.3
CONNECT_SECONDS = 3.0


class Unanswered(Exception):
    """The other side did not answer, or is not a doctor."""


class Connection:
    """A TCP connection that carries JSON objects, a line each."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._buffer = b""

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self.socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends an object; `receive` notices a peer that is gone."""
        with contextlib.suppress(OSError):
            self.socket.settimeout(CONNECT_SECONDS)
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float) -> dict[str, Any]:
        """Returns the next object.

        Raises:
            Unanswered: none within `seconds`, the peer is gone, or is another program.
        """
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Unanswered(f"no answer within {seconds:.0f} s")
            self.read(left)
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise Unanswered("another program answers there")
        return message

    def read(self, seconds: float) -> bool:
        """Reads what has arrived, and returns whether a whole line is there.

        Raises:
            Unanswered: the peer is gone, or what it sends is not a line.
        """
        self.socket.settimeout(max(0.001, seconds))
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            return False
        except OSError as error:
            raise Unanswered(f"the connection broke: {error.strerror or error}") from None
        if not data or len(self._buffer) > LONGEST_LINE:
            raise Unanswered("the connection was closed" if not data else "another program answers there")
        self._buffer += data
        return b"\n" in self._buffer

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()


def reach(address: str, port: int, hello: Mapping[str, Any], seconds: float) -> Connection:
    """Connects to rank 0's process and returns the connection once rank 0 has accepted it.

    Raises:
        Unanswered: not accepted within `seconds`; the text says how the attempts ended.
    """
    deadline, why = time.monotonic() + seconds, "never tried"
    while (left := deadline - time.monotonic()) > 0:
        try:
            connection = Connection(socket.create_connection((address, port), timeout=min(left, CONNECT_SECONDS)))
        except OSError as error:
            why = _why(error)
            time.sleep(min(RETRY_SECONDS, max(0.0, deadline - time.monotonic())))
            continue
        connection.send(hello)
        try:
            answer = connection.receive(max(0.1, deadline - time.monotonic()))
        except Unanswered as error:
            connection.close()
            why = str(error)
            if "another program" in why:
                break
            time.sleep(RETRY_SECONDS)
            continue
        if answer.get("do") == "welcome":
            return connection
        connection.close()
        raise Unanswered(str(answer.get("why", "another program answers there")))
    raise Unanswered(why)


def _why(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nobody listens there"
    if isinstance(error, TimeoutError):
        return "no answer at all: the host is down, or a firewall drops what is sent there"
    return error.strerror or str(error)


@dataclass(frozen=True)
class Peer:
    """Another process of the run, as its hello says."""

    connection: Connection
    host: str
    node_rank: int
    ranks: tuple[int, ...]


def gather_peers(
    listening: socket.socket, run: Sequence[Any], own_ranks: Sequence[int], world_size: int, seconds: float
) -> tuple[list[Peer], list[str]]:
    """Accepts the other processes of a run until all ranks are there or the time is up.

    Args:
        listening: bound and listening.
        run: what a hello's "run" must equal for it to be of this run.
        own_ranks: the ranks that this process answers for.
        world_size: how many ranks there are to be.
        seconds: how long to wait.

    Returns:
        The peers that came, and a line for each visitor that was sent away.
    """
    deadline, peers, strangers = time.monotonic() + seconds, list[Peer](), list[str]()
    waiting: dict[int, Connection] = {}
    here = set(own_ranks)
    while len(here) < world_size and (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([listening.fileno(), *waiting], [], [], min(left, 1.0))
        for descriptor in ready:
            if descriptor == listening.fileno():
                accepted, _ = listening.accept()
                waiting[accepted.fileno()] = Connection(accepted)
                continue
            entry = waiting[descriptor]
            try:
                if not entry.read(0.1):
                    continue
                hello = entry.receive(0.1)
                peer = Peer(entry, hello["host"], hello["node_rank"], tuple(hello["ranks"]))
            except (Unanswered, KeyError, TypeError):
                del waiting[descriptor]
                entry.close()
                continue
            del waiting[descriptor]
            refusal = _refusal(hello, run, peer.ranks, here, world_size)
            if refusal:
                strangers.append(f"a process on {peer.host}: {refusal}")
                entry.send({"do": "refuse", "why": refusal})
                entry.close()
                continue
            entry.send({"do": "welcome"})
            here |= set(peer.ranks)
            peers.append(peer)
    for entry in waiting.values():
        entry.close()
    return sorted(peers, key=lambda peer: peer.ranks), strangers


def _refusal(hello: Mapping[str, Any], run: Sequence[Any], ranks: Sequence[int], here: set[int], world: int) -> str:
    if list(hello.get("run", ())) != list(run):
        return f"it belongs to another run: {hello.get('run')} and not {list(run)}"
    twice = sorted(here & set(ranks))
    if twice:
        return f"rank {twice[0]} is there already: two processes were given the same rank"
    return f"rank {max(ranks)} of {world}" if max(ranks, default=0) >= world else ""


def ask_peers(
    peers: Sequence[Peer], request: Mapping[str, Any], own: Callable[[], dict[str, Any]], seconds: float
) -> list[dict[str, Any]]:
    """Sends a request to all, answers it for this process by `own`, and returns the answers, the own one first.

    A peer that does not answer within `seconds` has {"lost": why} for an answer.
    """
    deadline = time.monotonic() + seconds
    for peer in peers:
        peer.connection.send(request)
    answers = [own()]
    for peer in peers:
        try:
            answers.append(peer.connection.receive(max(0.05, deadline - time.monotonic())))
        except Unanswered as error:
            answers.append({"lost": str(error)})
    return answers


def clock_offset(peer: Peer, seconds: float = 2.0) -> tuple[float, float]:
    """Returns how far a peer's clock is ahead of ours and how uncertain that is, in seconds.

    Half the time of a round trip bounds the error (RFC 5905, the offset of one exchange).

    Raises:
        Unanswered: the peer is gone.
    """
    sent = time.time()
    peer.connection.send({"do": "clock"})
    answer = peer.connection.receive(seconds)
    back = time.time()
    return float(answer["time"]) - (sent + back) / 2, (back - sent) / 2
