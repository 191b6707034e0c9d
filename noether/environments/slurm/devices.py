"""Checks that the nodes of a Slurm step have the same devices: a task sees its own node's, and counts on the others.

A task that is alone on its node starts a worker on each device. The ranks of a node start where those of the nodes
before it end, so every task must know how many there are: as many as here, or what the components of a
heterogeneous job asked for. What the job's variables show to be otherwise is refused, by every task alike.
"""

from collections.abc import Mapping

from noether.environments.devices import DeviceInventory
from noether.environments.placement import LaunchRequest
from noether.environments.slurm.nodelist import parse_nodelist
from noether.environments.slurm.step import SrunTask, describe_nodes
from noether.errors import RequestError

GPU_OPTIONS = ("_PER_NODE", "_PER_TASK", "")
MAX_COMPONENTS = 1024


def component_devices(
    request: LaunchRequest, environ: Mapping[str, str], task: SrunTask, kind: str
) -> tuple[int, ...] | None:
    """Return the devices of each task of a heterogeneous step with one task a node, None where all are alike.

    Raises:
        RequestError: some nodes of the step have GPUs and others do not: they cannot train one model; or the
            components may have different numbers of them, and do not say how many.
    """
    size = environ.get("SLURM_HET_SIZE", "")
    one_a_node = max(task.tasks_per_node) == 1
    if not size.isdigit() or request.accelerator not in ("auto", "gpu"):
        return None
    # How many GPUs each node's component asked for: None where it asked in another way, 0 where it did not ask.
    gpus: dict[str, int | None] = {}
    component: dict[str, int] = {}
    for group in range(min(int(size), MAX_COMPONENTS)):
        # `srun … : …` outside a job sets the older names only, and none that says how many GPUs (Slurm 22.05).
        older = environ.get(f"SLURM_JOB_NODELIST_PACK_GROUP_{group}", "")
        nodes = environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{group}", "")
        per_node, per_task, total = (environ.get(f"SLURM_GPUS{how}_HET_GROUP_{group}", "") for how in GPU_OPTIONS)
        # "2", or with its type "a100:2".
        count = (per_node or (per_task if one_a_node else "")).rpartition(":")[2]
        for node in parse_nodelist(nodes) if nodes else ():
            component[node] = group
            gpus[node] = int(count) if count.isdigit() else None if per_node or per_task or total else 0
        for node in parse_nodelist(older) if older and not nodes else ():
            component[node], gpus[node] = group, None
    counts = [gpus.get(node) for node in task.nodes]
    without = tuple(node for node, count in zip(task.nodes, counts, strict=True) if count == 0)
    if request.accelerator == "auto" and 0 < len(without) < len(counts):
        raise RequestError(
            "some nodes of this step have GPUs and others have none",
            seen=f"no GPUs on {describe_nodes(without)}, SLURM_GPUS…_HET_GROUP_… for the others",
            expected="one kind of device on every node of a run",
            fix="srun --het-group=1 noether train …      (the component with GPUs; or accelerator=cpu)",
        )
    if not one_a_node or len({component.get(node) for node in task.nodes}) == 1:
        return None
    # devices= is as many on every node, whatever their components hold.
    if kind != "cuda" or request.devices is not None:
        return None
    if any(not count for count in counts):
        raise RequestError(
            "the components of this heterogeneous step do not say how many GPUs their nodes have",
            seen=f"no SLURM_GPUS_PER_NODE_HET_GROUP_… for each of {describe_nodes(task.nodes)}, one task on each",
            expected="a number for each component: the ranks of a node start where those of the nodes before it end",
            fix="#SBATCH --gpus-per-node=N      (in every component, srun --het-group=… in the script; or one task per "
            "device,\nor devices=N for as many on each node)",
        )
    return tuple(count for count in counts if count)


def refuse_uneven_devices(
    request: LaunchRequest, environ: Mapping[str, str], inventory: DeviceInventory, task: SrunTask
) -> None:
    """Refuse a step of one task a node whose nodes hold different numbers of devices (--gpus, which may do that).

    Raises:
        RequestError: as many devices on every node as here are not the job's.
    """
    total = environ.get("SLURM_GPUS", "").rpartition(":")[2]
    whole_job = environ.get("SLURM_JOB_NUM_NODES") == str(len(task.nodes))
    one_a_node = max(task.tasks_per_node) == 1
    if inventory.kind != "cuda" or request.devices is not None or not (whole_job and one_a_node and total.isdigit()):
        return
    here = len(inventory.devices)
    if int(total) != here * len(task.nodes):
        raise RequestError(
            f"{total} GPUs on {len(task.nodes)} nodes, {here} of them here: not the same number on every node",
            seen=f"SLURM_GPUS={total}, {inventory.evidence}, one task on each node",
            expected="as many devices on every node, or one task per device",
            fix=f"#SBATCH --gpus-per-node={max(1, int(total) // len(task.nodes))}      (and no --gpus)",
        )
