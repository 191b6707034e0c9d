"""Tells the other hosts of a run that this one refuses it, so that none of them waits for ranks that will not come."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from noether.config.schema import RunConfig
from noether.environments.driver import nvml_gpus
from noether.environments.placement import LaunchRequest, Placement
from noether.environments.process_facts import read_process_facts
from noether.environments.resolve import resolve_or_on_cpus
from noether.errors import NoetherError
from noether.planning.plan import launch_request, run_info
from noether.workers.connector import TELLING_S, Connector
from noether.workers.context import RunInfo, WorkerReport
from noether.workers.ports import hold_ports, listener_endpoint
from noether.workers.worker import failure_report


@dataclass
class Start:
    """The start of a run on this host: its settings, once they are known, and whether its ranks have run.

    Its time limit counts from the `moment` (monotonic).
    """

    config: RunConfig | None = None
    has_ranks: bool = False
    moment: float = field(default_factory=time.monotonic)


@contextmanager
def other_hosts_told(adapt: Callable[[RunInfo], RunInfo] = lambda run: run) -> Iterator[Start]:
    """Tells them of an error that comes before this process's ranks have started; leaves once they know.

    At the latest after distributed.init_timeout_s, or two minutes. Without valid settings, nobody is told where the run
    has no job, as only they say where rank 0 is. `adapt` makes what the processes of the command are given of what a
    run's are.

    Raises:
        RequestError: in place of the error, which follows from it: the hosts have other settings.
    """
    start = Start()
    try:
        yield start
    except Exception as error:
        if start.has_ranks:
            raise
        config, told = start.config, None
        # A launcher places this process whatever its devices are; asking the driver for them could hang.
        request = launch_request(config) if config is not None else LaunchRequest(accelerator="cpu")
        # Whoever cannot be reached waits, as for a host that is down; the store of a launcher needs torch.
        with suppress(NoetherError, OSError, ImportError):
            host, facts = socket.gethostname(), read_process_facts()
            placement = resolve_or_on_cpus(request, os.environ, host, nvml_gpus, facts)[0]
            info = adapt(run_info(config, placement, os.environ))
            if config is not None or info.identity.job:
                told = _tell_other_hosts(error, placement, info)
        if told is not None and told.code == "hosts-differ":
            raise told.refusal from None
        raise


def _tell_other_hosts(error: Exception, placement: Placement, info: RunInfo) -> WorkerReport | None:
    """Tells them of an error, and returns what the run is refused for."""
    if len(placement.workers) == placement.world_size:
        return None
    endpoint, limit_s = placement.endpoint, min(info.distributed.init_timeout_s, TELLING_S)
    ranks = tuple(worker.rank for worker in placement.workers)
    report = failure_report(error, ranks[0], placement.host)
    listener = hold_ports(placement, info).listener
    if endpoint.served_by:
        from noether.distributed.stores import exchange_listener  # With torch, which a launcher's store speaks.

        port = exchange_listener(endpoint, placement.restarts, listener.port if listener is not None else 0, limit_s)
        endpoint = listener_endpoint(placement, port)
    if listener is not None:
        return listener.refuse_all(report, len(ranks), limit_s)
    connector = Connector(endpoint, placement.host, ranks, info)
    connector.own_refusal, connector.deadline = report, time.monotonic() + limit_s
    connector.run()
    return connector.failure
