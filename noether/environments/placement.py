"""Where this process is in a run, and why: what every launcher returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LaunchRequest:
    """What the user asked of the launch; everything else is read from where the process was started.

    `accelerator` is "auto", "gpu", "cpu" or "mps". `devices` is the setting as written: None for all, "2" for
    that many, "0,1" (or "2," for one) for a choice within the visible ones. `master_port` 0 or None leaves
    the port to the launcher. `visible_devices` plans for a machine that is not this one: it is read as the
    CUDA mask of a machine that has those devices. `nodes`, `node_rank` and `master_addr` start a run on several
    plain machines; under a launcher, which says these itself, they must agree with it.
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

    `kind` is "cuda", "cpu" or "mps". `index` counts within what this process may see (the CUDA mask), so it
    is what torch calls it; `name` is how the mask names it (an index, a UUID, a MIG id): an opaque string.
    A worker inherits CUDA_VISIBLE_DEVICES as it is: `cuda:index` within the inherited mask is the only way to
    name a device, because a mask rewritten to physical numbers is wrong inside any other mask.
    """

    kind: str
    index: int = 0
    name: str = ""

    def __str__(self) -> str:
        return self.kind if self.kind != "cuda" else f"cuda:{self.index}"


@dataclass(frozen=True)
class Worker:
    """One rank of the run that this process answers for."""

    rank: int
    local_rank: int
    node_rank: int
    device: Device


@dataclass(frozen=True)
class Endpoint:
    """Where the ranks meet. Port 0 means: bound and held by the launcher when the run starts.

    `asked_by` is the line that asked for the port ("master_port=29500", "MASTER_PORT=29500"), empty when
    none did; an error about the port names it. `served_by` names who already serves a store there
    ("torchrun"), empty where rank 0 must bind the port. A served port must not be bound: every rank, rank 0
    included, joins it as a client.
    """

    host: str
    port: int
    asked_by: str = field(default="", compare=False)
    served_by: str = ""


@dataclass(frozen=True)
class Placement:
    """Which ranks of a run this process answers for, and why.

    A placement with one worker joins the process group in this process; one with
    several starts them. `reasons` maps each field to the evidence it was read from.
    `nodes` are names in the order of node ranks; one that the launcher does not tell is "(node 3)".
    `local_world_size` counts the ranks of the run on this node, which are more than `workers` where a
    scheduler started one process per device; 0 stands for "those of `workers`". `warnings` are lines to show
    before the run: it can start, but perhaps not as the user meant.
    """

    launcher: str
    world_size: int
    nodes: tuple[str, ...]
    node_rank: int
    workers: tuple[Worker, ...]
    endpoint: Endpoint
    attempt: int
    reasons: Mapping[str, str]
    local_world_size: int = 0
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.local_world_size == 0:
            object.__setattr__(self, "local_world_size", len(self.workers))

    @property
    def host(self) -> str:
        """The name of this node."""
        return self.nodes[self.node_rank]
