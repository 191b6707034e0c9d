"""Two parent processes prove to each other that they are of one run: both know its key, and neither sends it."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from noether.common.shown import shown_name, shown_text
from noether.launch.detect.identity import RunIdentity
from noether.launch.processes.context import REPORTED_WORDS, WorkerReport
from noether.launch.processes.json_lines import Garbled, JsonLines
from noether.launch.processes.link import report_from
from noether.launch.processes.worker import failing_code, shortened

LONGEST_NAME, LONGEST_IDENTITY, LONGEST_REFUSAL = 255, 500, 8000


@dataclass(frozen=True)
class Caller:
    """Who claims to be a parent of the run: its host and process, the ranks it answers for, its run, and a nonce."""

    host: str
    pid: int
    ranks: tuple[int, ...]
    identity: RunIdentity
    nonce: str

    def as_message(self) -> dict[str, Any]:
        """Returns the first line that a parent process sends."""
        fields = {"host": self.host, "pid": self.pid, "ranks": list(self.ranks)}
        return {"hello": self.nonce, "run": self.identity.as_text(), **fields}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> "Caller":
        """Reads what `as_message` wrote.

        Raises:
            ValueError: this is not such a line.
        """
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
    """What the listener of a run answers to a caller's first line.

    `proves_start` says that it is of the same start: of a start without a job's name, both may be of two runs still.
    """

    identity: RunIdentity
    nonces: tuple[str, str]
    proves_start: bool
    message: Mapping[str, Any]


def greet(connection: JsonLines, caller: Caller, start_key: str, limit_s: float) -> Answer:
    """Says who calls, and returns what is answered.

    Raises:
        Unanswered: nothing came within `limit_s` seconds, or what came is not from the listener of a run.
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
    """Returns what only a holder of the key can work out for these numbers (HMAC, RFC 2104)."""
    text = "\0".join((side, *nonces))
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def is_proof(given: object, key: str, side: str, *nonces: str) -> bool:
    """Whether the other side knows the key."""
    return hmac.compare_digest(str(given).encode(), proof(key, side, *nonces).encode())


def refusal_line(report: WorkerReport | None, start_key: str, *nonces: str) -> dict[str, Any]:
    """Returns how a parent process refuses the run, with the proof that it was started with it.

    None: it is not of rank 0's run, whose parent process finds out and answers what differs.
    """
    refusal = asdict(shortened(report, LONGEST_REFUSAL)) if report is not None else None
    return {"refusal": refusal, "refused": proof(start_key, "refusal", *nonces)}


def proves_refusal(message: Mapping[str, Any], start_key: str, *nonces: str) -> bool:
    """Whether `refusal_line` wrote this, in a process that was started with the run."""
    return bool(start_key) and is_proof(message.get("refused"), start_key, "refusal", *nonces)


def refusal_from(message: Mapping[str, Any], start_key: str, *nonces: str) -> WorkerReport | None:
    """Reads what `refusal_line` wrote; returns None where it names no reason, or is from elsewhere."""
    if not proves_refusal(message, start_key, *nonces):
        return None
    try:
        report = report_from(message["refusal"])
    except (KeyError, TypeError, ValueError):
        return None
    texts: dict[str, Any] = {name: shown_text(getattr(report, name)) for name in (*REPORTED_WORDS, "traceback")}
    return replace(report, host=printable(report.host), exit_code=failing_code(report.exit_code), **texts)


def printable(said: object, most: int = LONGEST_NAME) -> str:
    """Returns what a stranger said as one line, of at most so many characters, that a terminal shows as it is."""
    return shown_name(str(said)[:most])
