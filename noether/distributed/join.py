"""Joins a rank to the others: its launcher says where, once all ranks have come, and the rank joins rank 0's store."""

from datetime import timedelta

import torch.distributed as dist

from noether.environments.network import find_address
from noether.errors import NoetherError
from noether.workers.context import WorkerContext
from noether.workers.failure import LOST_RANK_ZERO
from noether.workers.rank_state import MeetingPoint, RankNote

LAUNCHER_ANSWERS_S = 60.0
"""How much longer than the time for all to meet a rank waits for its launcher's word."""


def meet(context: WorkerContext) -> tuple[MeetingPoint, dist.Store]:
    """Waits until all ranks have come, joins the store that rank 0 serves, and returns where that is, and the store.

    Raises:
        RequestError: another run is met, another process is this rank already, rank 0 is not where the others look
            for it, or a name does not resolve.
        NoetherError: rank 0 is gone, or not all ranks came within the time that `distributed.init_timeout_s` gives.
    """
    limit_s = context.terms.distributed.init_timeout_s
    if context.endpoint.served_by:
        _exchange_listener(context, limit_s)
    point = context.line.meet(limit_s + LAUNCHER_ANSWERS_S)
    listen = context.listen_socket
    try:
        store = dist.TCPStore(
            point.address,
            point.port,
            is_master=listen is not None,
            wait_for_workers=False,  # The launchers have counted the ranks.
            timeout=timedelta(seconds=limit_s),
            master_listen_fd=listen.detach() if listen is not None else None,
        )
    except RuntimeError as error:
        raise NoetherError(
            f"{LOST_RANK_ZERO} all ranks had joined\n"
            f"  seen      the store at {point.address} port {point.port} is gone ({_first_line(error)})\n"
            "  expected  rank 0, which serves it\n"
            "  fix       see what the host of rank 0 says"
        ) from None
    return point, store


def _exchange_listener(context: WorkerContext, limit_s: float) -> None:
    """Writes into the store that a launcher serves at which port others are let in, or reads it there."""
    endpoint = context.endpoint
    try:
        served = dist.TCPStore(
            find_address(endpoint.host),
            endpoint.port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=limit_s),
        )
        # A launcher's store outlives the attempts.
        store = dist.PrefixStore(f"noether/{context.attempt}", served)
        if context.worker.rank == 0:
            store.set("listener", str(context.terms.listener_port))
        else:
            context.line.tell(RankNote("listener", int(store.get("listener"))))
    except (RuntimeError, OSError, ValueError) as error:
        where = f"the store of {endpoint.served_by} at {endpoint.host} port {endpoint.port}"
        raise NoetherError(
            f"rank {context.worker.rank} on {context.host} has not met rank 0 within {limit_s:g} s\n"
            f"  seen      {where}: {_first_line(error)}\n"
            "  expected  rank 0, started together with this rank\n"
            "  fix       see what the host of rank 0 says"
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
