"""Connects the doctor's processes at the run's own address and port.

They exchange lines of JSON over plain TCP, so that a host with a broken torch can still report it. Rank 0 listens on
the port that a run would use. It may hand the listening socket on later: the connections stay open.
"""

import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noether.common.json_lines import Garbled, JsonLines, Unanswered

RETRY_SECONDS = 0.3
CONNECT_SECONDS = 3.0
MOST_WAITING = 64
"""Most connections that have not sent their hello yet; beyond this number the oldest is closed."""


def reach(address: str, port: int, hello: Mapping[str, Any], seconds: float) -> JsonLines:
    """Connects to rank 0 and returns the connection once rank 0 has accepted it.

    Raises:
        Unanswered: not accepted within `seconds`; the text says why the last attempt failed.
    """
    deadline, why = time.monotonic() + seconds, "no time left to try"
    while (left := deadline - time.monotonic()) > 0:
        try:
            connection = JsonLines(socket.create_connection((address, port), timeout=min(left, CONNECT_SECONDS)))
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
            if isinstance(error, Garbled):
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
        return "connection refused: nothing is listening there"
    if isinstance(error, TimeoutError):
        return "no answer at all: the host is down, or a firewall drops the packets"
    return error.strerror or str(error)


@dataclass(frozen=True)
class OtherProcess:
    """Another process of the run, as described by its hello."""

    connection: JsonLines
    host: str
    node_rank: int
    ranks: tuple[int, ...]


def gather_peers(
    listening: socket.socket, run: Sequence[Any], own_ranks: Sequence[int], world_size: int, seconds: float
) -> tuple[list[OtherProcess], list[str]]:
    """Accepts the other processes of a run until all ranks have connected or the time is up.

    `run` identifies this run: the "run" of a hello must equal it. `listening` is bound and listens.

    Returns:
        The peers that connected, and a line for each process that was refused.
    """
    deadline, peers, strangers = time.monotonic() + seconds, list[OtherProcess](), list[str]()
    waiting: dict[int, JsonLines] = {}
    here = set(own_ranks)
    while len(here) < world_size and (left := deadline - time.monotonic()) > 0:
        poll = select.poll()  # select() cannot wait for descriptors above 1,023.
        for descriptor in (listening.fileno(), *waiting):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(1000 * min(left, 1.0)):
            if descriptor == listening.fileno():
                _accept(listening, waiting)
            elif descriptor in waiting:
                connection = waiting[descriptor]
                messages, alive = connection.read()
                if not messages and alive:
                    continue
                del waiting[descriptor]
                other = _other_process(connection, messages)
                refusal = _refusal(messages[0], run, other.ranks, here, world_size) if other else ""
                if other is None or refusal:
                    if other is not None:
                        strangers.append(f"a process on {other.host}: {refusal}")
                        connection.send({"do": "refuse", "why": refusal})
                    connection.close()
                    continue
                connection.send({"do": "welcome"})
                here |= set(other.ranks)
                peers.append(other)
    for entry in waiting.values():
        entry.close()
    return sorted(peers, key=lambda peer: peer.ranks), strangers


def _accept(listening: socket.socket, waiting: dict[int, JsonLines]) -> None:
    accepted, _ = listening.accept()
    waiting[accepted.fileno()] = JsonLines(accepted)
    if len(waiting) > MOST_WAITING:
        waiting.pop(next(iter(waiting))).close()


def _other_process(connection: JsonLines, messages: Sequence[Mapping[str, Any]]) -> OtherProcess | None:
    """Returns the process that sent a hello, or None if the message is not a hello."""
    try:
        hello = messages[0]
        return OtherProcess(connection, str(hello["host"]), int(hello["node_rank"]), tuple(map(int, hello["ranks"])))
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def _refusal(hello: Mapping[str, Any], run: Sequence[Any], ranks: Sequence[int], here: set[int], world: int) -> str:
    if list(hello.get("run", ())) != list(run):
        return f"it belongs to another run: {hello.get('run')}, not {list(run)}"
    twice = sorted(here & set(ranks))
    if twice:
        return f"rank {twice[0]} has already connected: two processes were given the same rank"
    return f"rank {max(ranks)} of {world}" if max(ranks, default=0) >= world else ""


def ask_peers(
    peers: Sequence[OtherProcess], request: Mapping[str, Any], own: Callable[[], dict[str, Any]], seconds: float
) -> list[dict[str, Any]]:
    """Sends a request to all peers and returns the answers: first this process's own, from `own()`, then the peers'.

    The answer of a peer that does not answer within `seconds` is {"lost": why}.
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


def clock_offset(peer: OtherProcess, seconds: float = 2.0) -> tuple[float, float]:
    """Returns how far a peer's clock is ahead of ours, and the uncertainty of that, both in seconds.

    The error is at most half of the round-trip time (RFC 5905, the offset of one exchange).

    Raises:
        Unanswered: the peer did not answer.
    """
    sent = time.time()
    peer.connection.send({"do": "clock"})
    answer = peer.connection.receive(seconds)
    back = time.time()
    return float(answer["time"]) - (sent + back) / 2, (back - sent) / 2
