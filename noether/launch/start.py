"""The first moments of a run on a host: what it has found and holds, and whom it tells of an error."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from noether.common.errors import NoetherError, path_refusal
from noether.config.schema import RunConfig
from noether.launch.detect.driver import nvml_gpus
from noether.launch.detect.placement import LaunchRequest, Placement
from noether.launch.detect.process_facts import read_process_facts
from noether.launch.detect.resolve import resolve_or_on_cpus
from noether.launch.plan import launch_request, run_info
from noether.launch.processes.connector import Connector
from noether.launch.processes.context import RunInfo, WorkerReport
from noether.launch.processes.listener import RunPorts, hold_ports, listener_endpoint
from noether.launch.processes.worker import failure_report


@dataclass
class Start:
    """The start of a run on this host, as far as it has come.

    config: the settings, once they are known. placement, info, ports: where the ranks are, what they are given alike,
        and the ports that wait for those of other hosts, once they are held.
    has_ranks: whether the ranks here have run. moment: from which a time limit counts (monotonic).
    """

    config: RunConfig | None = None
    placement: Placement | None = None
    info: RunInfo | None = None
    ports: RunPorts | None = None
    has_ranks: bool = False
    moment: float = field(default_factory=time.monotonic)

    def hold_ports(self, placement: Placement, info: RunInfo) -> RunPorts:
        """Holds the run's ports, unless they are held; one that cannot be had is not asked for again.

        RequestError: a port is taken, or may not be bound.
        """
        if self.ports is None:
            self.placement, self.info, self.ports = placement, info, RunPorts()
            self.ports = hold_ports(placement, info)
        return self.ports


@contextmanager
def refusals_broadcast(adapt: Callable[[RunInfo], RunInfo] = lambda run: run) -> Iterator[Start]:
    """Tells them of an error that comes before this process's ranks have started; leaves once they know.

    At the latest after distributed.init_timeout_s, or two minutes. Without valid settings, nobody is told where the run
    has no job, as only they say where rank 0 is. `adapt` makes what the processes of the command are given of what a
    run's are. RequestError: in place of the error, which follows from it: the hosts have other settings.
    """
    start = Start()
    try:
        yield start
    except Exception as error:
        if start.has_ranks:
            raise
        told = None
        # Whoever cannot be reached waits, as for a host that is down; the store of a launcher needs torch.
        with suppress(NoetherError, OSError, ImportError):
            placement, is_certain = (start.placement, True) if start.placement else _place(start.config)
            info = start.info or adapt(run_info(start.config, placement, os.environ))
            known = start.config is not None or info.identity.job
            if known and len(placement.workers) < placement.world_size:
                report = failure_report(path_refusal(error) or error, placement.workers[0].rank, placement.host)
                report = replace(report, of_host=not is_certain)
                told = _tell_other_hosts(report, placement, info, start.hold_ports(placement, info))
        if told is not None and told.code == "hosts-differ":
            raise told.refusal from None
        raise
    finally:
        if start.ports is not None:
            start.ports.close()


def _place(config: RunConfig | None) -> tuple[Placement, bool]:
    """Finds where the ranks are, and whether it is certain which are here, as their devices are known or do not matter.

    Where no settings are known, without the driver, whose answer could hang.
    """
    request = launch_request(config) if config is not None else LaunchRequest(accelerator="cpu")
    driver = partial(nvml_gpus, config.distributed.driver_timeout_s) if config is not None else nvml_gpus
    placement, refusal = resolve_or_on_cpus(request, os.environ, socket.gethostname(), driver, read_process_facts())
    # Of several processes on a host each is one rank; one alone has a rank for each of its devices.
    is_one_of_several = len(placement.workers) == 1 < placement.local_world_size
    is_known = config is not None and refusal is None
    return placement, is_known or is_one_of_several or placement.workers[0].rank == 0


def _tell_other_hosts(report: WorkerReport, place: Placement, info: RunInfo, ports: RunPorts) -> WorkerReport | None:
    """Tells them of a refusal, and returns what the run is refused for."""
    listener = ports.listener
    if listener is None and place.workers[0].rank == 0:
        return None  # It has no port at which they could ask.
    endpoint, limit_s = place.endpoint, info.telling_s
    ranks = tuple(worker.rank for worker in place.workers)
    if endpoint.served_by:
        # With torch, which a launcher's store speaks.
        from noether.launch.process_group.stores import exchange_listener

        port = exchange_listener(endpoint, place.restarts, ports.listener_port, limit_s)
        endpoint = listener_endpoint(place, port)
    if listener is not None:
        return listener.refuse_all(report, len(ranks))
    connector = Connector(endpoint, place.host, ranks, info)
    connector.own_refusal, connector.deadline = report, time.monotonic() + limit_s
    connector.run()
    return connector.failure
