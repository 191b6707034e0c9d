"""The state of a run that is starting on this host, and the broadcast of an early error to the other hosts."""

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
    """The state of a run that is starting on this host.

    `config`: the settings, once they are known. `placement`: where the ranks are. `info`: the information that the
    ranks share. `ports`: the held ports, to which other hosts connect. `has_ranks`: whether the ranks here have run.
    `moment`: the time at which the time limit begins to count, in seconds of the monotonic clock.
    """

    config: RunConfig | None = None
    placement: Placement | None = None
    info: RunInfo | None = None
    ports: RunPorts | None = None
    has_ranks: bool = False
    moment: float = field(default_factory=time.monotonic)

    def hold_ports(self, placement: Placement, info: RunInfo) -> RunPorts:
        """Hold the run's ports, unless an earlier call tried to. RequestError: a port is taken or cannot be bound."""
        if self.ports is None:
            self.placement, self.info, self.ports = placement, info, RunPorts()
            self.ports = hold_ports(placement, info)
        return self.ports


@contextmanager
def refusals_broadcast(adapt: Callable[[RunInfo], RunInfo] = lambda run: run) -> Iterator[Start]:
    """Report to the other hosts an error that occurs before this process's ranks start; wait until they have it.

    The wait is limited to two minutes, or distributed.init_timeout_s if that is shorter. If the settings are invalid
    and the run has no job, no host gets a report, because only the settings show where rank 0 is. `adapt` turns the
    run's shared information into that of the command. RequestError: the hosts' settings differ, which caused the error.
    """
    start = Start()
    try:
        yield start
    except Exception as error:
        if start.has_ranks:
            raise
        told = None
        # A host that gets no report waits until its time limit. ImportError: a launcher's store needs torch.
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
    """Return the placement, and whether it is certain which ranks this process has.

    If `config` is None, the driver is not asked for devices, because it could hang.
    """
    request = launch_request(config) if config is not None else LaunchRequest(accelerator="cpu")
    driver = partial(nvml_gpus, config.distributed.driver_timeout_s) if config is not None else nvml_gpus
    placement, refusal = resolve_or_on_cpus(request, os.environ, socket.gethostname(), driver, read_process_facts())
    # Each of several processes on a host is one rank; a single process has a rank for each of its devices.
    is_one_of_several = len(placement.workers) == 1 < placement.local_world_size
    is_known = config is not None and refusal is None
    return placement, is_known or is_one_of_several or placement.workers[0].rank == 0


def _tell_other_hosts(report: WorkerReport, place: Placement, info: RunInfo, ports: RunPorts) -> WorkerReport | None:
    """Tell the other hosts that the run is refused; return the failure that rank 0's host names as the reason."""
    listener = ports.listener
    if listener is None and place.workers[0].rank == 0:
        return None  # There is no port to which the other hosts could connect.
    endpoint, limit_s = place.endpoint, info.telling_s
    ranks = tuple(worker.rank for worker in place.workers)
    if endpoint.served_by:
        # This import needs torch, which implements the launcher's store.
        from noether.launch.process_group.stores import exchange_listener

        port = exchange_listener(endpoint, place.restarts, ports.listener_port, limit_s)
        endpoint = listener_endpoint(place, port)
    if listener is not None:
        return listener.refuse_all(report, len(ranks))
    connector = Connector(endpoint, place.host, ranks, info)
    connector.own_refusal, connector.deadline = report, time.monotonic() + limit_s
    connector.run()
    return connector.failure
