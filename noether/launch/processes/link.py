"""Connects the parent processes of one run by JSON lines and heartbeats over TCP, without torch."""

import contextlib
import hashlib
import hmac
import json
import math
import socket
import struct
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import wait
from typing import Any, get_args

from noether.common.sanitize import shown_name, shown_text
from noether.launch.detect.identity import RunIdentity
from noether.launch.detect.placement import Endpoint
from noether.launch.processes.context import (
    REPORTED_WORDS,
    MeetingPoint,
    RankPosition,
    ReportKind,
    RunInfo,
    WorkerReport,
)
from noether.launch.processes.worker import failing_code, shortened

SEND_S = 2
"""The time (s) for which a peer can delay a line that is sent to it; after that it is considered gone."""

LONGEST_LINE = 1 << 20
"""The length (bytes) of the longest line that this program reads and writes."""

MOST_PER_READ = 1 << 22
"""The maximum number of bytes that one read takes, so that a peer that never pauses cannot keep the reader busy."""


class Unanswered(Exception):
    """The peer did not answer, or its answer is not a JSON object."""


class Garbled(Unanswered):
    """The peer does not send the JSON objects of this program. At the listener's port, it is then another program."""


class JsonLines:
    """A connected socket that sends and receives JSON objects."""

    def __init__(self, connected: socket.socket, longest_line: int = LONGEST_LINE) -> None:
        self.socket = connected
        self.longest_line = longest_line
        self._buffer = b""
        self._waiting: list[dict[str, Any]] = []
        self._garbage = False
        connected.setblocking(True)  # Reads use MSG_DONTWAIT, and writes have a timeout.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_S, 0))
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send an object; return False if the peer is gone or too slow."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the objects that have arrived since the last read, without waiting; and whether the peer is there.

        A peer that sends anything but JSON objects is considered gone.
        """
        alive = self._take_what_has_come()
        messages, self._waiting = self._waiting, []
        return messages, alive

    def receive(self, seconds: float) -> dict[str, Any]:
        """Return the next object. Unanswered: none came in `seconds`, or the peer is gone. Garbled: not an object."""
        deadline, alive = time.monotonic() + seconds, True
        while not self._waiting:
            if not alive:
                if self._buffer or self._garbage:
                    raise Garbled("another program answers there")
                raise Unanswered("the connection was closed")
            left = deadline - time.monotonic()
            if left <= 0:
                raise Unanswered(f"no answer within {seconds:.0f} s")
            if wait([self.socket], left):
                alive = self._take_what_has_come()
        return self._waiting.pop(0)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _take_what_has_come(self) -> bool:
        taken = 0
        try:
            while taken < MOST_PER_READ and len(self._buffer) <= self.longest_line:
                part = self.socket.recv(1 << 16, socket.MSG_DONTWAIT)
                self._buffer += part
                taken += len(part)
                if not part or not self._split():
                    return False
        except BlockingIOError:
            pass
        except OSError:
            return False
        return len(self._buffer) <= self.longest_line

    def _split(self) -> bool:
        """Parse the buffer's complete lines into `_waiting`; return False at a line that is not an object."""
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                self._garbage = True
                return False
            self._waiting.append(message)
        return True


@dataclass
class Peer:
    """Another parent process of the run. `heard`: when its last message came. `boundary`: the last that it reported."""

    connection: JsonLines
    heard: float
    host: str
    ranks: tuple[int, ...]
    boundary: int | None = None


@dataclass
class Link:
    """The base class of the hub's link and the spokes' links: peers, heartbeats, and received reports.

    `endpoint`: where the hub listens. `arrived`: the ranks known to have joined. `deadline`: when all other ranks must
    have joined. `reports`: the reports of other parents' ranks. `failure`: the run's failure; the hub decides it, or
    this parent finds it if the ranks cannot meet. `meeting`: where all ranks meet. `not_met`: why they cannot meet.
    Once `is_settled` is true, either `meeting` or `not_met` is set. `beat_s`: the seconds between heartbeats.
    `silence_s`: the seconds without a message after which a parent counts as lost.
    """

    own_ranks: tuple[int, ...]
    host: str
    run_info: RunInfo
    endpoint: Endpoint
    world_size: int
    peers: list[Peer] = field(default_factory=list)
    arrived: set[int] = field(default_factory=set)
    deadline: float = math.inf
    reports: dict[int, WorkerReport] = field(default_factory=dict)
    failure: WorkerReport | None = None
    meeting: MeetingPoint | None = None
    not_met: Exception | None = None

    def __post_init__(self) -> None:
        self._beaten = self._polled = time.monotonic()
        self.silence_s = self.run_info.distributed.heartbeat_timeout_s
        self.beat_s = min(5.0, max(0.2, self.silence_s / 5))

    @property
    def is_settled(self) -> bool:
        """True once it is known where the ranks meet, or why they cannot."""
        return self.meeting is not None or self.not_met is not None

    def descriptors(self) -> list[Any]:
        """Return the descriptors that become readable when there is something to do."""
        return [peer.connection.socket for peer in self.peers]

    def note_arrivals(self, ranks: Collection[int]) -> set[int]:
        """Record ranks that have joined; return the new ones. The first rank starts the time limit for all others."""
        fresh = set(ranks) - self.arrived
        if fresh and not self.arrived:
            self.deadline = time.monotonic() + self.run_info.distributed.init_timeout_s
        self.arrived |= fresh
        return fresh

    def poll(self) -> None:
        """Read messages, send due heartbeats, and drop lost peers. Call it at least every `beat_s` seconds."""
        now = time.monotonic()
        if now - self._polled > 2 * self.beat_s + 1:
            # This process was suspended, perhaps with its job, and has not yet read what its peers sent in that time.
            for peer in self.peers:
                peer.heard = now
        self._polled = now
        beat = now - self._beaten >= self.beat_s
        if beat:
            self._beaten = now
        for peer in list(self.peers):
            messages, alive = peer.connection.read()
            if messages:
                peer.heard = now
            for message in messages:
                try:
                    self._take(peer, message)
                except (KeyError, TypeError, ValueError, AttributeError):
                    alive = False  # The message was not written by this program.
            silent = now - peer.heard > self.silence_s
            if alive and not silent and beat:
                alive = peer.connection.send({"beat": 1})
            if not alive or silent:
                self._drop(peer, silent)

    def _take(self, peer: Peer, message: dict[str, Any]) -> None:
        raise NotImplementedError

    def _drop(self, peer: Peer, silent: bool) -> None:
        self.peers.remove(peer)
        peer.connection.close()

    def send_all(self, message: Mapping[str, Any]) -> None:
        """Send a message to every peer of this link."""
        for peer in list(self.peers):
            if not peer.connection.send(message):
                self._drop(peer, silent=False)

    def close(self) -> None:
        """Close all connections."""
        for peer in self.peers:
            peer.connection.close()
        self.peers.clear()


def say(text: str) -> None:
    """Print a message to stderr, to which the ranks print too."""
    print(f"noether: {text}", file=sys.stderr, flush=True)


def report_from(fields: Mapping[str, Any]) -> WorkerReport:
    """Read a report that another parent process sent; raise KeyError, TypeError or ValueError if it is not one."""
    if fields["kind"] not in get_args(ReportKind):
        raise ValueError(f"a report of the unknown kind {fields['kind']!r}")
    # The clocks of hosts differ, so `time` is set to the time at which the report arrived here.
    return WorkerReport(**{**fields, "position": RankPosition(**fields["position"]), "time": time.time()})


def reports_from(entries: Sequence[Mapping[str, Any]]) -> list[WorkerReport]:
    """Read the list of reports in another parent process's answer, each by `report_from`."""
    return [report_from(entry) for entry in entries]


LONGEST_NAME, LONGEST_IDENTITY, LONGEST_REFUSAL = 255, 500, 8000


@dataclass(frozen=True)
class Caller:
    """A process that claims to be a parent process of the run: its host, pid, ranks, run identity and nonce."""

    host: str
    pid: int
    ranks: tuple[int, ...]
    identity: RunIdentity
    nonce: str

    def as_message(self) -> dict[str, Any]:
        """Return the first line that a parent process sends."""
        fields = {"host": self.host, "pid": self.pid, "ranks": list(self.ranks)}
        return {"hello": self.nonce, "run": self.identity.as_text(), **fields}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> "Caller":
        """Read a message that `as_message` wrote; raise ValueError if it is not one."""
        try:
            ranks = tuple(sorted({int(rank) for rank in message["ranks"]}))
            host, nonce = printable(message["host"]), str(message["hello"])
            identity = RunIdentity.from_text(str(message["run"]))
            if not (ranks and ranks[0] >= 0 and host and isinstance(identity.world_size, int)):
                raise ValueError("no ranks, or no host")
            return cls(host, int(message["pid"]), ranks, identity, nonce)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a parent process: {error!r}") from None


@dataclass(frozen=True)
class Answer:
    """The answer of a run's listener to a caller's first line.

    `proves_start`: the listener proved that it was started with the caller. Without a job, the runs can still differ.
    """

    identity: RunIdentity
    nonces: tuple[str, str]
    proves_start: bool
    message: Mapping[str, Any]


def greet(connection: JsonLines, caller: Caller, start_key: str, limit_s: float) -> Answer:
    """Send the caller's first line, and return the answer.

    Unanswered: nothing came within `limit_s` seconds, or the answer is not from the listener of a run.
    """
    connection.send(caller.as_message())
    message = connection.receive(limit_s)
    try:
        identity, nonce = RunIdentity.from_text(str(message["run"])), str(message["nonce"])
    except (KeyError, ValueError):
        raise Garbled("it sent JSON that does not describe a run") from None
    nonces = caller.nonce, nonce
    proves_start = is_proof(message.get("start"), start_key, "start", *nonces)
    return Answer(identity, nonces, proves_start and identity.is_of_same_start(caller.identity), message)


def proof(key: str, side: str, *nonces: str) -> str:
    """Return the HMAC (RFC 2104) of `side` and the nonces. Only a process that knows the key can compute it."""
    text = "\0".join((side, *nonces))
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def is_proof(given: object, key: str, side: str, *nonces: str) -> bool:
    """Return whether `given` proves that the other side knows the key."""
    return hmac.compare_digest(str(given).encode(), proof(key, side, *nonces).encode())


def refusal_line(report: WorkerReport | None, start_key: str, *nonces: str) -> dict[str, Any]:
    """Return the message by which a parent process refuses the run, and proves that it was started with the run.

    `report`: the reason; None if this process does not fit rank 0's run, and rank 0's parent must answer what differs.
    """
    refusal = asdict(shortened(report, LONGEST_REFUSAL)) if report is not None else None
    return {"refusal": refusal, "refused": proof(start_key, "refusal", *nonces)}


def proves_refusal(message: Mapping[str, Any], start_key: str, *nonces: str) -> bool:
    """Return whether this message is from `refusal_line`, in a process that was started with the run."""
    return bool(start_key) and is_proof(message.get("refused"), start_key, "refusal", *nonces)


def refusal_from(message: Mapping[str, Any], start_key: str, *nonces: str) -> WorkerReport | None:
    """Read the report in a message of `refusal_line`; return None if it contains no report or no valid proof."""
    if not proves_refusal(message, start_key, *nonces):
        return None
    try:
        report = report_from(message["refusal"])
    except (KeyError, TypeError, ValueError):
        return None
    texts: dict[str, Any] = {name: shown_text(getattr(report, name)) for name in (*REPORTED_WORDS, "traceback")}
    return replace(report, host=printable(report.host), exit_code=failing_code(report.exit_code), **texts)


def printable(said: object, most: int = LONGEST_NAME) -> str:
    """Return the first `most` characters of an unknown sender's text, as one line with control characters escaped."""
    return shown_name(str(said)[:most])
