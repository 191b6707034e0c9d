"""One of the doctor's processes in a run of several, and what it found on its own host."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from noether.config.schema import RunConfig
from noether.doctor.child import ChildError
from noether.doctor.diagnosis import Diagnosis
from noether.doctor.host_facts import HostFacts
from noether.doctor.own_host import TORCH_SECONDS, RankChildren, TimeBudget, host_findings, versions_of
from noether.environments.placement import Placement

MEETING_SHARE = 0.36
"""How long to wait for the other ranks, as a share of the whole time: 18 s by default."""


@dataclass(frozen=True)
class Participant:
    """This process: its place in the run, the torch children of its ranks, and its findings so far."""

    config: RunConfig
    facts: HostFacts
    placement: Placement
    ranks: tuple[int, ...]
    children: RankChildren
    clock: TimeBudget
    found: list[Diagnosis]

    @property
    def run(self) -> list[Any]:
        """Identifies the run in a hello, because ranks of another run may connect to the same port."""
        return [self.placement.launcher, self.placement.world_size, self.placement.attempt, len(self.placement.nodes)]

    def report(self) -> dict[str, Any]:
        """Runs this host's checks and returns everything that this process found."""
        mine = [*self.found, *host_findings(self.config, self.facts, self.placement, self.children, self.clock)]
        return {
            "findings": [asdict(replace(found, hosts=(self.facts.host,), ranks=self.ranks)) for found in mine],
            "facts": asdict(self.facts),
            "versions": versions_of(self.config, self.facts, self.children.versions),
            "torch_works": "error" not in self.children.versions,
            "gpu_ranks": self.children.gpu_ranks,
            "node_rank": self.placement.node_rank,
            "ranks": list(self.ranks),
        }

    def served_port(self, address: str, value: str = "") -> int:
        """Writes `value`, the port that rank 0 listens on, to the launcher's store, or reads it if `value` is empty.

        Returns the port.

        Raises:
            ChildError: the store does not answer, or torch cannot be imported.
        """
        torch = self.children.wait_for_torch(self.clock.left(TORCH_SECONDS))
        if "error" in torch:
            raise ChildError(torch["error"])
        seconds = self.clock.share(MEETING_SHARE)
        request = {
            "do": "publish",
            "address": address,
            "port": self.placement.endpoint.port,
            "key": f"noether-doctor/{self.placement.attempt}/port",
            "seconds": seconds,
        }
        answer = self.children.ask_first(request | ({"value": value} if value else {}), seconds + 1)
        if "error" in answer:
            raise ChildError(answer["error"])
        return int(answer["value"])
