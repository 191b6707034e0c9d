"""The stores of a run's ranks: the one that rank 0 serves, and the one that a launcher such as torchrun serves."""

import os
from datetime import timedelta

import torch.distributed as dist

from noether.common.errors import EndedByAnother, JoinError
from noether.launch.detect.network import find_address, interface_towards
from noether.launch.detect.placement import Endpoint
from noether.launch.processes.rank_state import MeetingPoint


def join_store(point: MeetingPoint, listen_descriptor: int | None, limit_s: float) -> dist.Store:
    """Joins the store that rank 0 serves, on the socket of this descriptor; None for every other rank.

    Raises:
        EndedByAnother: rank 0 is gone.
    """
    try:
        return dist.TCPStore(
            point.address,
            point.port,
            is_master=listen_descriptor is not None,
            wait_for_workers=False,  # The parent processes have counted the ranks.
            timeout=timedelta(seconds=limit_s),
            master_listen_fd=listen_descriptor,
        )
    except RuntimeError as error:
        raise EndedByAnother(
            "rank-0-ended",
            "rank 0 has ended before all ranks had joined",
            seen=f"the store at {point.address} port {point.port} is gone ({_first_line(error)})",
            expected="rank 0, which serves it",
            fix="see what the host of rank 0 says",
        ) from None


def exchange_listener(endpoint: Endpoint, restarts: int, port: int, limit_s: float) -> int:
    """Exchanges, in the store that a launcher serves at `endpoint`, the port where rank 0's parent accepts others.

    Rank 0 writes its `port`; the others give 0. Returns the port.

    Raises:
        JoinError: the store does not answer, or rank 0 has not written its port in time.
    """
    try:
        served = dist.TCPStore(
            find_address(endpoint.host),
            endpoint.port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=limit_s),
        )
        store = dist.PrefixStore(f"noether/{restarts}", served)  # A launcher's store outlives a restart.
        if port:
            store.set("listener", str(port))
            return port
        return int(store.get("listener"))
    except (RuntimeError, OSError, ValueError) as error:
        raise JoinError(
            "launcher-store-silent",
            f"the ranks have not met in the store of {endpoint.served_by} within {limit_s:g} s",
            seen=f"at {endpoint.host} port {endpoint.port}: {_first_line(error)}",
            expected="rank 0, started together with this rank",
            fix="see what the host of rank 0 says",
        ) from None


def choose_interface(address: str) -> None:
    """Makes gloo and NCCL use the interface that leads to rank 0, where the user has not chosen one.

    Gloo otherwise binds what the host's own name resolves to: often 127.0.0.1, or nothing in a container.
    """
    interface = interface_towards(address)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
