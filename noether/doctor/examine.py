"""`noether doctor`: each process checks its host, the processes connect, and rank 0 prints one report about all hosts.

The doctor must never hang. Whatever can hang runs in a child process, or in a thread that can be abandoned; a watchdog
ends the doctor if anything else hangs.
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
"""Shares of the time limit: how long rank 0 waits for the other ranks, and how long the other ranks try to reach rank
0, which may start to listen late, because it reads its own host's facts first."""
DRIVER_SHARE = 0.3
"""The share of the time limit after which the NVIDIA driver counts as hung: by default after 15 s."""
WATCHDOG_SECONDS = 5.0
"""The watchdog ends a doctor that hangs this many seconds after the time limit: by default after 55 s in all."""
RANK = "noether.doctor.participant.examine_rank"
SILENCE_S = 3600.0
"""The heartbeat timeout in s: so long that no silent process counts as lost. The doctor has time limits instead."""


def doctor_here(overrides: Sequence[str], hp: str | None, seconds: float, as_json: bool) -> int:
    """Examine this machine, or this process's part of a job; return 0 if no error was found, otherwise 1.

    `seconds` is the time limit for the whole examination. The watchdog is started before the configuration is read,
    because the configuration's files may be on a dead file system. RequestError: the configuration is wrong.
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
    if multiprocessing.active_children():  # Python would wait at exit for children that hang in the kernel.
        os._exit(code)
    return code


def _give_up(report: DoctorReport, clock: TimeBudget, as_json: bool) -> None:
    """Print what has been found so far, and end the process even if other threads hang."""
    report.findings.append(Diagnosis("doctor", "error", f"hangs in: {clock.step}", "an answer within its time limit"))
    print_report(report, as_json)
    sys.stdout.flush()
    shutil.rmtree(clock.scratch, ignore_errors=True)
    os._exit(ExitCode.FAILED)


def _examine(config: RunConfig, report: DoctorReport, clock: TimeBudget) -> bool:
    """Fill the report; return whether this process must print it."""
    clock.step = "the facts of this host"
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # Spawned processes must not import from the working folder either.
    facts, found = read_host(config, clock.left(DRIVER_SHARE))
    known, launch = find_place(config, facts)
    report.placement, report.host = known, facts.host
    placement = here = known if known is not None and known.world_size > 1 else _alone(known, facts.host)
    if here.world_size == 1:  # A connection needs two ranks, so add one.
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
    # The ranks import torch, each with one thread, while the processes connect, so the import costs no extra time.
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
        # This is probably not rank 0. Only rank 0 prints the full report; any other rank prints only its problems.
        report.as_follower()
    return True


def find_place(config: RunConfig, facts: HostFacts) -> tuple[Placement | None, list[Diagnosis]]:
    """Return this process's placement (None if it cannot be determined), and the findings about launcher and plan.

    A host whose devices are refused takes part with its CPUs, so that rank 0 can report the refusal.
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
            # If the ranks cannot divide the batch, the machine is not at fault: a run may have other settings.
            found.append(replace(refused(name, error), level="warning" if name == "batch" else "error"))
    return placement, found


def _as_doctors(run: RunInfo, clock: TimeBudget, share: float) -> RunInfo:
    """Return a copy of a run's info for the doctor. The copy names a launcher that no run has.

    The processes must meet within `share` of the time. Their devices may differ; the doctor compares these later.
    """
    identity = replace(run.identity, launcher=f"doctor:{run.identity.launcher}", device_kind="")
    limits = DistributedConfig(
        init_timeout_s=clock.left(share), timeout_s=clock.left(TORCH_SHARE), heartbeat_timeout_s=SILENCE_S
    )
    return replace(run, identity=identity, distributed=limits)


def _alone(placement: Placement | None, host: str) -> Placement:
    """Return a placement whose workers meet on this host: `placement` adapted or, if None, one worker on the CPU."""
    if placement is None:
        here = (Worker(0, 0, 0, Device("cpu")),)
        return Placement("", 1, (host,), 0, here, Endpoint("127.0.0.1", 0), restarts=0, reasons={}, local_world_size=1)
    endpoint = placement.endpoint
    port = 0 if endpoint.served_by else endpoint.port
    return replace(placement, endpoint=replace(endpoint, host="127.0.0.1", port=port, served_by=""))


def read_seconds(text: str | None) -> float:
    """Return the time limit in --timeout (s). RequestError: the text is not a number, or the limit is too short."""
    if text is None:
        return DEFAULT_SECONDS
    return number_of("timeout", text, float, SHORTEST_SECONDS, 3600, f"--timeout {DEFAULT_SECONDS:g}")
