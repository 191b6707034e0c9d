"""Runs a placement. A run of one worker stays in this process; otherwise, workers are child processes."""

import os
import pickle
import signal
import sys
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from noether.common.errors import signal_code
from noether.launch.detect.limits import raise_limits
from noether.launch.detect.placement import Placement
from noether.launch.processes.context import RunInfo
from noether.launch.processes.failure import describe_failure, is_failure
from noether.launch.processes.hub import Hub, Spoke
from noether.launch.processes.listener import RunPorts, hold_ports, listener_endpoint
from noether.launch.processes.spawner import make_log_folder, start_workers, worker_contexts
from noether.launch.processes.watcher import watch_workers
from noether.launch.processes.worker import (
    call_target,
    changed_environment,
    error_file,
    openmp_defaults,
    worker_environment,
    write_error_file,
)


def run_placement(
    placement: Placement,
    target: str,
    payload: Any,
    log_folder: Path,
    run_info: RunInfo | None = None,
    ports: RunPorts | None = None,
) -> int:
    """Run `target(context, payload)` on every worker of this process, and return the exit code.

    If the whole run has one worker, it runs in this process: there is no child process, no changed signal handler and
    no log file, and a debugger works as usual. In a larger run, the workers are child processes, which this process
    watches. A worker's failure is printed to stderr once, and never raised. The exit code is 0 (done), 75
    (checkpointed), 2 (the request was wrong), 69 (not all ranks came) or that of the first rank that failed.

    `target`: the dotted path of a function. `payload`: any picklable object that is not defined in `__main__`.
    `ports`: ports that the caller has reserved, and will close.
    RequestError, before any worker runs: the port is taken, or a setting of the launch is wrong.
    """
    os.environ.update(openmp_defaults(os.environ))
    raise_limits()
    run_info = replace(run_info or RunInfo(), log_folder=log_folder)
    if placement.world_size == 1:
        return _run_here(placement, target, payload, run_info)
    with closing(hold_ports(placement, run_info)) if ports is None else nullcontext(ports) as ports:
        try:
            running = start_workers(placement, target, payload, run_info, ports)
        except KeyboardInterrupt:
            print("noether: interrupted while workers were started", file=sys.stderr)
            return signal_code(signal.SIGINT)
        link = open_link(placement, run_info, ports)
        # Ranks that are started by hand on another host, and pods, have a terminal or log without rank 0's output.
        says_more = isinstance(link, Spoke) and placement.launcher not in ("slurm", "mpi", "torchrun")
        return watch_workers(running, link=link, says_more=says_more)


def open_link(placement: Placement, run_info: RunInfo, ports: RunPorts) -> Hub | Spoke:
    """Return this parent process's link to the other parents. If there are none, return a hub without a listener."""
    ranks, endpoint = [worker.rank for worker in placement.workers], placement.endpoint
    if endpoint.served_by:
        endpoint = listener_endpoint(placement, ports.listener_port)
    if 0 not in ranks:
        return Spoke(ranks, placement.host, run_info, endpoint)
    return Hub(ranks, placement.host, run_info, endpoint, ports)


def _run_here(placement: Placement, target: str, payload: Any, run_info: RunInfo) -> int:
    log_folder = make_log_folder(run_info)
    with suppress(OSError):  # An old file, from a previous launch, does no harm if it cannot be deleted.
        error_file(log_folder, placement.workers[0].rank).unlink()
    (context,) = worker_contexts(placement, RunPorts(), run_info)
    with changed_environment(worker_environment(context, os.environ)):
        report = call_target(target, context, pickle.dumps(payload))
    if is_failure(report):
        write_error_file(report, log_folder)
        print(describe_failure(report, {}, run_info, placement.world_size), file=sys.stderr, flush=True)
    return report.exit_code
