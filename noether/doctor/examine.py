"""`noether doctor`: each process checks its own host, the processes connect, and rank 0 prints one report for all.

The doctor must never hang: work that can hang runs in child processes or in threads that can be abandoned, and a
watchdog ends everything else.
"""

import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from noether.common.errors import ExitCode, RequestError
from noether.common.numbers import counted
from noether.common.suggest import number_of
from noether.config.distributed import DistributedConfig
from noether.config.schema import RunConfig
from noether.doctor.host_facts import HostFacts, read_host
from noether.doctor.participant import TORCH_SHARE, Participant, TimeBudget, follow, lead
from noether.doctor.report import Diagnosis, DoctorReport, print_report, refused
from noether.launch.detect.driver import Driver
from noether.launch.detect.placement import Device, Endpoint, Placement, Worker
from noether.launch.detect.process_facts import read_process_facts
from noether.launch.detect.resolve import RANK_VARIABLES, resolve_or_on_cpus
from noether.launch.plan import HOST_CHECKS, launch_request, run_info
from noether.launch.processes.context import RunInfo
from noether.launch.processes.hub import Spoke
from noether.launch.processes.listener import RunPorts, hold_ports
from noether.launch.processes.run import open_link
from noether.launch.processes.spawner import start_workers
from noether.launch.processes.watcher import LocalRanks
from noether.launch.processes.worker import openmp_defaults
from noether.launch.start import refusals_broadcast
from noether.training.preflight import check_software

DEFAULT_SECONDS = 50.0
SHORTEST_SECONDS = 5.0
MEETING_SHARE, JOIN_SHARE = 0.36, 0.44
"""Shares of the whole time: how long rank 0 waits for the other ranks, and how long these try to reach rank 0, which
may start to listen late, because it reads its own host's facts first."""
DRIVER_SHARE = 0.3
"""The longest time that the NVIDIA driver may take to answer, as a share of the whole time: 15 s by default."""
WATCHDOG_SECONDS = 5.0
"""If the doctor itself hangs, the watchdog ends it this many seconds after its time limit: by default after 55 s."""
RANK = "noether.doctor.participant.examine_rank"
SILENCE_S = 3600.0
"""Long enough (s) that no silent process counts as lost: all wait for their ranks, and requests have time limits."""


def doctor_here(overrides: Sequence[str], hp: str | None, seconds: float, as_json: bool) -> int:
    """Examine this machine, or the job this process is part of; return 0 if no error was found, otherwise 1.

    The configuration is read under the watchdog, because its files may be on a dead file system. `seconds` is the time
    limit for everything. RequestError: the configuration is wrong.
    """
    report = DoctorReport()
    clock = TimeBudget(seconds)
    watchdog = threading.Timer(seconds + WATCHDOG_SECONDS, _give_up, (report, clock, as_json))
    watchdog.daemon = True
    watchdog.start()
    clock.step = "the configuration"
    try:
        with refusals_broadcast(lambda run: _as_doctors(run, clock, JOIN_SHARE)):
            from noether.checkpoints.run_settings import load_run_config

            config = load_run_config(overrides, hp)
        speaks = _examine(config, report, clock)
    finally:
        watchdog.cancel()
        shutil.rmtree(clock.scratch, ignore_errors=True)
    if speaks:
        print_report(report, as_json)
    code = ExitCode.FAILED if speaks and any(one.level == "error" for one in report.findings) else ExitCode.DONE
    if multiprocessing.active_children():  # At exit, Python would wait for these, which hang in the kernel.
        os._exit(code)
    return code


def _give_up(report: DoctorReport, clock: TimeBudget, as_json: bool) -> None:
    """Print the findings so far and end the process, even if other threads hang."""
    report.findings.append(Diagnosis("doctor", "error", f"hangs in: {clock.step}", "an answer within its time limit"))
    print_report(report, as_json)
    sys.stdout.flush()
    shutil.rmtree(clock.scratch, ignore_errors=True)
    os._exit(ExitCode.FAILED)


def _examine(config: RunConfig, report: DoctorReport, clock: TimeBudget) -> bool:
    """Fill the report and return whether this process should print it."""
    clock.step = "the facts of this host"
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # Spawned processes must not import from the working folder either.
    facts, found = read_host(config, clock.left(DRIVER_SHARE))
    known, launch = find_place(config, facts)
    report.placement, report.host = known, facts.host
    placement = here = known if known is not None and known.world_size > 1 else _alone(known, facts.host)
    if here.world_size == 1:  # The connection between ranks is tested with a second one.
        here = replace(here, world_size=2, workers=(*here.workers, Worker(1, 1, 0, Device("cpu"))))
    run = _as_doctors(run_info(config, here, os.environ), clock, JOIN_SHARE if here.workers[0].rank else MEETING_SHARE)
    if not any(folder.answered for folder in facts.folders if folder.fixed_by == "output_path"):
        run = replace(run, shared_folder=None)
    clock.step = "a folder for the logs of the ranks"
    clock.scratch = tempfile.mkdtemp(prefix="noether-doctor-")
    run, ports, refusal = replace(run, log_folder=Path(clock.scratch)), RunPorts(), None
    clock.step = "the port, and the start of the ranks"
    try:
        ports = hold_ports(here, run)
    except RequestError as error:
        refusal = error
    os.environ.update(openmp_defaults(os.environ))
    # The ranks import torch, each with one thread, while the processes connect, so starting them costs no extra time.
    alone, asks = replace(here, cpus=None), here.workers[0].rank
    workers = LocalRanks(start_workers(alone, RANK, asks, run, ports, methods=("spawn",)))
    link = open_link(here, run, ports)
    link.not_met = refusal
    try:
        process = Participant(config, facts, placement, workers, link, clock, [*found, *launch])
        if isinstance(link, Spoke):
            return follow(process, link, report)
        lead(process, link, ports.listener, report)
    finally:
        workers.end_all(clean=False)
        link.close()
    if known is None and any(os.environ.get(name, "0") != "0" for name in RANK_VARIABLES):
        # This looks like a rank above 0: only rank 0 prints the full report, any other rank its own problems.
        report.as_follower()
    return True


def find_place(config: RunConfig, facts: HostFacts) -> tuple[Placement | None, list[Diagnosis]]:
    """Return this process's placement in the run (None if the launcher refuses it), and the findings.

    A host whose devices are refused takes part with its CPUs, so that rank 0 can report why.
    """
    driver = facts.driver or Driver()  # Querying the driver again could hang.
    request, process = launch_request(config), read_process_facts()
    try:
        placement, refusal = resolve_or_on_cpus(request, os.environ, facts.host, driver.listed, process)
    except RequestError as error:
        return None, [refused("launch", error)]
    if refusal is not None:
        return placement, [refused("launch", refusal)]
    nodes = ", ".join(placement.nodes[:4]) + (" …" if len(placement.nodes) > 4 else "")
    ranks = counted(placement.world_size, "rank")
    found = [Diagnosis("launch", "ok", f"{placement.launcher}: {ranks} on {nodes} ({placement.reasons['launcher']})")]
    found += [Diagnosis("launch", "warning", text) for text in placement.warnings]
    for name, check in {**HOST_CHECKS, "software": check_software}.items():
        try:
            check(config, placement)
        except RequestError as error:
            # A batch that these ranks cannot share is not a fault of the machine: the run may use other settings.
            found.append(replace(refused(name, error), level="warning" if name == "batch" else "error"))
    return placement, found


def _as_doctors(run: RunInfo, clock: TimeBudget, share: float) -> RunInfo:
    """Return a run's info adapted to the doctor's processes, under a launcher name that no run has.

    The processes meet within `share` of the time, even if their devices differ; the doctor compares devices later.
    """
    identity = replace(run.identity, launcher=f"doctor:{run.identity.launcher}", device_kind="")
    limits = DistributedConfig(
        init_timeout_s=clock.left(share), timeout_s=clock.left(TORCH_SHARE), heartbeat_timeout_s=SILENCE_S
    )
    return replace(run, identity=identity, distributed=limits)


def _alone(placement: Placement | None, host: str) -> Placement:
    """Return the placement for a process whose workers meet on this host: its own, else one worker on the CPU."""
    if placement is None:
        here = (Worker(0, 0, 0, Device("cpu")),)
        return Placement("", 1, (host,), 0, here, Endpoint("127.0.0.1", 0), restarts=0, reasons={}, local_world_size=1)
    endpoint = placement.endpoint
    port = 0 if endpoint.served_by else endpoint.port
    return replace(placement, endpoint=replace(endpoint, host="127.0.0.1", port=port, served_by=""))


def read_seconds(text: str | None) -> float:
    """Read the value of --timeout. RequestError: it is not a number of seconds, or is too short."""
    if text is None:
        return DEFAULT_SECONDS
    return number_of("timeout", text, float, SHORTEST_SECONDS, 3600, f"--timeout {DEFAULT_SECONDS:g}")
