"""The first moments of a run, in which the fork server starts before this process imports what else it needs."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from noether.common.errors import NoetherError, RequestError, path_refusal
from noether.config.distributed import DistributedConfig
from noether.config.schema import RunConfig
from noether.launch.detect.driver import nvml_gpus
from noether.launch.detect.placement import LaunchRequest, Placement
from noether.launch.detect.process_facts import read_process_facts
from noether.launch.detect.resolve import resolve_or_on_cpus
from noether.launch.plan import launch_request, plan_run, run_info
from noether.launch.processes.connector import Connector
from noether.launch.processes.context import RunInfo, WorkerReport
from noether.launch.processes.listener import RunPorts, hold_ports, listener_endpoint
from noether.launch.processes.spawner import warm_up
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
def other_hosts_told(adapt: Callable[[RunInfo], RunInfo] = lambda run: run) -> Iterator[Start]:
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
    host, facts = socket.gethostname(), read_process_facts()
    limits = config.distributed if config is not None else DistributedConfig()
    driver = partial(nvml_gpus, limits.driver_timeout_s)
    placement, refusal = resolve_or_on_cpus(request, os.environ, host, driver, facts)
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

        port = exchange_listener(endpoint, place.restarts, listener.port if listener is not None else 0, limit_s)
        endpoint = listener_endpoint(place, port)
    if listener is not None:
        return listener.refuse_all(report, len(ranks))
    connector = Connector(endpoint, place.host, ranks, info)
    connector.own_refusal, connector.deadline = report, time.monotonic() + limit_s
    connector.run()
    return connector.failure


def check_flags(config: RunConfig, reset: bool, tensorboard: bool) -> None:
    """Refuses to start a run over that has no name or is to be resumed, and to serve events that nobody writes."""
    if tensorboard and not config.tracker.tensorboard:
        raise RequestError("tb-needs-event-files", "--tb needs event files", seen="--tb and tracker.tensorboard=false",
                           expected="a run that writes them, which is the default",
                           fix="--tb tracker.tensorboard=true")  # fmt: skip
    if reset and config.resume is not None:
        raise RequestError("resume-and-reset", "a run is either resumed or started over",
                           seen=f"--reset and resume={config.resume}", expected="one of the two",
                           fix="--reset resume=null      (or leave out --reset)")  # fmt: skip
    if reset and config.run_id is None:
        raise RequestError("reset-unnamed", "--reset needs to know which run", seen="run_id is not set",
                           expected="the name of the run that is started over", fix="--reset run_id=NAME")  # fmt: skip


def check_switches(*, multirun: bool, dry_run: bool, reset: bool, tb: bool, json: bool) -> None:
    """Refuse switches of `noether train` that do not go together."""
    if json and (multirun or not dry_run):
        raise RequestError("json-needs-dry-run", "--json needs --dry-run", seen="train --json",
                           expected="the metrics of a run are in its result.json, those of a sweep in NAME.sweep.json",
                           fix="noether train --dry-run --json")  # fmt: skip
    if multirun and (reset or tb):
        raise RequestError("not-with-a-sweep", "--reset and --tb do not work with a sweep",
                           seen="train -m" + " --reset" * reset + " --tb" * tb,
                           expected="a sweep without them; noether tensorboard serves several runs",
                           fix="noether train -m …      (without them, and with another run_id)")  # fmt: skip


def train_here(config: RunConfig, start: Start, *, reset: bool = False, tensorboard: bool = False) -> int:
    """Trains on the workers that this process answers for, and returns the exit code of the run.

    `start` learns how far it has come. `reset` starts the run of this name over and keeps its folder aside;
    `tensorboard` serves its events beside it, on this machine's loopback.
    """
    plan = plan_run(config)
    start.placement = plan.placement
    if len(plan.placement.workers) > 1:
        warm_up()  # It imports torch while this process imports, shows the plan and looks after the data.
    from noether.training.start import start_run

    return start_run(config, plan, start, reset=reset, tensorboard=tensorboard)
