"""Where is rank 0, and is it of this run: its store is looked for, and a stranger is refused in words."""

import os
import socket
import sys
import threading
import time
from dataclasses import dataclass, fields
from datetime import timedelta

import torch.distributed as dist

from noether.distributed.network import resolve_host
from noether.environments.endpoint import port_beside
from noether.environments.identity import RunIdentity
from noether.environments.published_port import PublishedPort
from noether.errors import NoetherError, RequestError
from noether.workers.context import WorkerContext
from noether.workers.failure import LOST_RANK_ZERO

IDENTITY, STRAYS = "identity", "strays"
# How long one look at the meeting point takes before the published port is looked for again.
LOOK_S = 5.0
# A program that accepts a connection and says nothing would hold torch's store for ever.
MUTE_S = 20.0
# A host that waits for longer says for whom.
QUIET_S = 10.0


@dataclass
class RunStore:
    """The store of a run that has been joined.

    `store` is this attempt's, `common` what a rank of any run finds; `address` is where rank 0 is reached, and
    `log_folder` where the run keeps its logs.
    """

    store: dist.Store
    common: dist.Store
    address: str
    log_folder: str = ""
    _strays: int = 0

    def warn_of_strays(self) -> None:
        """Says which ranks of other runs have knocked since the last call."""
        count = int(self.common.add(STRAYS, 0))
        for number in range(self._strays + 1, count + 1):
            words = self.common.get(f"{STRAYS}/{number}").decode()
            print(f"noether: {words}", file=sys.stderr, flush=True)
        self._strays = count


def scoped(store: dist.Store, context: WorkerContext, address: str) -> RunStore:
    """Returns a store with this attempt's part of it."""
    own = dist.PrefixStore(f"noether/{context.attempt}", store)
    # A launcher's store outlives the attempts; in rank 0's own, a rank of any attempt must find whom it met.
    common = own if context.endpoint.served_by else dist.PrefixStore("noether", store)
    return RunStore(own, common, address)


def find_rank_zero(context: WorkerContext, deadline: float) -> RunStore:
    """Connects to rank 0, where it is expected or has published that it is; or, any rank, to a launcher's store."""
    endpoint, terms = context.endpoint, context.terms
    published = None
    if not endpoint.asked_by and not endpoint.served_by and terms.shared_folder is not None:
        published = PublishedPort(terms.shared_folder, terms.identity)
    refusal: NoetherError | None = None
    met, quiet_until = 0.0, time.monotonic() + QUIET_S
    while True:
        elsewhere = published.read() if published is not None else None
        host, port = elsewhere or (endpoint.host, endpoint.port)
        store = _connect(resolve_host(host), port, deadline, context)
        if store is not None:
            joined = scoped(store, context, resolve_host(host))
            # In a store that a launcher serves, it is rank 0 that says whose the attempt is.
            refusal = _refusal(joined, context, deadline) if context.worker.rank > 0 else None
            if refusal is None:
                return joined
            met = met or time.monotonic()
        if endpoint.asked_by and not endpoint.served_by and (refusing := _find_refusing(context)) is not None:
            return refusing
        # Whoever is there in rank 0's place, rank 0 may be about to say where it went.
        patient = published is not None and elsewhere is None and time.monotonic() < min(deadline, met + 2 * LOOK_S)
        if refusal is not None and not patient:
            if isinstance(refusal, _Stranger):
                refusal.tell()
            raise refusal
        whom = f"the store of {endpoint.served_by}" if endpoint.served_by else "rank 0"
        if context.worker.local_rank == 0 and time.monotonic() >= quiet_until:
            say_waiting(whom, context)
            quiet_until = deadline
        if time.monotonic() >= deadline:
            raise NoetherError(
                f"rank {context.worker.rank} on {context.host} has not met {whom} within "
                f"{terms.timeouts.init_timeout_s:g} s\n"
                f"  seen      nobody answers at {host} port {port}\n"
                f"  expected  {whom}, started together with this rank\n"
                "  fix       see what the host of rank 0 says; a firewall between hosts must let the port through"
            )
        time.sleep(0.2)


def _find_refusing(context: WorkerContext) -> RunStore | None:
    """Looks, once, where rank 0 is if it could not have the port that was asked for."""
    beside = port_beside(context.endpoint)
    address = resolve_host(beside.host)
    store = _connect(address, beside.port, time.monotonic(), context, mute_s=LOOK_S)
    if store is None:
        return None
    joined = scoped(store, context, address)
    try:
        known = joined.common.check([IDENTITY]) and joined.common.get(IDENTITY).decode()
    except RuntimeError:
        return None
    return joined if known == context.terms.identity.as_text() else None


def _connect(
    address: str, port: int, deadline: float, context: WorkerContext, *, mute_s: float = MUTE_S
) -> dist.Store | None:
    """Returns a client of the store at a port, or None where nobody listens yet, or no store does."""
    look = min(deadline, time.monotonic() + LOOK_S)
    while True:
        try:
            socket.create_connection((address, port), timeout=LOOK_S).close()
            break
        except OSError:
            if time.monotonic() >= look:
                return None
            time.sleep(0.05)
    found: list[dist.Store] = []

    def connect() -> None:
        timeout = timedelta(seconds=context.terms.timeouts.init_timeout_s)
        try:
            store = dist.TCPStore(
                address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=LOOK_S)
            )
        except RuntimeError:
            return  # No store, or one that is going away.
        store.set_timeout(timeout)
        found.append(store)

    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(mute_s)
    return found[0] if found else None


class _Stranger(RequestError):
    """This rank knocked at another run."""

    joined: RunStore
    words: str

    def tell(self) -> None:
        """Leaves word at the run that this rank knocked at."""
        try:
            # The text first: whoever reads the number finds it. Two at the same moment are one stray run's ranks.
            number = int(self.joined.common.add(STRAYS, 0)) + 1
            self.joined.common.set(f"{STRAYS}/{number}", self.words)
            self.joined.common.add(STRAYS, 1)
        except RuntimeError:
            pass  # That run is over.


def _refusal(joined: RunStore, context: WorkerContext, deadline: float) -> NoetherError | None:
    own = context.terms.identity
    try:
        while not joined.common.check([IDENTITY]):
            if time.monotonic() >= deadline:
                return NoetherError(
                    f"the store at {joined.address} port {context.endpoint.port} is of no run, or rank 0 has not "
                    f"joined it within {context.terms.timeouts.init_timeout_s:g} s"
                )
            time.sleep(0.02)
        met = RunIdentity.from_text(joined.common.get(IDENTITY).decode())
    except RuntimeError as error:
        return rank_zero_gone(context, error)
    if met == own:
        return None
    stranger = _describe_stranger(own, met, context)
    stranger.joined = joined
    me = f"rank {context.worker.rank} on {context.host} (pid {os.getpid()})"
    stranger.words = f"{me} of another run was refused: it is of {own}; this run is {met}, and goes on"
    return stranger


def _describe_stranger(own: RunIdentity, met: RunIdentity, context: WorkerContext) -> _Stranger:
    differ = [field.name for field in fields(own) if getattr(own, field.name) != getattr(met, field.name)]
    port, asked_by = context.endpoint.port, context.endpoint.asked_by
    name = "MASTER_PORT" if asked_by.startswith("MASTER_PORT") else "master_port"
    fix = f"{name}={port_beside(context.endpoint).port}      (in one of the two runs, on all of its ranks)"
    summary = "this rank has met another run"
    if "launcher" not in differ and "world_size" in differ:
        summary = f"the run was started with {met.world_size} ranks where rank 0 is, and with {own.world_size} here"
        fix = f"start {met.world_size} ranks in all, with the same command on every host; or, for two runs, {fix}"
    elif differ == ["configuration"]:
        summary = "the ranks of this run were given different settings"
        fix = f"the same settings on every host; or, for two runs, {fix}"
    elif differ == ["device_kind"]:
        summary = f"rank 0 computes on {met.device_kind}, and rank {context.worker.rank} on {own.device_kind}"
        fix = "noether doctor      (on the host without a GPU; or accelerator=cpu on every host)"
    elif differ == ["attempt"]:
        summary = "this rank has met another attempt of its run"
        fix = "end what is left of the other attempt, and start again"
    return _Stranger(
        summary,
        seen=f"at {context.endpoint.host} port {port}: {met}",
        expected=f"the run of this rank: {own}",
        fix=fix,
    )


def say_waiting(whom: str, context: WorkerContext) -> None:
    """Says on stderr for whom this rank waits, where and for how long."""
    endpoint = context.endpoint
    print(
        f"noether: rank {context.worker.rank} on {context.host} waits for {whom} at {endpoint.host} port "
        f"{endpoint.port}, for up to {context.terms.timeouts.init_timeout_s:g} s (distributed.init_timeout_s)",
        file=sys.stderr,
        flush=True,
    )


def rank_zero_gone(context: WorkerContext, error: Exception) -> NoetherError:
    """Returns how a rank ends that loses the store while the ranks meet."""
    first = str(error).partition("\n")[0]
    return NoetherError(
        f"{LOST_RANK_ZERO} all ranks had joined\n"
        f"  seen      the store at {context.endpoint.host} port {context.endpoint.port} is gone ({first})\n"
        "  expected  rank 0, which serves it\n"
        "  fix       see what the host of rank 0 says"
    )
