"""One of the doctor's processes in a run of several: its ranks, what it finds on its own host, and what it answers."""

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from noether.common.cpus import usable_cpus
from noether.config.schema import RunConfig
from noether.doctor.chain import MARGIN_SECONDS
from noether.doctor.diagnosis import Diagnosis
from noether.doctor.gpu_checks import check_fabric, check_gpu_health
from noether.doctor.host_facts import HostFacts
from noether.doctor.machine_checks import (
    check_container,
    check_cores,
    check_folder,
    check_infiniband,
    check_locked_memory,
    check_shared_memory,
    check_user,
)
from noether.doctor.own_host import RankChildren, TimeBudget
from noether.doctor.software_checks import check_devices, check_driver, check_imports, check_torch, check_versions
from noether.launch.detect.placement import Placement
from noether.runs.provenance import image_record

TORCH_SHARE = 0.5
"""How long `import torch` may take, as a share of the whole time: 25 s by default."""
DEVICES_SECONDS = 10.0
MEETING_SHARE = 0.36
"""How long to wait for the other ranks, as a share of the whole time: 18 s by default."""


@dataclass(frozen=True)
class Participant:
    """This process: its place in the run, the torch children of its ranks, and its findings so far."""

    config: RunConfig
    facts: HostFacts
    placement: Placement
    children: RankChildren
    clock: TimeBudget
    found: list[Diagnosis]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the run that this process answers for."""
        return tuple(worker.rank for worker in self.placement.workers)

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answers rank 0, which asks itself too: a report, the time, or a step of the chain on each rank here."""
        if asked["do"] == "report":
            return self.report()
        if asked["do"] == "clock":
            return {"time": time.time()}
        self.clock.step = asked["do"]
        return {"answers": self.children.step(asked, asked["seconds"] + MARGIN_SECONDS)}

    def report(self) -> dict[str, Any]:
        """Runs this host's checks and returns everything that this process found."""
        mine = [*self.found, *self._host_findings()]
        return {
            "findings": [asdict(replace(found, hosts=(self.facts.host,), ranks=self.ranks)) for found in mine],
            "host": self.facts.host,
            "facts": asdict(self.facts),
            "versions": self._versions(),
            "torch_works": "error" not in self.children.versions,
            "gpu_ranks": self.children.gpu_ranks,
            "node_rank": self.placement.node_rank,
            "ranks": list(self.ranks),
        }

    def _host_findings(self) -> list[Diagnosis]:
        self.clock.step = "import torch"
        facts, torch = self.facts, self._torch()
        devices: dict[str, Any] = {}
        if "error" not in torch:
            self.clock.step = "the devices"
            devices = self.children.ask_first({"do": "devices"}, self.clock.left(DEVICES_SECONDS))
        return [
            check_versions(facts, torch),
            check_torch(torch, os.getloadavg()[0], usable_cpus()),
            check_driver(facts, torch),
            check_devices(facts, torch, devices, os.environ),
            *check_gpu_health(facts),
            check_imports(facts),
            check_container(facts),
            check_shared_memory(facts, self.placement.local_world_size if self.children.gpu_ranks else 0),
            check_infiniband(facts),
            check_fabric(facts, os.environ),
            check_locked_memory(facts),
            check_cores(facts, os.environ, len(self.placement.workers), self.placement.local_world_size),
            check_user(facts, os.environ),
            *(check_folder(folder) for folder in facts.folders),
        ]

    def _torch(self) -> dict[str, Any]:
        return self.children.wait_for_torch(self.clock.share(TORCH_SHARE))

    def _versions(self) -> dict[str, str]:
        """The versions and the kind of device, by name, that should be the same on every host."""
        torch = self.children.versions
        built = {name: str(torch[key]) for name, key in (("CUDA", "cuda"), ("NCCL", "nccl")) if torch.get(key)}
        image = image_record()
        if image is not None:  # Docker's own digest is not known inside; revision and lock are.
            built["image"] = (
                image["digest"] or f"{image['flavour']} {image['git_revision']} {image['lock_sha256'][:12]}"
            )
        return {**self.facts.versions, **built, "devices": self.placement.workers[0].device.kind}

    def exchange_listener(self, port: int = 0) -> int:
        """Writes the port of rank 0's listener to the store that a launcher serves, or reads it there; returns it.

        It is 0, and what was found says why, if the store does not answer, or torch cannot be imported.
        """
        endpoint, seconds = self.placement.endpoint, self.clock.share(MEETING_SHARE)
        answer = self._torch()
        self.clock.step = f"the store of {endpoint.served_by}"
        if "error" not in answer:
            where = {"endpoint": asdict(endpoint), "restarts": self.placement.restarts}
            request = {"do": "listener", **where, "port": port, "seconds": seconds}
            answer = self.children.ask_first(request, seconds + 1)
        if "error" in answer:
            fix = f"noether doctor      (on {self.placement.nodes[0]}: check that it starts)"
            if port:
                fix = "unset MASTER_ADDR MASTER_PORT      (torchrun sets them itself)"
            seen = f"{endpoint.host}:{endpoint.port}: {answer['error']}"
            self.found.append(Diagnosis("port", "error", seen, f"the store of {endpoint.served_by}", fix))
        return int(answer.get("port", 0))
