"""Connects the doctor's processes at the run's own address and port.

They exchange lines of JSON over plain TCP, so that a host with a broken torch can still report it. Rank 0 listens on
the port that a run would use. It may hand the listening socket on later: the connections stay open.
"""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
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
        else:
            connection.send(hello)
            try:
                answer = connection.receive(max(0.1, deadline - time.monotonic()))
                if answer.get("do") == "welcome":
                    return connection
                raise Garbled(str(answer.get("why", "another program answers there")))
            except Unanswered as error:
                connection.close()
                if isinstance(error, Garbled):
                    raise
                why = str(error)
        time.sleep(min(RETRY_SECONDS, max(0.0, deadline - time.monotonic())))
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
    run: Any


def gather_peers(
    listening: socket.socket, run: Sequence[Any], own_ranks: Sequence[int], world_size: int, seconds: float
) -> tuple[list[OtherProcess], list[str]]:
    """Accepts the other processes of a run until all ranks have connected or the time is up.

    `run` identifies this run: the "run" of a hello must equal it. `listening` is bound and listens. A line is returned
    for each process that was refused, beside the peers.
    """
    deadline, peers, strangers = time.monotonic() + seconds, list[OtherProcess](), list[str]()
    waiting: dict[Any, JsonLines] = {}
    here = set(own_ranks)
    while len(here) < world_size and (left := deadline - time.monotonic()) > 0:
        for ready in wait([listening, *waiting], left):
            if ready is listening:
                accepted, _ = listening.accept()
                waiting[accepted] = JsonLines(accepted)
                if len(waiting) > MOST_WAITING:
                    waiting.pop(next(iter(waiting))).close()
                continue
            connection = waiting.get(ready)
            messages, alive = connection.read() if connection is not None else ([], True)
            if connection is None or (alive and not messages):
                continue
            del waiting[ready]
            other = _other_process(connection, messages)
            refusal = _refusal(other, run, here, world_size) if other is not None else ""
            if other is not None and not refusal:
                connection.send({"do": "welcome"})
                here |= set(other.ranks)
                peers.append(other)
                continue
            if other is not None:
                strangers.append(f"a process on {other.host}: {refusal}")
                connection.send({"do": "refuse", "why": refusal})
            connection.close()
    for left_over in waiting.values():
        left_over.close()
    return sorted(peers, key=lambda peer: peer.ranks), strangers


def _other_process(connection: JsonLines, messages: Sequence[Mapping[str, Any]]) -> OtherProcess | None:
    """Returns the process that sent a hello, or None if the message is not a hello."""
    try:
        hello = messages[0]
        ranks = tuple(map(int, hello["ranks"]))
        return OtherProcess(connection, str(hello["host"]), int(hello["node_rank"]), ranks, hello.get("run"))
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def _refusal(other: OtherProcess, run: Sequence[Any], here: set[int], world: int) -> str:
    if other.run != list(run):
        return f"it belongs to another run: {other.run}, not {list(run)}"
    twice = sorted(here & set(other.ranks))
    if twice:
        return f"rank {twice[0]} has already connected: two processes were given the same rank"
    return f"rank {max(other.ranks)} of {world}" if max(other.ranks, default=0) >= world else ""


def ask_all(
    peers: Sequence[OtherProcess], request: dict[str, Any], own: Callable[[dict[str, Any]], Any], seconds: float
) -> list[dict[str, Any]]:
    """Returns what all processes answer to a request: first this one, as `own` answers, then the peers.

    The answer of a peer that does not answer within `seconds` is {"lost": why}, with its host and ranks.
    """
    deadline = time.monotonic() + seconds
    for peer in peers:
        peer.connection.send(request)
    answers = [own(request)]
    for peer in peers:
        try:
            answers.append(peer.connection.receive(max(0.05, deadline - time.monotonic())))
        except Unanswered as error:
            answers.append({"lost": str(error), "host": peer.host, "ranks": peer.ranks})
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
