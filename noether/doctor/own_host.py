"""What each process of the doctor has of its own: its host's facts, its place in the run, torch for each rank."""

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from noether.common.errors import RequestError
from noether.common.numbers import counted
from noether.config.schema import RunConfig
from noether.doctor.child import Child, collect
from noether.doctor.diagnosis import Diagnosis, refused
from noether.doctor.host_facts import PROBE_SECONDS, HostFacts, wanted_folders
from noether.launch.detect.driver import Driver
from noether.launch.detect.endpoint import HeldPort
from noether.launch.detect.placement import Placement, Worker
from noether.launch.detect.process_facts import read_process_facts
from noether.launch.detect.resolve import resolve_or_on_cpus
from noether.launch.planning.plan import HOST_CHECKS, launch_request
from noether.launch.processes.json_lines import Unanswered
from noether.launch.processes.openmp import openmp_defaults
from noether.training.preflight import check_software

START_SECONDS = 2.0


class TimeBudget:
    """Tracks how much time the doctor has left, and which `step` it is in, for the watchdog to name if it hangs."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadline = time.monotonic() + seconds
        self.step = "start"

    def left(self, most: float) -> float:
        """Returns `most` seconds, or the time left if that is less, but always more than zero."""
        return max(0.1, min(most, self._deadline - time.monotonic()))

    def share(self, part: float) -> float:
        """Returns a fraction of the whole time, or the time left if that is less."""
        return self.left(part * self.seconds)


def read_host(config: RunConfig, clock: TimeBudget) -> tuple[HostFacts, list[Diagnosis]]:
    """Returns the facts of this host, read by a child process, and a finding if they cannot be read."""
    clock.step = "the facts of this host"
    asked = {"folders": wanted_folders(config.output_path, os.environ), "seconds": clock.left(PROBE_SECONDS)}
    child = Child("noether.doctor.host_facts", json.dumps(asked), environ=os.environ)
    try:
        return HostFacts.from_dict(child.answer(clock.left(PROBE_SECONDS + 2 * START_SECONDS))), []
    except Unanswered as error:
        finding = Diagnosis("host", "error", f"the facts of this host cannot be read: {error}", "an answer in time")
        return HostFacts(host=socket.gethostname()), [finding]
    finally:
        child.end()


def find_place(config: RunConfig, facts: HostFacts) -> tuple[Placement | None, list[Diagnosis]]:
    """Returns this process's placement in the run, or None if the launcher refuses, and the findings.

    A host whose devices are refused takes part on its CPUs, so that rank 0 can report why.
    """
    driver = facts.driver or Driver()  # Asking the driver again could hang.
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
    return placement, [*found, *_refused_plan(config, placement)]


def _refused_plan(config: RunConfig, placement: Placement) -> list[Diagnosis]:
    found = []
    for name, check in {**HOST_CHECKS, "software": check_software}.items():
        try:
            check(config, placement)
        except RequestError as error:
            # A batch that these ranks cannot share says nothing of the machine: the settings may not be the run's.
            found.append(replace(refused(name, error), level="warning" if name == "batch" else "error"))
    return found


class RankChildren:
    """The child processes with torch: one for each worker; rank 0's serves the store on the port that is held."""

    def __init__(self, workers: Sequence[Worker], held: HeldPort | None) -> None:
        self.workers = workers
        self._listen_fd = None if held is None else held.socket.fileno()
        self.gpu_ranks = [worker.rank for worker in workers if worker.device.kind == "cuda"]
        environ = {**os.environ, **openmp_defaults(os.environ), "OMP_NUM_THREADS": "1"}
        descriptors = () if self._listen_fd is None else (self._listen_fd,)
        self.children = [
            Child("noether.doctor.torch_child", environ=environ, pass_fds=descriptors if worker.rank == 0 else ())
            for worker in workers
        ]
        self.versions: dict[str, Any] = {}
        for child in self.children:
            child.tell({"do": "torch"})  # They import torch while the processes connect.

    def wait_for_torch(self, seconds: float) -> dict[str, Any]:
        """Waits until all children have imported torch; returns the first error, else the first child's versions."""
        if not self.versions:
            answers = collect(self.children, seconds)
            self.versions = next((answer for answer in answers if "error" in answer), answers[0])
        return self.versions

    def ask_first(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Runs a step in the first child alone and returns its answer."""
        self.children[0].tell(request)
        return collect(self.children[:1], seconds)[0]

    def step(self, request: Mapping[str, Any], seconds: float) -> list[dict[str, Any]]:
        """Runs one step of the chain on every rank of this process; each answer has its "rank"."""
        for child, worker in zip(self.children, self.workers, strict=True):
            own: dict[str, int | None] = {"rank": worker.rank, "device": worker.device.index}
            if worker.rank == 0:
                own["listen_fd"] = self._listen_fd
            child.tell({**request, **own})
        answers = collect(self.children, seconds)
        return [{**answer, "rank": worker.rank} for worker, answer in zip(self.workers, answers, strict=True)]

    def end(self) -> None:
        """Ends all children."""
        for child in self.children:
            child.end()
