"""The ports that the parent process of rank 0 holds from before its run begins: the listener's, and the store's."""

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace

from noether.common.errors import RequestError
from noether.launch.detect.endpoint import HeldPort, PublishedPort, find_address, hold_port
from noether.launch.detect.placement import Endpoint, Placement
from noether.launch.processes.connector import rank_twice, who_listens
from noether.launch.processes.context import RunInfo
from noether.launch.processes.link import Caller, say
from noether.launch.processes.listener import RunListener

ANSWER_S = 2.0
"""How long whoever has the port of a run may take to say that it is rank 0 of it, before another program is there."""


@dataclass(frozen=True)
class RunPorts:
    """The ports of a run that this process holds: none unless it answers for rank 0 of several.

    `listener` accepts the other parent processes; None where there are none. `store` is for the store of the ranks.
    """

    listener: RunListener | None = None
    store: HeldPort | None = None

    @property
    def store_port(self) -> int:
        """The number of the store's port; 0 where another process holds it."""
        return self.store.endpoint.port if self.store is not None else 0

    def close(self) -> None:
        """Closes this process's copies; that of a rank stays open."""
        for port in (self.listener, self.store):
            if port is not None:
                port.close()


def hold_ports(placement: Placement, run_info: RunInfo) -> RunPorts:
    """Holds the ports of a run where this process answers for its rank 0.

    Where other parent processes answer for some ranks, the endpoint's port is the listener's, and the store has a free
    one. Where nobody asked for the port that all of them work out, and another program has it, a free one is taken and
    published in a folder that all hosts see.

    RequestError: the port is taken, and it was asked for, or there is no folder to publish another in.
    """
    ranks = tuple(worker.rank for worker in placement.workers)
    if 0 not in ranks or placement.world_size == 1:
        return RunPorts()
    beside = listener_endpoint(placement)
    if len(ranks) == placement.world_size:
        return RunPorts(store=hold_port(beside if placement.endpoint.served_by else placement.endpoint))
    caller = Caller(placement.host, os.getpid(), ranks, run_info.identity, secrets.token_hex(16))
    held = hold_port(beside) if placement.endpoint.served_by else _hold(placement.endpoint, caller, run_info)
    try:
        return RunPorts(RunListener(held, run_info), hold_port(beside))
    except RequestError:
        held.close()
        raise


def _hold(endpoint: Endpoint, caller: Caller, run_info: RunInfo) -> HeldPort:
    published = None
    if run_info.shared_folder is not None and not endpoint.asked_by:
        published = PublishedPort(run_info.shared_folder, run_info.identity)
        published.remove()  # Of a start whose ranks never met; they would look for it there.
    try:
        return hold_port(endpoint)
    except RequestError:
        with suppress(OSError):
            address = find_address(endpoint.host)
            there = who_listens(address, endpoint.port, caller, run_info.start_key, ANSWER_S)
            if there is not None and there.identity == run_info.identity:
                raise rank_twice(0, caller.host, run_info.identity) from None
        if published is None:
            raise
    held = hold_port(replace(endpoint, port=0))
    try:
        published.write(held.endpoint.host, held.endpoint.port)
    except OSError:
        held.close()
        return hold_port(endpoint)  # It refuses in the words that fit.
    say(
        f"port {endpoint.port} on {endpoint.host} is taken by another program; the ranks meet at port "
        f"{held.endpoint.port}, published in {published.path.parent}"
    )
    return held


def listener_endpoint(place: Placement, port: int = 0) -> Endpoint:
    """Returns where the listener is beside a store that a launcher serves: on loopback where that is enough."""
    host = "127.0.0.1" if place.local_world_size == place.world_size else place.endpoint.host
    return Endpoint(host, port, place.endpoint.asked_by)
