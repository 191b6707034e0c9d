"""Connects to rank 0's parent, in a thread, so that this parent can handle signals and its ranks meanwhile."""

import contextlib
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import fields

from noether.common.json_lines import Garbled, JsonLines, Unanswered
from noether.environments.identity import RunIdentity
from noether.environments.network import find_address, not_permitted, unresolved
from noether.environments.placement import Endpoint
from noether.environments.published_port import PublishedPort
from noether.errors import EndedByAnother, JoinError, RequestError
from noether.workers.context import RunInfo, WorkerReport
from noether.workers.handshake import LONGEST_IDENTITY, Caller, is_proof, printable, proof, refusal_from, refusal_line
from noether.workers.worker import failure_report

LOOK_S = 5.0
"""The longest that one attempt to connect may take, before the published port is read again."""

FOREIGN_S = 15.0
"""How long another program may answer on the port before this parent concludes that rank 0 could not bind it."""

PUBLISHING_S = 10.0
"""How long rank 0 may take to publish another port, after another run has answered on the expected one."""

QUIET_S = 10.0
"""A parent process that waits longer than this says what it waits for."""

TELLING_S = 120.0
"""The longest that a parent process stays to refuse a run to hosts that come late; some may never come."""

TELLING_QUIET_S = 2.0
"""Seconds after which a parent process that refuses the run says why, and that it waits to tell the others."""

HANGING_S = 2.0
"""How much longer than the time for all to meet a look-up of a name may take."""

PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""The first and the longest pause between two attempts: a thousand parents may try one port, and read one folder."""


class AddressLookup(threading.Thread):
    """Looks for an address; `reader` becomes readable when it is over, and `error` says why it failed, if it did."""

    def __init__(self, name: str, look: Callable[[], str]) -> None:
        super().__init__(name=name, daemon=True)
        self._look, self.address = look, ""
        self.error: Exception | None = None
        self.reader, self._writer = socket.socketpair()

    def run(self) -> None:
        """Looks, and wakes whoever waits for `reader`."""
        try:
            self.address = self._look()
        except Exception as error:  # Passed on to the ranks of this parent process, which would wait otherwise.
            self.error = error
        with contextlib.suppress(OSError):
            self._writer.send(b"!")


class Connector(AddressLookup):
    """Tries the listener at an endpoint until it accepts this parent process of `ranks`: `connection` is set then.

    `verdict` is set where rank 0's parent process refuses the run. With `own_refusal`, only that is told.
    """

    def __init__(self, endpoint: Endpoint, host: str, ranks: tuple[int, ...], run_info: RunInfo) -> None:
        super().__init__("connector", self._reach)
        self._endpoint, self._host, self._ranks, self._run_info = endpoint, host, ranks, run_info
        self.own_refusal: WorkerReport | None = None
        self.verdict: WorkerReport | None = None
        self._has_found = False
        self.deadline = math.inf
        self.connection: JsonLines | None = None
        self._met = self._foreign_since = 0.0
        self._where = (endpoint.host, endpoint.port)
        self._why, self._unresolved = "the look-up of its name has not come back yet", False
        self._who = f"rank {ranks[0]} on {host}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]} on {host}"

    def _reach(self) -> str:
        """Tries until it is accepted or refused, or the time is over; returns the address."""
        endpoint, folder = self._endpoint, self._run_info.shared_folder
        published: PublishedPort | None = None
        if folder is not None and not (endpoint.asked_by or endpoint.served_by):
            published = PublishedPort(folder, self._run_info.identity)
        quiet_s = QUIET_S if self.own_refusal is None else TELLING_QUIET_S
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
        """Tries once; returns the connection if it is accepted, None if another attempt makes sense."""
        try:
            self.address = find_address(host)
            self._unresolved = False
            connection = JsonLines(socket.create_connection((self.address, port), timeout=LOOK_S))
        except socket.gaierror as error:
            self._why, self._unresolved = f"the name {host} does not resolve ({error.strerror or error})", True
            return None
        except PermissionError as error:  # No waiting helps: not rank 0's host says so, but this one.
            raise not_permitted(self.address, port, self._host, error) from None
        except OSError as error:
            self._why, self._foreign_since = f"nothing answers ({error.strerror or error})", 0.0
            return None
        try:
            if self._is_accepted(connection):
                return connection
        except Garbled as error:
            self._why = f"what listens there is not this program ({error})"
            self._foreign_since = self._foreign_since or time.monotonic()
            if not may_be_elsewhere and time.monotonic() - self._foreign_since >= FOREIGN_S:
                raise self._foreign(host, port) from None
        except Unanswered as error:
            self._why = f"what listens there does not answer as this program does ({error})"
        except RequestError:
            now = time.monotonic()
            self._met = self._met or now
            if self._has_found or not may_be_elsewhere or now - self._met >= min(PUBLISHING_S, self.deadline - now):
                connection.close()
                raise
        connection.close()
        return None

    def _is_accepted(self, connection: JsonLines) -> bool:
        run_info = self._run_info
        caller = Caller(self._host, os.getpid(), self._ranks, run_info.identity, secrets.token_hex(16))
        connection.send(caller.as_message())
        answer = connection.receive(LOOK_S)
        try:
            nonce, met = str(answer.get("nonce")), RunIdentity.from_text(str(answer["run"]))
        except (KeyError, ValueError, AttributeError):
            raise Garbled("it sent JSON that does not describe a run") from None
        own = run_info.identity
        differ = [field.name for field in fields(own) if getattr(own, field.name) != getattr(met, field.name)]
        refusal = self._stranger(met, differ) if differ else None
        self._has_found = met.is_of_same_start(own)
        if self._has_found:
            self.verdict = refusal_from(answer, run_info.start_key, caller.nonce, nonce)
            if self.verdict is not None:
                raise EndedByAnother("ended-by-rank-0", f"rank 0 refused the run: {self.verdict.message}")
            report = self.own_refusal
            if report is None and refusal is not None:
                report = failure_report(refusal, self._ranks[0], self._host)
            if report is not None:
                line = refusal_line(report, run_info.start_key, nonce, caller.nonce)
                if self.own_refusal is not None or differ != ["configuration"]:
                    connection.send(line)
                else:  # No other secret of this run, which ends now; rank 0's parent process answers what differs.
                    connection.send({**line, "settings": dict(run_info.settings)})
                    with contextlib.suppress(Unanswered):
                        answer = connection.receive(LOOK_S)
                        self.verdict = refusal_from(answer, run_info.start_key, caller.nonce, nonce)
            if self.own_refusal is not None:
                raise self.own_refusal.refusal
        if refusal is not None:
            raise refusal
        if not is_proof(answer.get("proof"), run_info.key, "server", caller.nonce, nonce):
            raise RequestError(
                "run-keys-differ",
                "the ranks of this run do not have the same key",
                seen=f"what listens at {self._endpoint.host} claims to be of this run, but cannot prove it",
                expected="the same settings, and the same NOETHER_RUN_KEY where it is set, on every host",
                fix="unset NOETHER_RUN_KEY      (on every host, or the same value on each)",
            )
        connection.send({"proof": proof(run_info.key, "client", nonce, caller.nonce)})
        answer = connection.receive(LOOK_S)
        if "double" in answer:
            raise RequestError(
                "rank-twice",
                f"two processes are rank {answer['double']} of one run",
                seen=f"pid {os.getpid()} on {self._host}, and another that came before",
                expected=f"each of the ranks 0 to {run_info.identity.world_size - 1} once",
                fix="its own --node-rank (or RANK) for each; this process has left, and the run continues",
            )
        return "welcome" in answer

    def late(self) -> RequestError:
        """Returns how this parent process's ranks end when the time is over."""
        host, port = self._where
        limit = self._run_info.distributed.init_timeout_s
        if self._unresolved:
            return unresolved(host, self._host, f"{self._why}, for {limit:g} s (distributed.init_timeout_s)")
        return JoinError(
            "rank-0-not-met",
            f"{self._who} has not met rank 0 within {limit:g} s",
            seen=f"at {host} port {port}: {self._why}",
            expected="rank 0, started together with this rank",
            fix="see what the host of rank 0 says; a firewall between hosts must let the port through",
        )

    def _foreign(self, host: str, port: int) -> RequestError:
        asked_by = self._endpoint.asked_by
        return RequestError(
            "port-of-another-program",
            f"port {port} is taken by another program on {host}, where rank 0 was expected",
            seen=f"{asked_by or 'port'}={port}; {self._why}",
            expected="a port that is free on the host of rank 0",
            fix=f"{self._endpoint.another_port}      (on every host)",
        )

    def _stranger(self, met: RunIdentity, differ: Sequence[str]) -> RequestError:
        """Returns how a parent process is refused that has reached the listener of another run."""
        own, endpoint = self._run_info.identity, self._endpoint
        fix = f"{endpoint.another_port}      (in one of the two runs, on all of its ranks)"
        code, summary = "another-run", "this rank has met another run"
        if "launcher" not in differ and "world_size" in differ:
            code = "world-sizes-differ"
            summary = f"the run was started with {met.world_size} ranks where rank 0 is, and with {own.world_size} here"
            fix = f"start {met.world_size} ranks in all, with the same command on every host; or, for two runs, {fix}"
        elif differ == ["configuration"]:
            code, summary = "hosts-differ", f"{self._who} has other settings or versions than rank 0"
            fix = f"the same settings on every host, which `noether settings` lists; or, for two runs, {fix}"
        elif differ == ["device_kind"]:
            code, summary = (
                "device-kinds-differ",
                f"rank 0 computes on {met.device_kind}, and {self._who} on {own.device_kind}",
            )
            fix = "noether doctor      (on the host without a GPU; or accelerator=cpu on every host)"
        elif differ == ["restarts"]:
            code, summary = "another-restart", "this rank has met another restart of its run"
            fix = "end what is left of the other restart, and start again"
        return RequestError(
            code,
            summary,
            seen=f"at {endpoint.host} port {endpoint.port}: {printable(met, LONGEST_IDENTITY)}",
            expected=f"the run of this rank: {own}",
            fix=fix,
        )


def say_waiting(who: str, whom: str, endpoint: Endpoint, limit_s: float) -> None:
    """Says on stderr who waits for whom, where and for how long."""
    print(
        f"noether: {who} waits for {whom} at {endpoint.host} port {endpoint.port}, for up to {limit_s:g} s "
        "(distributed.init_timeout_s)",
        file=sys.stderr,
        flush=True,
    )


def say_telling(refusal: WorkerReport, limit_s: float) -> None:
    """Says on stderr why this parent process refuses the run, while it waits to tell the others."""
    why = refusal.message.partition("\n")[0]
    print(f"noether: {why}; other hosts are told as they come, for up to {limit_s:.0f} s", file=sys.stderr, flush=True)


def own_address(endpoint: Endpoint, port: int, host: str, limit_s: float) -> str:
    """Returns the address at which other hosts reach rank 0, which was tried: it leads to this host's own listener.

    Raises:
        RequestError: the name has not become known in `limit_s` seconds, or is another host's.
    """
    name, deadline = endpoint.host, time.monotonic() + limit_s
    while True:
        try:
            address = find_address(name)
            # An address that is not this host's own may lead here still (a container's host).
            socket.create_connection((address, port), timeout=LOOK_S).close()
            return address
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
                f"rank 0 runs on {host}, but the ranks are told to meet at {name}, which is another host",
                seen=f"rank 0 cannot reach itself at {name} port {port} ({error.strerror or error})",
                expected="the host of rank 0, under a name or an address that every host knows",
                fix=f"master_addr={host} on every host      (or node_rank=0 on {name})",
            ) from None
