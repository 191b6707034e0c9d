"""Do all ranks of the run come: they join its store, each is there once, and a refusal of rank 0's reaches them all."""

import json
import os
import socket
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from noether.distributed.network import resolve_host
from noether.distributed.rank_zero import (
    IDENTITY,
    LOOK_S,
    QUIET_S,
    RunStore,
    find_rank_zero,
    rank_zero_gone,
    say_waiting,
    scoped,
)
from noether.environments.endpoint import REFUSAL_S
from noether.environments.published_port import PublishedPort
from noether.errors import NoetherError, RequestError
from noether.workers.context import WorkerContext
from noether.workers.failure import REFUSED_BY_FIRST
from noether.workers.rank_state import Meeting

MEETING, COMPLETE = "meeting", "complete"


def meet(context: WorkerContext) -> RunStore:
    """Joins the store of the run and waits for all of its ranks.

    Rank 0 serves the store on the port that its launcher has held, or a launcher does.

    Raises:
        RequestError: the store is another run's, another process is this rank already, rank 0 is not where the others
            look for it, or it could not have the port that was asked for.
        NoetherError: rank 0 is gone, or not all ranks came within the time that `distributed.init_timeout_s` gives.
    """
    deadline = time.monotonic() + context.terms.timeouts.init_timeout_s
    rank, served_by, refusal = context.worker.rank, context.endpoint.served_by, context.terms.refusal
    if refusal is not None:
        deadline = min(deadline, time.monotonic() + REFUSAL_S)
    if rank == 0 and not served_by:
        address = resolve_host(context.endpoint.host)
        listen = context.listen_socket
        if listen is not None:
            _refuse_unreachable(address, context)
        joined = scoped(
            dist.TCPStore(
                address,
                context.endpoint.port,
                is_master=True,
                # Counting connections would count those of other runs; `_gather` counts ranks.
                wait_for_workers=False,
                timeout=timedelta(seconds=context.terms.timeouts.init_timeout_s),
                master_listen_fd=listen.detach() if listen is not None else None,
            ),
            context,
            address,
        )
    else:
        joined = find_rank_zero(context, deadline)
    if rank == 0:
        _open(joined, context)
    _claim(joined.store, context)
    refusal = _hear(joined, context, deadline) or refusal
    try:
        _gather(joined, context, deadline)
    except NoetherError:
        if refusal is None:
            raise
    if refusal is not None:
        raise refusal
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


def _open(joined: RunStore, context: WorkerContext) -> None:
    terms = context.terms
    meeting = Meeting(joined.address, terms.hub_port, terms.secret, str(Path(terms.log_folder).absolute()))
    refusal = terms.refusal.summary if terms.refusal is not None else ""
    joined.store.set(MEETING, json.dumps([meeting.hub_port, meeting.secret, meeting.log_folder, refusal]))
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
        raise rank_zero_gone(context, error) from None
    raise RequestError(
        f"two processes are rank {rank} of one run",
        seen=f"{me}, and {other}",
        expected=f"each of the ranks 0 to {context.world_size - 1} once",
        fix="a --node-rank (or RANK) of its own for each; this process has left, the run goes on",
    )


def _hear(joined: RunStore, context: WorkerContext, deadline: float) -> RequestError | None:
    """Lets this rank's launcher know how to reach that of rank 0; returns why rank 0 refuses the run, if it does."""
    try:
        while not joined.store.check([MEETING]) and time.monotonic() < deadline:
            time.sleep(0.02)
        hub_port, secret, log_folder, refusal = json.loads(joined.store.get(MEETING))
    except RuntimeError as error:
        raise rank_zero_gone(context, error) from None
    joined.log_folder = log_folder
    context.line.tell(Meeting(joined.address, hub_port, secret, log_folder))
    return RequestError(REFUSED_BY_FIRST, seen=refusal) if refusal and context.worker.rank > 0 else None


def _gather(joined: RunStore, context: WorkerContext, deadline: float) -> None:
    """Waits for all ranks; rank 0 says meanwhile who was refused."""
    store, world, pause = joined.store, context.world_size, 0.002
    quiet_until = time.monotonic() + QUIET_S
    try:
        if store.add("arrived", 1) == world:
            store.set(COMPLETE, "1")
        while not store.check([COMPLETE]):
            if time.monotonic() >= deadline:
                raise _late(_missing(store, world), context)
            if context.worker.rank == 0 and context.terms.refusal is None and time.monotonic() >= quiet_until:
                say_waiting(f"rank {_shown(_missing(store, world))} of {world}", context)
                quiet_until = deadline
            time.sleep(pause)
            pause = min(0.1, pause * 1.3)
            if context.worker.rank == 0:
                joined.warn_of_strays()
    except RuntimeError as error:
        raise rank_zero_gone(context, error) from None


def _missing(store: dist.Store, world: int) -> list[int]:
    return [rank for rank in range(world) if not store.check([f"claimed-by/{rank}"])]


def _shown(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")


def _late(missing: list[int], context: WorkerContext) -> NoetherError:
    return NoetherError(
        f"rank {_shown(missing)} of {context.world_size} did not join within "
        f"{context.terms.timeouts.init_timeout_s:g} s\n"
        f"  seen      {context.world_size - len(missing)} at {context.endpoint.host} port {context.endpoint.port}\n"
        "  expected  all of them\n"
        "  fix       see what their hosts say; distributed.init_timeout_s=1800 where they are slow to start"
    )
