"""`noether doctor`: each process checks its own host, the processes connect, and rank 0 prints one report for all.

Nothing here may hang: work that can hang runs in child processes or in threads that can be abandoned, and a watchdog
ends the rest.
"""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

from noether.config.schema import RunConfig
from noether.doctor.diagnosis import Diagnosis, refused
from noether.doctor.follower import DEFAULT_SECONDS, follow
from noether.doctor.leader import lead
from noether.doctor.own_host import RankChildren, TimeBudget, find_place, read_host, resolve_master
from noether.doctor.participant import Participant
from noether.doctor.report import DoctorReport, print_report
from noether.environments.endpoint import HeldPort, hold_port
from noether.environments.placement import Device, Endpoint, Placement, Worker
from noether.errors import ExitCode, RequestError

LOOPBACK = "127.0.0.1"
SHORTEST_SECONDS = 5.0
WATCHDOG_SECONDS = 5.0
"""If the doctor itself hangs, the watchdog ends it this long after its time limit: by default about a minute in all."""
NAME_SECONDS = 8.0
RANK_VARIABLES = ("SLURM_PROCID", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def doctor_here(load: Callable[[], RunConfig], seconds: float, as_json: bool) -> int:
    """Examines this machine, or the job this process is part of; returns 0 if no error was found, otherwise 1.

    `load` reads the configuration: under the watchdog, because its files may be on a dead file system. `seconds` is the
    time limit for everything.

    Raises:
        RequestError: the configuration is wrong.
    """
    report = DoctorReport()
    clock = TimeBudget(seconds)
    watchdog = threading.Timer(seconds + WATCHDOG_SECONDS, _give_up, (report, clock, as_json))
    watchdog.daemon = True
    watchdog.start()
    clock.step = "the configuration"
    config = load()
    try:
        speaks = _examine(config, report, clock)
    finally:
        watchdog.cancel()
    if speaks:
        print_report(report, as_json)
        return ExitCode.FAILED if any(one.level == "error" for one in report.findings) else ExitCode.DONE
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
    known, launch = find_place(config, facts)
    found += launch
    report.placement, report.host = known, facts.host
    if known is None or known.world_size == 1:
        placement, address = _alone(known, facts.host), LOOPBACK
        # The connection between ranks is tested with a second child.
        workers = (*placement.workers, Worker(1, 1, 0, Device("cpu")))
    else:
        placement, workers = known, known.workers
        address, names = resolve_master(placement.endpoint, clock.left(NAME_SECONDS))
        found.append(names)
    held: HeldPort | None = None
    served = bool(placement.endpoint.served_by)
    leads = placement.workers[0].rank == 0
    if leads:
        clock.step = "the port"
        try:
            held = hold_port(replace(placement.endpoint, port=0) if served else placement.endpoint)
        except RequestError as error:
            found.append(refused("port", error))
    # Rank 0's child serves the store at this port, unless a launcher serves one.
    children = RankChildren(workers, held.socket if held and not served else None)
    try:
        process = Participant(config, facts, placement, children, clock, found)
        if not leads:
            return follow(process, address, report)
        lead(process, address, held, report)
    finally:
        children.end()
        if held is not None:
            held.close()
    if known is None and any(os.environ.get(name, "0") != "0" for name in RANK_VARIABLES):
        # This looks like a rank other than 0: rank 0 prints the full report, the others only their own problems.
        report.as_follower()
    return True


def _alone(placement: Placement | None, host: str) -> Placement:
    """Returns the place of a process that is alone, or that its launcher refuses: it meets its children here."""
    if placement is None:
        here = (Worker(0, 0, 0, Device("cpu")),)
        return Placement("", 1, (host,), 0, here, Endpoint(LOOPBACK, 0), attempt=0, reasons={})
    endpoint = placement.endpoint
    port = 0 if endpoint.served_by else endpoint.port
    return replace(placement, endpoint=replace(endpoint, host=LOOPBACK, port=port, served_by=""))


def read_seconds(text: str | None) -> float:
    """Reads the value of --timeout. RequestError: not a number of seconds, or too few to find anything."""
    try:
        seconds = DEFAULT_SECONDS if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not SHORTEST_SECONDS <= seconds <= 3600:
        raise RequestError(
            "doctor-timeout",
            "--timeout must be a number of seconds",
            seen=f"--timeout {text}",
            expected=f"{SHORTEST_SECONDS:g} to 3600",
            fix=f"--timeout {DEFAULT_SECONDS:g}",
        )
    return seconds
