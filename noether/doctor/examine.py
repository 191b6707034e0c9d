"""`noether doctor`: each process checks its own host, the processes connect, and rank 0 prints one report for all.

Nothing here may hang: work that can hang runs in child processes or in threads that can be abandoned, and a watchdog
ends the rest.
"""

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace

from noether.common.errors import ExitCode, RequestError
from noether.common.flags import number_of
from noether.config.distributed import DistributedConfig
from noether.config.schema import RunConfig
from noether.doctor.diagnosis import Diagnosis
from noether.doctor.follower import follow
from noether.doctor.host_facts import HostFacts
from noether.doctor.leader import lead
from noether.doctor.own_host import RankChildren, TimeBudget, find_place, read_host
from noether.doctor.participant import MEETING_SHARE, Participant
from noether.doctor.report import DoctorReport, print_report
from noether.launch.detect.endpoint import LOOPBACK
from noether.launch.detect.placement import Device, Endpoint, Placement, Worker
from noether.launch.detect.resolve import RANK_VARIABLES
from noether.launch.planning.plan import run_info
from noether.launch.processes.context import RunInfo
from noether.launch.processes.hub import Hub
from noether.launch.processes.ports import RunPorts, hold_ports
from noether.launch.processes.run import open_link
from noether.launch.processes.spoke import Spoke
from noether.training.refusing import other_hosts_told

DEFAULT_SECONDS = 50.0
SHORTEST_SECONDS = 5.0
JOIN_SHARE = 0.44
"""How long to try to reach rank 0, as a share of the whole time. Rank 0 may start to listen late, because it reads its
own host's facts first."""
WATCHDOG_SECONDS = 5.0
"""If the doctor itself hangs, the watchdog ends it this long after its time limit: by default about a minute in all."""
SILENCE_S = 3600.0
"""No process counts as lost because it is silent: each waits for its own children, and every question has a limit."""


def doctor_here(overrides: Sequence[str], hp: str | None, seconds: float, as_json: bool) -> int:
    """Examines this machine, or the job this process is part of; returns 0 if no error was found, otherwise 1.

    The configuration is read under the watchdog, because its files may be on a dead file system. `seconds` is the time
    limit for everything.

    Raises:
        RequestError: the configuration is wrong.
    """
    report = DoctorReport()
    clock = TimeBudget(seconds)
    watchdog = threading.Timer(seconds + WATCHDOG_SECONDS, _give_up, (report, clock, as_json))
    watchdog.daemon = True
    watchdog.start()
    clock.step = "the configuration"
    try:
        with other_hosts_told(lambda run: _as_doctors(run, clock.share(JOIN_SHARE))):
            from noether.checkpoints.own_settings import load_run_config

            config = load_run_config(overrides, hp)
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
    placement = here = known if known is not None and known.world_size > 1 else _alone(known, facts.host)
    if here.world_size == 1:  # The connection between ranks is tested with a second child.
        here = replace(here, world_size=2, workers=(*here.workers, Worker(1, 1, 0, Device("cpu"))))
    leads = here.workers[0].rank == 0
    run_info = _run_info(config, facts, here, clock.share(MEETING_SHARE if leads else JOIN_SHARE))
    clock.step, refusal = "the port", None
    ports = RunPorts()
    try:
        ports = hold_ports(here, run_info)
    except RequestError as error:
        refusal = error
    children = RankChildren(here.workers, ports.store)
    if ports.store is not None:
        ports.store.close()  # The child of rank 0 has it.
    link: Hub | Spoke | None = None
    try:
        process = Participant(config, facts, placement, children, clock, found)
        link = open_link(here, run_info, ports)
        if isinstance(link, Spoke):
            return follow(process, link, report)
        link.not_met = refusal
        lead(process, link, ports.listener, report)
    finally:
        children.end()
        if link is not None:
            link.close()
    if known is None and any(os.environ.get(name, "0") != "0" for name in RANK_VARIABLES):
        # This looks like a rank other than 0: rank 0 prints the full report, the others only their own problems.
        report.as_follower()
    return True


def _run_info(config: RunConfig, facts: HostFacts, placement: Placement, seconds: float) -> RunInfo:
    """Returns what a run of this configuration would be given, under a name that no run has.

    Its processes meet within `seconds`. A shared folder whose file system does not answer is left out.
    """
    run = _as_doctors(run_info(config, placement, os.environ), seconds)
    answers = any(folder.answered for folder in facts.folders if folder.fixed_by == "output_path")
    return run if answers else replace(run, shared_folder=None)


def _as_doctors(run: RunInfo, seconds: float) -> RunInfo:
    """Returns what the doctor's processes are given for a run: they meet whatever their devices, which are compared."""
    identity = replace(run.identity, launcher=f"doctor:{run.identity.launcher}", device_kind="")
    limits = DistributedConfig(init_timeout_s=seconds, heartbeat_timeout_s=SILENCE_S)
    return replace(run, identity=identity, distributed=limits)


def _alone(placement: Placement | None, host: str) -> Placement:
    """Returns the place of a process that is alone, or that its launcher refuses: it meets its children here."""
    if placement is None:
        here = (Worker(0, 0, 0, Device("cpu")),)
        return Placement("", 1, (host,), 0, here, Endpoint(LOOPBACK[0], 0), restarts=0, reasons={})
    endpoint = placement.endpoint
    port = 0 if endpoint.served_by else endpoint.port
    return replace(placement, endpoint=replace(endpoint, host=LOOPBACK[0], port=port, served_by=""))


def read_seconds(text: str | None) -> float:
    """Reads the value of --timeout. RequestError: not a number of seconds, or too few to find anything."""
    if text is None:
        return DEFAULT_SECONDS
    return number_of("timeout", text, float, SHORTEST_SECONDS, 3600, f"--timeout {DEFAULT_SECONDS:g}")
