"""`noether doctor`: each process checks its own host, the processes connect, and rank 0 prints one report for all.

Nothing here may hang: work that can hang runs in child processes or in threads that can be abandoned, and a watchdog
ends the rest.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable

from noether.config.schema import RunConfig
from noether.doctor.chain import CHAIN, World, walk_chain
from noether.doctor.diagnosis import Diagnosis, refused, skipped
from noether.doctor.follower import DEFAULT_SECONDS, follow
from noether.doctor.host_facts import HostFacts
from noether.doctor.leader import lead
from noether.doctor.own_host import (
    LOOPBACK,
    RankChildren,
    TimeBudget,
    find_place,
    host_findings,
    located,
    read_host,
    resolve_master,
)
from noether.doctor.participant import Participant
from noether.doctor.report import DoctorReport, print_report
from noether.environments.endpoint import HeldPort, hold_port
from noether.environments.placement import Endpoint, Placement
from noether.errors import ExitCode, RequestError

SHORTEST_SECONDS = 5.0
WATCHDOG_SECONDS = 5.0
"""If the doctor itself hangs, the watchdog ends it this long after its time limit: by default about a minute in all."""
NAME_SECONDS = 8.0
RANK_VARIABLES = ("SLURM_PROCID", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def doctor_here(load: Callable[[], RunConfig], seconds: float, as_json: bool) -> int:
    """Examines this machine, or the job this process is part of, and returns the exit code.

    Args:
        load: reads the configuration; called under the watchdog, because its files may be on a dead file system.
        seconds: time limit for everything.
        as_json: print one JSON object.

    Returns:
        0 if no error was found, otherwise 1.

    Raises:
        RequestError: the configuration is wrong.
    """
    report = DoctorReport(seconds)
    clock = TimeBudget(seconds)
    watchdog = threading.Timer(seconds + WATCHDOG_SECONDS, _give_up, (report, clock, as_json))
    watchdog.daemon = True
    watchdog.start()
    clock.enter("the configuration")
    config = load()
    try:
        speaks = _examine(config, report, clock)
    finally:
        watchdog.cancel()
    if speaks:
        print_report(report, as_json)
        return ExitCode.FAILED if report.errors else ExitCode.DONE
    return ExitCode.DONE


def _give_up(report: DoctorReport, clock: TimeBudget, as_json: bool) -> None:
    """Prints what is known so far and ends the process, even if other threads hang."""
    report.findings.append(Diagnosis("doctor", "error", f"hangs in: {clock.step}", "an answer within its time limit"))
    print_report(report, as_json)
    sys.stdout.flush()
    os._exit(ExitCode.FAILED)


def _examine(config: RunConfig, report: DoctorReport, clock: TimeBudget) -> bool:
    """Fills the report and returns whether this process should print it."""
    facts, found = read_host(config, clock)
    placement, launch = find_place(config, facts)
    found += launch
    if placement is None or placement.world_size == 1:
        return _examine_alone(config, facts, placement, found, report, clock)
    ranks = tuple(worker.rank for worker in placement.workers)
    report.describe(placement, facts.host)
    address, names = resolve_master(placement.endpoint, clock.left(NAME_SECONDS))
    found.append(names)
    held: HeldPort | None = None
    if 0 in ranks and not placement.endpoint.served_by:
        clock.enter("the port")
        try:
            held = hold_port(placement.endpoint)
        except RequestError as error:
            found.append(refused("port", error))
    children = _start_children(placement, ranks, held.socket if held else None)
    try:
        process = Participant(config, facts, placement, ranks, children=children, clock=clock, found=found)
        if 0 in ranks:
            lead(process, address, held, report)
            return True
        return follow(process, address, report)
    finally:
        children.end()
        if held is not None:
            held.close()


def _start_children(placement: Placement, ranks: tuple[int, ...], listening: socket.socket | None) -> RankChildren:
    devices = [worker.device.index if worker.device.kind == "cuda" else None for worker in placement.workers]
    return RankChildren(ranks, devices, listening)


def _examine_alone(
    config: RunConfig,
    facts: HostFacts,
    placement: Placement | None,
    found: list[Diagnosis],
    report: DoctorReport,
    clock: TimeBudget,
) -> bool:
    """Examines a process that is alone or has no known place in a run; tests the chain with two local children."""
    said = next((os.environ[name] for name in RANK_VARIABLES if os.environ.get(name, "0") != "0"), "")
    report.describe(placement, facts.host)
    endpoint = placement.endpoint if placement is not None else Endpoint(LOOPBACK, 0)
    held: HeldPort | None = None
    try:
        held = hold_port(endpoint)
    except RequestError as error:
        found.append(refused("port", error))
    cuda = bool(placement and placement.workers[0].device.kind == "cuda")
    children = RankChildren((0, 1), (0 if cuda else None, None), held.socket if held else None)
    try:
        found += host_findings(config, facts, placement, children, clock)
        report.add_host(facts, (0,))
        if held is None:
            chain = [skipped(name, "the port is taken") for name in CHAIN]
        elif "error" in children.versions:
            chain = [skipped(name, "torch cannot be imported") for name in CHAIN]
        else:
            gpus = tuple(children.gpu_ranks)
            world = World(2, LOOPBACK, held.endpoint.port, served_by="", attempt=0, gpu_ranks=gpus, hosts=(facts.host,))
            chain = walk_chain(world, children.step, clock.enter, clock.left)
    finally:
        children.end()
        if held is not None:
            held.close()
    report.findings += [*located(found, facts.host, ()), *chain]
    if placement is None and said:
        # This looks like a rank other than 0: rank 0 prints the full report, the others only their own problems.
        report.as_follower()
    return True


def read_seconds(text: str | None) -> float:
    """Reads the value of --timeout.

    Raises:
        RequestError: it is not a number of seconds, or is too short to find anything.
    """
    try:
        seconds = DEFAULT_SECONDS if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not SHORTEST_SECONDS <= seconds <= 3600:
        raise RequestError(
            "--timeout must be a number of seconds",
            seen=f"--timeout {text}",
            expected=f"{SHORTEST_SECONDS:g} to 3600",
            fix=f"--timeout {DEFAULT_SECONDS:g}",
        )
    return seconds
