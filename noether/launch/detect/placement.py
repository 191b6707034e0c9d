"""The input that each launcher reads, and its result, `Placement`: the ranks of this process, and the reasons."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from noether.common.cpus import CpuShare, UsableCpus
from noether.common.sanitize import shortened
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts


@dataclass(frozen=True)
class Placement:
    """The ranks of a run that this process is responsible for, and the reasons."""

    launcher: str
    world_size: int
    nodes: tuple[str, ...]  # Host names in the order of the node ranks; "(node 3)" if unknown.
    node_rank: int
    workers: "tuple[Worker, ...]"  # A single worker runs in this process; several run in processes that it starts.
    endpoint: "Endpoint"
    restarts: int  # The count of restarts by a scheduler or launcher, not by a user.
    reasons: Mapping[str, str]  # The evidence for each field.
    local_world_size: int  # The number of ranks on this node, including those of other processes.
    warnings: tuple[str, ...] = ()  # Texts to print before the run; it can start, but perhaps not as intended.
    cpus: CpuShare | None = None  # The workers' shares of this host's CPUs; None in a plan for another machine.

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

    `index`: torch's index of the device, among those that the CUDA mask shows this process. `name`: the mask's entry
    for the device (an index, a UUID, a MIG id), as an opaque string.
    A worker inherits CUDA_VISIBLE_DEVICES unchanged and uses `cuda:index` within it. The mask is never rewritten to
    physical indices, because these would be wrong if this process already runs under another mask.
    """

    kind: DeviceKind
    index: int = 0
    name: str = ""

    def __str__(self) -> str:
        return self.kind if self.kind != "cuda" else f"cuda:{self.index}"


@dataclass(frozen=True)
class Endpoint:
    """The address where the ranks meet. Port 0 stands for a free port, which the parent process binds at the start.

    `asked_by`: the setting or variable that chose the port, to be named in errors; "" if none chose it.
    `served_by`: the launcher that already serves a store at this port ("torchrun"); "" if rank 0 must bind the port.
    A port that a launcher serves must not be bound: every rank, including rank 0, connects to it as a client.
    """

    host: str
    port: int
    asked_by: str = field(default="", compare=False)
    served_by: str = ""

    @property
    def another_port(self) -> str:
        """The text of a fix, which sets the port's setting or variable to an adjacent port."""
        return f"{self.asked_by or 'master_port'}={self.port + (1 if self.port < 65535 else -1)}"


@dataclass(frozen=True)
class LaunchRequest:
    """The settings that concern the launch; everything else is read from the environment of the process.

    `accelerator`: "auto", "gpu", "cpu" or "mps". `devices`: the setting as written (see `choose_devices`).
    `master_port`: if 0 or None, the launcher's code chooses the port. `visible_devices`: the CUDA mask in a plan for
    another machine. `nodes`, `node_rank`, `master_addr`: set for a run on several machines without a scheduler; if a
    launcher sets these values itself, the settings must agree with the launcher.
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
    """The variables, devices and host name of this process, and further facts that the system shows about it."""

    environ: Mapping[str, str]
    inventory: "DeviceInventory"
    host: str
    facts: ProcessFacts = NOTHING_KNOWN


@dataclass(frozen=True)
class DeviceInventory:
    """The devices that this process may use; for "cpu" and "mps" there is one device.

    `evidence`: how the devices were found; texts put it in brackets after the device count. `cpus`: the usable cores.
    """

    kind: DeviceKind
    devices: tuple[Device, ...]
    evidence: str
    cpus: UsableCpus


def as_pairs(variables: Mapping[str, object]) -> str:
    """Format variables or settings for errors and reasons: "RANK=0, WORLD_SIZE=2"."""
    return ", ".join(f"{name}={shortened(str(value))}" for name, value in variables.items())
