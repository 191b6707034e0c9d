"""What a launcher is given, and the placement that it returns: which ranks this process is responsible for, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from noether.common.cpus import CpuShare, UsableCpus
from noether.common.sanitize import shortened
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts

DeviceKind = Literal["cuda", "mps", "cpu"]


@dataclass(frozen=True)
class LaunchRequest:
    """What the user asked for; everything else is read from the environment of the process.

    `accelerator` is "auto", "gpu", "cpu" or "mps". `devices` is the setting as written (see `choose_devices`).
    `master_port` 0 or None leaves the port to the placement. `visible_devices` is the CUDA mask of another machine that
    is planned for. `nodes`, `node_rank` and `master_addr` start a run on several machines without a scheduler; under a
    launcher that knows these itself, they must agree with it.
    """

    accelerator: str = "auto"
    devices: str | None = None
    master_port: int | None = None
    visible_devices: str | None = None
    nodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None


@dataclass(frozen=True)
class Device:
    """One accelerator of this host, or the CPU.

    `kind` is "cuda", "cpu" or "mps". `index` counts within the devices that this process sees (the CUDA mask), as
    torch does. `name` is what the mask calls the device (an index, a UUID, a MIG id), an opaque string.
    A worker inherits CUDA_VISIBLE_DEVICES unchanged and uses `cuda:index` within it. The mask is never rewritten to
    physical numbers, because those would be wrong if this process already runs under another mask.
    """

    kind: DeviceKind
    index: int = 0
    name: str = ""

    def __str__(self) -> str:
        return self.kind if self.kind != "cuda" else f"cuda:{self.index}"


@dataclass(frozen=True)
class DeviceInventory:
    """The devices this process may use, and where that was read from.

    `kind` is "cuda", "mps" or "cpu"; for "cpu" and "mps" there is one device. `evidence` is text to put in brackets
    after a number of devices. `cpus` are the cores that this process may run on.
    """

    kind: DeviceKind
    devices: tuple[Device, ...]
    evidence: str
    cpus: UsableCpus


@dataclass(frozen=True)
class Worker:
    """One of the ranks that this process is responsible for."""

    rank: int
    local_rank: int
    node_rank: int
    device: Device


@dataclass(frozen=True)
class Endpoint:
    """Where the ranks meet. Port 0 means a free port, which the parent process binds and keeps when the run starts.

    `asked_by` is the setting or variable that asked for the port, empty if none did; errors about the port name it.
    `served_by` is the launcher that already serves a store there ("torchrun"), empty if rank 0 must bind the port.
    Nobody may bind a port that is already served: every rank, including rank 0, connects to it as a client.
    """

    host: str
    port: int
    asked_by: str = field(default="", compare=False)
    served_by: str = ""

    @property
    def another_port(self) -> str:
        """The setting or variable of the port, with the number beside it."""
        return f"{self.asked_by or 'master_port'}={self.port + (1 if self.port < 65535 else -1)}"


@dataclass(frozen=True)
class Placement:
    """Which ranks of a run this process is responsible for, and why.

    If there is one worker, this process runs it; if there are several, it starts a process for each. `reasons` maps
    each field to the evidence for it. `nodes` are the nodes' names in the order of their node ranks; a name that is
    not known is "(node 3)". `local_world_size` is the number of ranks on this node, which is more than there are
    `workers` if a scheduler started one process per device. `restarts` grows whenever a scheduler or launcher starts
    the run again by itself (an attempt's number counts what users start, too). `warnings` are lines to print before the
    run: it can start, but maybe not as the user intended. `cpus` is how the workers share the CPUs of this host; None
    where another machine is planned for.
    """

    launcher: str
    world_size: int
    nodes: tuple[str, ...]
    node_rank: int
    workers: tuple[Worker, ...]
    endpoint: Endpoint
    restarts: int
    reasons: Mapping[str, str]
    local_world_size: int
    warnings: tuple[str, ...] = ()
    cpus: CpuShare | None = None

    @property
    def host(self) -> str:
        """The name of this node."""
        return self.nodes[self.node_rank]


@dataclass(frozen=True)
class LaunchContext:
    """Where this process was started: its variables, its devices, its host's name, and what else the system shows."""

    environ: Mapping[str, str]
    inventory: DeviceInventory
    host: str
    facts: ProcessFacts = NOTHING_KNOWN


def as_pairs(variables: Mapping[str, object]) -> str:
    """Return "RANK=0, WORLD_SIZE=2", as errors and reasons show variables and settings."""
    return ", ".join(f"{name}={shortened(str(value))}" for name, value in variables.items())
