"""Do the ranks that meet belong together: they join the run's store, and a stranger is refused in words."""

import json
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from noether.distributed.network import resolve_host
from noether.errors import NoetherError, RequestError
from noether.launch.failure import LOST_RANK_ZERO
from noether.launch.identity import RunIdentity
from noether.launch.placement import WorkerContext
from noether.launch.published import PublishedPort
from noether.launch.standing import Meeting

IDENTITY, MEETING, STRAYS, COMPLETE = "identity", "meeting", "strays", "complete"
# How long one look at the meeting point takes before the published port is looked for again.
LOOK_S = 5.0
# A program that accepts a connection and says nothing would hold torch's store for ever.
MUTE_S = 20.0


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


def meet(context: WorkerContext) -> RunStore:
    """Joins the store of the run and waits for all of its ranks.

    Rank 0 serves the store on the port that its launcher has held, or a launcher does.

    Raises:
        RequestError: the store is another run's, another process is this rank already, or rank 0 is not where the
            others look for it.
        NoetherError: rank 0 is gone, or not all ranks came within the time that `distributed.init_timeout_s` gives.
    """
    deadline = time.monotonic() + context.terms.timeouts.init_timeout_s
    rank, served_by = context.worker.rank, context.endpoint.served_by
    if rank == 0 and not served_by:
        address = resolve_host(context.endpoint.host)
        listen = context.listen_socket
        if listen is not None:
            _refuse_unreachable(address, context)
        joined = _scoped(
            dist.TCPStore(
                address,
                context.endpoint.port,
                is_master=True,
                # Counting connections would count those of other runs; `_gather` counts ranks.
                wait_for_workers=False,
                timeout=_seconds(context.terms.timeouts.init_timeout_s),
                master_listen_fd=listen.detach() if listen is not None else None,
            ),
            context,
            address,
        )
    else:
        joined = _find(context, deadline)
    if rank == 0:
        _open(joined, context)
    _claim(joined.store, context)
    _hear(joined, context, deadline)
    _gather(joined, context, deadline)
    if rank == 0 and context.terms.shared_folder is not None:
        PublishedPort(context.terms.shared_folder, context.terms.identity).remove()
    return joined


def _refuse_unreachable(address: str, context: WorkerContext) -> None:
    """Refuses an address that does not lead to rank 0: its own store would look for itself there until the timeout."""
    host, port = context.endpoint.host, context.endpoint.port
    try:
        # The port listens already. An address that is not this host's own may lead here still (a container's host).
        socket.create_connection((address, port), timeout=LOOK_S).close()
    except OSError as error:
        raise RequestError(
            f"rank 0 runs on {context.host}, and the ranks are to meet at {host}, which is another host",
            seen=f"rank 0 cannot reach itself at {address} port {port} ({error.strerror or error})",
            expected="the host of rank 0, under a name or an address that every host knows",
            fix=f"master_addr={context.host} on every host      (or node_rank=0 on {host})",
        ) from None


def _scoped(store: dist.Store, context: WorkerContext, address: str) -> RunStore:
    own = dist.PrefixStore(f"noether/{context.attempt}", store)
    # A launcher's store outlives the attempts; in rank 0's own, a rank of any attempt must find whom it met.
    common = own if context.endpoint.served_by else dist.PrefixStore("noether", store)
    return RunStore(own, common, address)


def _find(context: WorkerContext, deadline: float) -> RunStore:
    """Connects to rank 0, where it is expected or has published that it is; or, any rank, to a launcher's store."""
    endpoint, terms = context.endpoint, context.terms
    published = None
    if not endpoint.asked_by and not endpoint.served_by and terms.shared_folder is not None:
        published = PublishedPort(terms.shared_folder, terms.identity)
    refusal: NoetherError | None = None
    met = 0.0
    while True:
        elsewhere = published.read() if published is not None else None
        host, port = elsewhere or (endpoint.host, endpoint.port)
        store = _connect(resolve_host(host), port, deadline, context)
        if store is not None:
            joined = _scoped(store, context, resolve_host(host))
            # In a store that a launcher serves, it is rank 0 that says whose the attempt is.
            refusal = _refusal(joined, context, deadline) if context.worker.rank > 0 else None
            if refusal is None:
                return joined
            met = met or time.monotonic()
        # Whoever is there in rank 0's place, rank 0 may be about to say where it went.
        patient = published is not None and elsewhere is None and time.monotonic() < min(deadline, met + 2 * LOOK_S)
        if refusal is not None and not patient:
            if isinstance(refusal, _Stranger):
                refusal.tell()
            raise refusal
        if time.monotonic() >= deadline:
            whom = f"the store of {endpoint.served_by}" if endpoint.served_by else "rank 0"
            raise NoetherError(
                f"rank {context.worker.rank} on {context.host} has not met {whom} within "
                f"{terms.timeouts.init_timeout_s:g} s\n"
                f"  seen      nobody answers at {host} port {port}\n"
                f"  expected  {whom}, started together with this rank\n"
                "  fix       see what the host of rank 0 says; a firewall between hosts must let the port through"
            )
        time.sleep(0.2)


def _connect(address: str, port: int, deadline: float, context: WorkerContext) -> dist.Store | None:
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
        timeout = _seconds(context.terms.timeouts.init_timeout_s)
        try:
            store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=_seconds(LOOK_S))
        except RuntimeError:
            return  # No store, or one that is going away.
        store.set_timeout(timeout)
        found.append(store)

    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(MUTE_S)
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
        return _rank_zero_gone(context, error)
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
    fix = f"{name}={port + 1 if port < 65535 else port - 1}      (in one of the two runs, on all of its ranks)"
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


def _open(joined: RunStore, context: WorkerContext) -> None:
    terms = context.terms
    meeting = Meeting(joined.address, terms.hub_port, terms.secret, str(Path(terms.log_folder).absolute()))
    joined.store.set(MEETING, json.dumps([meeting.hub_port, meeting.secret, meeting.log_folder]))
    joined.common.set(IDENTITY, terms.identity.as_text())


def _claim(store: dist.Store, context: WorkerContext) -> None:
    """Refuses to be a rank that another process is."""
    rank = context.worker.rank
    me = f"pid {os.getpid()} on {context.host}"
    try:
        if store.add(f"claim/{rank}", 1) == 1:
            store.set(f"claimed-by/{rank}", me)
            return
        other = store.get(f"claimed-by/{rank}").decode()
    except RuntimeError as error:
        raise _rank_zero_gone(context, error) from None
    raise RequestError(
        f"two processes are rank {rank} of one run",
        seen=f"{me}, and {other}",
        expected=f"each of the ranks 0 to {context.world_size - 1} once",
        fix="a --node-rank (or RANK) of its own for each; this process has left, the run goes on",
    )


def _hear(joined: RunStore, context: WorkerContext, deadline: float) -> None:
    """Lets this rank's launcher know how to reach that of rank 0."""
    try:
        while not joined.store.check([MEETING]) and time.monotonic() < deadline:
            time.sleep(0.02)
        hub_port, secret, log_folder = json.loads(joined.store.get(MEETING))
    except RuntimeError as error:
        raise _rank_zero_gone(context, error) from None
    joined.log_folder = log_folder
    context.line.tell(Meeting(joined.address, hub_port, secret, log_folder))


def _gather(joined: RunStore, context: WorkerContext, deadline: float) -> None:
    """Waits for all ranks; rank 0 says meanwhile who was refused."""
    store, world, pause = joined.store, context.world_size, 0.002
    try:
        if store.add("arrived", 1) == world:
            store.set(COMPLETE, "1")
        while not store.check([COMPLETE]):
            if time.monotonic() >= deadline:
                missing = [rank for rank in range(world) if not store.check([f"claimed-by/{rank}"])]
                raise _late(missing, context)
            time.sleep(pause)
            pause = min(0.1, pause * 1.3)
            if context.worker.rank == 0:
                joined.warn_of_strays()
    except RuntimeError as error:
        raise _rank_zero_gone(context, error) from None


def _late(missing: list[int], context: WorkerContext) -> NoetherError:
    names = ", ".join(map(str, missing[:16])) + (f" and {len(missing) - 16} more" if len(missing) > 16 else "")
    return NoetherError(
        f"rank {names} of {context.world_size} did not join within {context.terms.timeouts.init_timeout_s:g} s\n"
        f"  seen      {context.world_size - len(missing)} at {context.endpoint.host} port {context.endpoint.port}\n"
        "  expected  all of them\n"
        "  fix       see what their hosts say; distributed.init_timeout_s=1800 where they are slow to start"
    )


def _rank_zero_gone(context: WorkerContext, error: Exception) -> NoetherError:
    first = str(error).partition("\n")[0]
    return NoetherError(
        f"{LOST_RANK_ZERO} all ranks had joined\n"
        f"  seen      the store at {context.endpoint.host} port {context.endpoint.port} is gone ({first})\n"
        "  expected  rank 0, which serves it\n"
        "  fix       see what the host of rank 0 says"
    )


def _seconds(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
