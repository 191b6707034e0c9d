"""`Placement`, a launcher's answer: the ranks this process is responsible for, and why; and a launcher's inputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from noether.common.cpus import CpuShare, UsableCpus
from noether.common.sanitize import shortened
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts


@dataclass(frozen=True)
class Placement:
    """The ranks of a run that this process is responsible for, and why."""

    launcher: str
    world_size: int
    nodes: tuple[str, ...]  # Host names in the order of the node ranks; "(node 3)" if unknown.
    node_rank: int
    workers: "tuple[Worker, ...]"  # If it is a single one, this process runs it; else it starts a process for each.
    endpoint: "Endpoint"
    restarts: int  # Counts restarts by a scheduler or launcher (the attempt's number also counts restarts by users).
    reasons: Mapping[str, str]  # The evidence for each field.
    local_world_size: int  # The ranks on this node: more than `workers` if other processes here have ranks too.
    warnings: tuple[str, ...] = ()  # Printed before the run, which can start, but perhaps not as the user intended.
    cpus: CpuShare | None = None  # How the workers share this host's CPUs; None in a plan for another machine.

    @property
    def host(self) -> str:
        """The name of this node."""
        return self.nodes[self.node_rank]


@dataclass(frozen=True)
class Worker:
    """One of the ranks that this process is responsible for."""

    rank: int
    local_rank: int
    node_rank: int
    device: "Device"


DeviceKind = Literal["cuda", "mps", "cpu"]


@dataclass(frozen=True)
class Device:
    """One accelerator of this host, or the CPU.

    `index` counts within the devices that this process sees (the CUDA mask), as torch does. `name` is the mask's name
    for the device (an index, a UUID, a MIG id), an opaque string.
    A worker inherits CUDA_VISIBLE_DEVICES unchanged and uses `cuda:index` within it. The mask is never rewritten to
    physical numbers, because those would be wrong if this process already runs under another mask.
    """

    kind: DeviceKind
    index: int = 0
    name: str = ""

    def __str__(self) -> str:
        return self.kind if self.kind != "cuda" else f"cuda:{self.index}"


@dataclass(frozen=True)
class Endpoint:
    """The address where the ranks meet. For port 0, the parent process binds and keeps a free port when the run starts.

    `asked_by` is the setting or variable that chose the port, empty if none did; errors about the port name it.
    `served_by` is the launcher that already serves a store there ("torchrun"), empty if rank 0 must bind the port.
    A port that is already served must not be bound: every rank, including rank 0, connects to it as a client.
    """

    host: str
    port: int
    asked_by: str = field(default="", compare=False)
    served_by: str = ""

    @property
    def another_port(self) -> str:
        """The setting or variable of the port, with an adjacent number."""
        return f"{self.asked_by or 'master_port'}={self.port + (1 if self.port < 65535 else -1)}"


@dataclass(frozen=True)
class LaunchRequest:
    """The settings that concern the launch; everything else is read from the environment of the process.

    `accelerator` is "auto", "gpu", "cpu" or "mps". `devices` is the setting as written (see `choose_devices`).
    `master_port` 0 or None leaves the port to the placement. `visible_devices` is the CUDA mask in a plan for another
    machine. `nodes`, `node_rank` and `master_addr` start a run on several machines without a scheduler; if a launcher
    sets these values itself, the settings must agree with it.
    """

    accelerator: str = "auto"
    devices: str | None = None
    master_port: int | None = None
    visible_devices: str | None = None
    nodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None


@dataclass(frozen=True)
class LaunchContext:
    """The variables, devices and host name of this process, and what else the system shows about it."""

    environ: Mapping[str, str]
    inventory: "DeviceInventory"
    host: str
    facts: ProcessFacts = NOTHING_KNOWN


@dataclass(frozen=True)
class DeviceInventory:
    """The devices this process may use; for "cpu" and "mps" there is one.

    `evidence`: how the devices were found, as text in brackets after their number. `cpus`: the usable cores.
    """

    kind: DeviceKind
    devices: tuple[Device, ...]
    evidence: str
    cpus: UsableCpus


def as_pairs(variables: Mapping[str, object]) -> str:
    """Format variables or settings for errors and reasons: "RANK=0, WORLD_SIZE=2"."""
    return ", ".join(f"{name}={shortened(str(value))}" for name, value in variables.items())
