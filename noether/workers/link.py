"""How do the launchers of one run, on their hosts, hear of each other's ranks: JSON lines over TCP, and heartbeats.

The launcher that answers for rank 0 is the hub. The others connect to it as soon as one of their workers has read from
the run's store where it listens. Every launcher tells the hub how its ranks ended; at the first failure the hub asks
all of them what their other ranks do, decides who failed first, and tells them. A launcher that goes without a
good-bye, or is silent for too long, is lost with its ranks; one that loses the hub ends its own.

Launchers, not ranks: they hold no lock that a stuck rank could keep, see its death and its exit code, and can end it
when it is stopped. No torch here.
"""

import contextlib
import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from noether.environments.endpoint import HeldPort, hold_port
from noether.environments.placement import Endpoint
from noether.workers.context import WorkerReport
from noether.workers.rank_state import BEFORE_ALL, Standing

# A launcher that cannot be told something for this long is not heard any more either.
SEND_S = 2
# A line is a report of at most 10,000 characters, escaped; whoever sends more is no launcher.
MOST_BYTES = 1 << 18


@dataclass(frozen=True)
class Doing:
    """What one rank does while another has failed: in words, and its Python stack where it gave one."""

    rank: int
    host: str
    phrase: str
    stack: str = ""
    standing: Standing = BEFORE_ALL
    stopped: bool = False


@dataclass
class Peer:
    """Another launcher, as this one knows it."""

    socket: socket.socket
    heard: float
    host: str = ""
    ranks: tuple[int, ...] = ()
    greeted: bool = False
    answered: bool = False
    received: bytes = b""

    def send(self, message: Mapping[str, Any]) -> bool:
        """Sends a line; returns whether it went."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Returns the whole lines that have come, and whether the other side is still there."""
        alive = True
        try:
            while True:
                part = self.socket.recv(1 << 16, socket.MSG_DONTWAIT)
                alive = bool(part)
                self.received += part
                if not alive or len(self.received) > MOST_BYTES:
                    break
        except BlockingIOError:
            pass
        except OSError:
            alive = False
        *lines, self.received = self.received.split(b"\n")
        messages: list[dict[str, Any]] = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                return messages, False  # Not one of ours.
            messages.append(message)
        return messages, alive and len(self.received) <= MOST_BYTES


@dataclass
class Link:
    """What the hub and the others have in common: peers, heartbeats, and what was heard.

    `reports` are those of ranks elsewhere that nobody has taken yet; `doing` is what the ranks elsewhere do, once
    asked; `asked` says that the hub wants to know; `verdict` is its decision.
    """

    own_ranks: tuple[int, ...]
    host: str
    silence_s: float
    peers: list[Peer] = field(default_factory=list)
    reports: list[WorkerReport] = field(default_factory=list)
    doing: dict[int, Doing] = field(default_factory=dict)
    asked: bool = False
    verdict: WorkerReport | None = None
    _beaten: float = 0.0

    def __post_init__(self) -> None:
        self._beaten = self._tended = time.monotonic()

    @property
    def beat_s(self) -> float:
        """Seconds between two heartbeats."""
        return min(5.0, max(0.2, self.silence_s / 5))

    def descriptors(self) -> list[socket.socket]:
        """Returns what becomes readable when there is something to tend."""
        return [peer.socket for peer in self.peers]

    def tend(self) -> None:
        """Reads what has come, sends what is due, and notes who is lost. Call it at least every `beat_s` seconds."""
        now = time.monotonic()
        if now - self._tended > 2 * self.beat_s + 1:
            # This process was stopped itself, as a suspended job is: what the others said meanwhile is yet unread.
            for peer in self.peers:
                peer.heard = now
        self._tended = now
        beat = now - self._beaten >= self.beat_s
        if beat:
            self._beaten = now
        for peer in list(self.peers):
            messages, alive = peer.read()
            if messages:
                peer.heard = now
            for message in messages:
                alive = self._take(peer, message) and alive
            silent = now - peer.heard > self.silence_s
            if alive and not silent and beat and peer.greeted:
                alive = peer.send({"beat": 1})
            if not alive or silent:
                self._drop(peer, silent)

    def _take(self, peer: Peer, message: dict[str, Any]) -> bool:
        raise NotImplementedError

    def _drop(self, peer: Peer, silent: bool) -> None:
        self.peers.remove(peer)
        peer.socket.close()

    def close(self) -> None:
        """Hangs up."""
        for peer in self.peers:
            peer.socket.close()
        self.peers.clear()


class Hub(Link):
    """The link of the launcher that answers for rank 0: it listens, and decides."""

    def __init__(self, own_ranks: Collection[int], host: str, endpoint: Endpoint, silence_s: float) -> None:
        super().__init__(tuple(own_ranks), host, silence_s)
        self.secret = secrets.token_hex(16)
        self._held: HeldPort = hold_port(Endpoint(endpoint.host, 0))
        self._held.socket.setblocking(False)
        self.finished: set[int] = set()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._held.endpoint.port

    def descriptors(self) -> list[socket.socket]:
        """Returns what becomes readable when there is something to tend."""
        return [self._held.socket, *super().descriptors()]

    def tend(self) -> None:
        """Accepts who knocks, then as any link."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._held.socket.accept()
                _prepare(connection)
                self.peers.append(Peer(connection, time.monotonic()))
        super().tend()

    @property
    def remote_ranks(self) -> list[int]:
        """The ranks whose launchers are connected."""
        return sorted(rank for peer in self.peers for rank in peer.ranks)

    def is_waiting(self) -> bool:
        """Whether other launchers have not said good-bye yet."""
        return any(peer.greeted for peer in self.peers)

    def ask(self) -> None:
        """Asks the other launchers what their ranks do."""
        self.asked = True
        self._to_all({"ask": 1})

    def silent_ranks(self) -> list[int]:
        """Returns the ranks elsewhere whose launchers were asked and have not answered."""
        return sorted(rank for peer in self.peers if not peer.answered for rank in peer.ranks)

    def announce(self, verdict: WorkerReport) -> None:
        """Tells every launcher who failed first."""
        self._to_all({"verdict": asdict(verdict)})

    def _to_all(self, message: Mapping[str, Any]) -> None:
        for peer in list(self.peers):
            if peer.greeted and not peer.send(message):
                self._drop(peer, silent=False)

    def _take(self, peer: Peer, message: dict[str, Any]) -> bool:
        if not peer.greeted:
            if not hmac.compare_digest(str(message.get("hello", "")), self.secret):
                return False
            peer.greeted, peer.host, peer.ranks = True, str(message["host"]), tuple(map(int, message["ranks"]))
            if self.asked:
                peer.send({"ask": 1})
        elif "report" in message:
            self.reports.append(_report(message["report"]))
        elif "doing" in message:
            peer.answered = True
            for entry in message["doing"]:
                self.doing[int(entry["rank"])] = _doing(entry)
        elif "bye" in message:
            peer.ranks = ()  # All its ranks have ended well: nobody is lost when it hangs up.
        return True

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
                self.reports.append(WorkerReport(rank, peer.host, 0, time.time(), "lost", what, "", 1))

    def close(self) -> None:
        """Hangs up, and lets go of the port."""
        super().close()
        self._held.close()


class Spoke(Link):
    """The link of a launcher that does not answer for rank 0."""

    def __init__(
        self, own_ranks: Collection[int], host: str, address: tuple[str, int], secret: str, silence_s: float
    ) -> None:
        super().__init__(tuple(own_ranks), host, silence_s)
        self.hub_host = address[0]
        connection = socket.create_connection(address, timeout=max(5.0, silence_s))
        _prepare(connection)
        hub = Peer(connection, time.monotonic(), address[0], (0,), greeted=True)
        hub.send({"hello": secret, "host": host, "ranks": list(own_ranks)})
        self.peers.append(hub)

    def tell(self, report: WorkerReport) -> None:
        """Tells the hub how a rank ended."""
        self._send({"report": asdict(report)})

    def answer(self, doing: Sequence[Doing]) -> None:
        """Answers what the hub asked."""
        self.asked = False
        self._send({"doing": [asdict(entry) for entry in doing]})

    def bye(self) -> None:
        """Says that all ranks here ended well."""
        self._send({"bye": 1})

    def _send(self, message: Mapping[str, Any]) -> None:
        for hub in list(self.peers):
            if not hub.send(message):
                self._drop(hub, silent=False)

    def _take(self, peer: Peer, message: dict[str, Any]) -> bool:
        if "ask" in message:
            self.asked = True
        elif "verdict" in message:
            self.verdict = _report(message["verdict"])
        return True

    def _drop(self, peer: Peer, silent: bool) -> None:
        super()._drop(peer, silent)
        if self.verdict is None:
            what = (
                f"has not been heard of for {self.silence_s:g} s: its host is down, or this one is cut off from it"
                if silent
                else "is gone without a word, and its launcher with it (killed?); it served the store of the run"
            )
            self.reports.append(WorkerReport(0, self.hub_host, 0, time.time(), "lost", what, "", 1))


def _prepare(connection: socket.socket) -> None:
    connection.setblocking(True)  # Reads say MSG_DONTWAIT, writes have a limit.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_S, 0))
    connection.set_inheritable(False)
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _report(fields: Mapping[str, Any]) -> WorkerReport:
    # Clocks differ between hosts: what counts is when it was heard here.
    return WorkerReport(**{**fields, "standing": Standing(**fields["standing"]), "time": time.time()})


def _doing(fields: Mapping[str, Any]) -> Doing:
    return Doing(**{**fields, "standing": Standing(**fields["standing"])})
