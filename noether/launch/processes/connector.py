"""Connects to rank 0's parent process in a thread, so that this parent process can still handle signals and ranks."""

import contextlib
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable

from noether.common.errors import JoinError, RequestError
from noether.launch.detect.endpoint import PublishedPort, find_address, not_permitted, unresolved
from noether.launch.detect.identity import RunIdentity
from noether.launch.detect.placement import Endpoint
from noether.launch.processes.context import RunInfo, WorkerReport
from noether.launch.processes.link import (
    LONGEST_IDENTITY,
    Answer,
    Caller,
    Garbled,
    JsonLines,
    Unanswered,
    greet,
    is_proof,
    printable,
    proof,
    refusal_from,
    refusal_line,
    say,
)

CONNECT_LIMIT_S = 5.0
"""The timeout of one connection attempt (s). After an attempt, the published port is read again."""
FOREIGN_LIMIT_S = 15.0
"""The time (s) after which, if another program still answers on the port, rank 0 is assumed unable to bind it."""
PUBLISHING_S = 10.0
"""The time (s) for which, if another run answers on the expected port, rank 0 may still publish a different port."""
NOTICE_S = 10.0
"""The time (s) after which a waiting parent process prints what it waits for."""
REFUSAL_NOTICE_S = 2.0
"""The time (s) after which a parent process that refuses the run prints the reason, and that it informs other hosts."""
HANGING_S = 2.0
"""The time (s) by which a name look-up can exceed `init_timeout_s`."""
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""The first and the longest pause between attempts (s). A thousand parents may try the same port and folder."""


class AddressLookup(threading.Thread):
    """Looks up an address in a thread. At the end, `reader` becomes readable; `error` is the exception, if any."""

    def __init__(self, name: str, look: Callable[[], str]) -> None:
        super().__init__(name=name, daemon=True)
        self._look, self.address = look, ""
        self.error: Exception | None = None
        self.reader, self._writer = socket.socketpair()

    def run(self) -> None:
        """Look up the address, then wake the thread that waits on `reader`."""
        try:
            self.address = self._look()
        except Exception as error:  # The error is kept, because this parent's ranks would otherwise wait in vain.
            self.error = error
        with contextlib.suppress(OSError):
            self._writer.send(b"!")


class Connector(AddressLookup):
    """Calls the listener at `endpoint` until it accepts this process, the parent of `ranks`; then `connection` is set.

    `failure` is set if rank 0's parent refuses the run. If `own_refusal` is set, only this refusal is delivered.
    """

    def __init__(self, endpoint: Endpoint, host: str, ranks: tuple[int, ...], run_info: RunInfo) -> None:
        super().__init__("connector", self._reach)
        self._endpoint, self._host, self._ranks, self._run_info = endpoint, host, ranks, run_info
        self.own_refusal: WorkerReport | None = None
        self.failure: WorkerReport | None = None
        self.deadline = math.inf
        self.connection: JsonLines | None = None
        self._met = self._foreign_since = 0.0
        self._where = (endpoint.host, endpoint.port)
        self._why, self._unresolved = "its name is still being looked up", False
        self._who = f"rank {ranks[0]} on {host}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]} on {host}"

    def _reach(self) -> str:
        """Try until the listener accepts or refuses, or the time is up; return the listener's address."""
        endpoint, folder = self._endpoint, self._run_info.shared_folder
        published: PublishedPort | None = None
        if folder is not None and not (endpoint.asked_by or endpoint.served_by):
            published = PublishedPort(folder, self._run_info.identity)
        quiet_s = NOTICE_S if self.own_refusal is None else REFUSAL_NOTICE_S
        quiet_until, pause = time.monotonic() + quiet_s, PAUSE_S
        while True:
            elsewhere = published.read() if published is not None else None
            host, port = self._where = elsewhere or (endpoint.host, endpoint.port)
            self.connection = self._try(host, port, may_be_elsewhere=published is not None and elsewhere is None)
            if self.connection is not None:
                return self.address
            now = time.monotonic()
            if now >= quiet_until:
                quiet_until = math.inf
                if self.own_refusal is not None:
                    say_telling(self.own_refusal, self.deadline - now)
                else:
                    say_waiting(self._who, "rank 0", endpoint, self._run_info.distributed.init_timeout_s)
            if now >= self.deadline:
                raise self.late()
            time.sleep(min(pause, max(0.0, self.deadline - now)))
            pause = min(LONGEST_PAUSE_S, 1.3 * pause)

    def _try(self, host: str, port: int, *, may_be_elsewhere: bool) -> JsonLines | None:
        """Try once; return the connection if the listener accepts it, and None if another attempt may succeed."""
        try:
            self.address = find_address(host)
            self._unresolved = False
            connection = JsonLines(socket.create_connection((self.address, port), timeout=CONNECT_LIMIT_S))
        except socket.gaierror as error:
            self._why, self._unresolved = f"the name {host} does not resolve ({error.strerror or error})", True
            return None
        except PermissionError as error:  # This host forbids the connection, so waiting for rank 0 does not help.
            raise not_permitted(self.address, port, self._host, error) from None
        except OSError as error:
            self._why, self._foreign_since = f"nothing answers ({error.strerror or error})", 0.0
            return None
        try:
            if self._is_accepted(connection, may_be_elsewhere=may_be_elsewhere):
                return connection
        except Garbled as error:
            self._why = f"the program there is not noether ({error})"
            self._foreign_since = self._foreign_since or time.monotonic()
            if not may_be_elsewhere and time.monotonic() - self._foreign_since >= FOREIGN_LIMIT_S:
                raise self._foreign(host, port) from None
        except Unanswered as error:
            self._why = f"the program there does not answer as noether does ({error})"
        except RequestError:
            connection.close()
            raise
        connection.close()
        return None

    def _is_accepted(self, connection: JsonLines, *, may_be_elsewhere: bool) -> bool:
        run_info, own = self._run_info, self._run_info.identity
        caller = Caller(self._host, os.getpid(), self._ranks, own, secrets.token_hex(16))
        answer = greet(connection, caller, run_info.start_key, CONNECT_LIMIT_S)
        met, nonces = answer.identity, answer.nonces
        if met != own and not (answer.proves_start and own.job):  # Rank 0 of this run may have another port.
            now = time.monotonic()
            self._met = self._met or now
            if may_be_elsewhere and now - self._met < min(PUBLISHING_S, self.deadline - now):
                return False
        if answer.proves_start:
            refusal = refusal_from(answer.message, run_info.start_key, *nonces)
            if refusal is None and (self.own_refusal is not None or met != own):
                line = refusal_line(self.own_refusal, run_info.start_key, *reversed(nonces))
                # This run ends now, so only the settings are sent, no other secret. The answer says what differs.
                connection.send({**line, "settings": dict(run_info.settings) if met != own else {}})
                refusal = refusal_from(connection.receive(CONNECT_LIMIT_S), run_info.start_key, *nonces)
            if refusal is not None:
                self.failure = refusal
                raise refusal.refusal
        if met != own and not (own.job and met.is_of_same_start(own)):
            raise self._stranger(met)
        if met != own or not is_proof(answer.message.get("proof"), run_info.key, "server", *nonces):
            raise RequestError(
                "run-keys-differ", "the ranks of this run do not have the same key",
                seen=f"the listener at {self._endpoint.host} claims to belong to this run, but cannot prove it",
                expected="the same settings, and the same NOETHER_RUN_KEY if it is set, on every host",
                fix="unset NOETHER_RUN_KEY      (on every host, or the same value on each)",
            )  # fmt: skip
        connection.send({"proof": proof(run_info.key, "client", *reversed(nonces))})
        welcome = connection.receive(CONNECT_LIMIT_S)
        if "double" in welcome:
            raise rank_twice(welcome["double"], self._host, own)
        return "welcome" in welcome

    def late(self) -> RequestError:
        """Return the error for this parent process's ranks if they have not reached rank 0 in time."""
        (host, port), limit = self._where, self._run_info.distributed.init_timeout_s
        if self._unresolved:
            seen = f"{self._why}, for {limit:g} s (distributed.init_timeout_s)"
            fix = "master_addr=ADDRESS      (or start that host: a pod has no name until it starts)"
            return JoinError(**unresolved(host, self._host, seen, fix).parts)
        return JoinError(
            "rank-0-not-met", f"{self._who} did not reach rank 0 within {limit:g} s",
            seen=f"at {host} port {port}: {self._why}", expected="a rank 0 that is started together with this rank",
            fix="read the output on rank 0's host; a firewall between hosts must let the port through",
        )  # fmt: skip

    def _foreign(self, host: str, port: int) -> RequestError:
        return RequestError(
            "port-of-another-program", f"port {port} is taken by another program on {host}, where rank 0 was expected",
            seen=f"{self._endpoint.asked_by or 'port'}={port}; {self._why}",
            expected="a port that is free on the host of rank 0",
            fix=f"{self._endpoint.another_port}      (on every host)",
        )  # fmt: skip

    def _stranger(self, met: RunIdentity) -> RequestError:
        """Return the error for a parent process that has reached the listener of another run."""
        own, endpoint = self._run_info.identity, self._endpoint
        code, summary = "another-run", "this rank has reached another run"
        fix = f"{endpoint.another_port}      (on all ranks of one of the two runs)"
        if met.restarts != own.restarts and (met.launcher, met.job) == (own.launcher, own.job):
            code, summary = "another-restart", "this rank has reached another restart of its run"
            fix = "end the processes left from the other restart, and start again"
        return RequestError(code, summary,
                            seen=f"at {endpoint.host} port {endpoint.port}: {printable(met, LONGEST_IDENTITY)}",
                            expected=f"the run of this rank: {own}", fix=fix)  # fmt: skip


def rank_twice(rank: int, host: str, run: RunIdentity) -> RequestError:
    """Return the error for a process whose rank another process of the run already has."""
    return RequestError(
        "rank-twice", f"two processes are rank {rank} of one run",
        seen=f"pid {os.getpid()} on {host}, and another process that joined earlier",
        expected=f"ranks 0 to {run.world_size - 1}, each with exactly one process",
        fix="give each process its own --node-rank (or RANK); this process has exited, and the run continues",
    )  # fmt: skip


def say_waiting(who: str, whom: str, endpoint: Endpoint, limit_s: float) -> None:
    """Print to stderr that `who` waits for `whom`, at which endpoint, and for how long."""
    where = f"{endpoint.host} port {endpoint.port}"
    say(f"{who} waits for {whom} at {where}, for up to {limit_s:g} s (distributed.init_timeout_s)")


def say_telling(refusal: WorkerReport, limit_s: float) -> None:
    """Print to stderr why this parent process refuses the run, and that it still informs the other hosts."""
    why = refusal.message.partition("\n")[0]
    say(f"{why}; telling other hosts as they connect, for up to {limit_s:.0f} s")


def who_listens(address: str, port: int, caller: Caller, key: str, limit_s: float = CONNECT_LIMIT_S) -> Answer | None:
    """Return the listener's answer at a port; None if another program has the port, or the listener is too busy."""
    connection = JsonLines(socket.create_connection((address, port), timeout=limit_s))
    with contextlib.closing(connection), contextlib.suppress(Unanswered):
        return greet(connection, caller, key, limit_s)
    return None


def own_address(endpoint: Endpoint, port: int, caller: Caller, run_info: RunInfo) -> str:
    """Return the address at which other hosts reach rank 0. To test it, this host connects to itself there.

    RequestError: the name does not resolve within `init_timeout_s`, the connection fails, or another run answers.
    """
    name, host, limit_s = endpoint.host, caller.host, run_info.distributed.init_timeout_s
    deadline = time.monotonic() + limit_s
    while True:
        try:
            address = find_address(name)
            # An address that is not among this host's own can still lead here, such as that of a container's host.
            answer = who_listens(address, port, caller, run_info.start_key)
            if answer is None or "own" in answer.message:
                return address
            if answer.identity.is_of_same_start(caller.identity):
                raise rank_twice(0, host, caller.identity)
            raise OSError(f"the listener there belongs to {printable(answer.identity, LONGEST_IDENTITY)}")
        except socket.gaierror as error:
            if time.monotonic() >= deadline:
                seen = f"{error.strerror or error}, for {limit_s:g} s (distributed.init_timeout_s)"
                raise unresolved(name, host, seen, f"master_addr={host} on every host      (or an address)") from None
            time.sleep(4 * PAUSE_S)
        except PermissionError as error:
            raise not_permitted(address, port, host, error) from None
        except OSError as error:
            raise RequestError(
                "master-is-another-host",
                f"rank 0 runs on {host}, but the ranks are configured to meet at {name}, which is another host",
                seen=f"rank 0 cannot reach itself at {name} port {port} ({error.strerror or error})",
                expected="the host of rank 0, under a name or an address that every host knows",
                fix=f"master_addr={host} on every host      (or node_rank=0 on {name})",
            ) from None
