"""Checks how many devices the nodes of a Slurm step have: a task sees only its own node's, but depends on all.

A task that is alone on its node starts a worker on each device. Each node's ranks are numbered after those of the
nodes before it, so every task must know how many devices those have: as many as its own node, or what the components
of a heterogeneous job asked for. If the job's variables show otherwise, every task refuses.
"""

from collections.abc import Mapping

from noether.common.errors import RequestError
from noether.launch.detect.devices import DeviceInventory
from noether.launch.detect.placement import LaunchRequest
from noether.launch.detect.slurm.nodelist import parse_nodelist
from noether.launch.detect.slurm.step import SrunTask, describe_nodes

GPU_OPTIONS = ("_PER_NODE", "_PER_TASK", "")
MAX_COMPONENTS = 1024


def component_devices(
    request: LaunchRequest, environ: Mapping[str, str], task: SrunTask, kind: str
) -> tuple[int, ...] | None:
    """Return each task's number of devices in a heterogeneous step with one task per node; None if all are alike.

    Raises:
        RequestError: some nodes of the step have GPUs and others do not, so they cannot train one model; or the
            components may have different numbers of GPUs but do not say how many.
    """
    size = environ.get("SLURM_HET_SIZE", "")
    one_a_node = task.most_local == 1
    if not size.isdigit() or request.accelerator not in ("auto", "gpu"):
        return None
    # How many GPUs each node's component asked for: 0 if it did not ask, None if it asked in another way.
    gpus: dict[str, int | None] = {}
    component: dict[str, int] = {}
    for group in range(min(int(size), MAX_COMPONENTS)):
        # `srun … : …` outside a job sets only the older names, and nothing that says how many GPUs (Slurm 22.05).
        older = environ.get(f"SLURM_JOB_NODELIST_PACK_GROUP_{group}", "")
        nodes = environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{group}", "")
        per_node, per_task, total = (environ.get(f"SLURM_GPUS{how}_HET_GROUP_{group}", "") for how in GPU_OPTIONS)
        # "2", or with a type "a100:2".
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
            "some-nodes-without-gpus",
            "some nodes of this step have GPUs, but others have none",
            seen=f"no GPUs on {describe_nodes(without)}, SLURM_GPUS…_HET_GROUP_… for the others",
            expected="one kind of device on every node of a run",
            fix="srun --het-group=1 noether train …      (the component with GPUs; or accelerator=cpu)",
        )
    if not one_a_node or len({component.get(node) for node in task.nodes}) == 1:
        return None
    # With `devices` set, every node uses the same number, whatever its component has.
    if kind != "cuda" or request.devices is not None:
        return None
    if any(not count for count in counts):
        raise RequestError(
            "hetjob-gpus-unknown",
            "the components of this heterogeneous step do not say how many GPUs their nodes have",
            seen=f"no SLURM_GPUS_PER_NODE_HET_GROUP_… for each of {task.node_list}, one task on each",
            expected="a number for each component: each node's ranks follow those of the nodes before it",
            fix="#SBATCH --gpus-per-node=N      (in every component, with srun --het-group=… in the script; or one "
            "task per device,\nor devices=N for the same number on each node)",
        )
    return tuple(count for count in counts if count)


def refuse_uneven_devices(
    request: LaunchRequest, environ: Mapping[str, str], inventory: DeviceInventory, task: SrunTask
) -> None:
    """Refuse a step with one task per node whose nodes have different numbers of devices, as --gpus may give them.

    Raises:
        RequestError: the job's number of GPUs is not its number of nodes times the number of devices here.
    """
    total = environ.get("SLURM_GPUS", "").rpartition(":")[2]
    whole_job = environ.get("SLURM_JOB_NUM_NODES") == str(len(task.nodes))
    one_a_node = task.most_local == 1
    if inventory.kind != "cuda" or request.devices is not None or not (whole_job and one_a_node and total.isdigit()):
        return
    here = len(inventory.devices)
    if int(total) != here * len(task.nodes):
        raise RequestError(
            "gpus-differ-between-nodes",
            f"{total} GPUs on {len(task.nodes)} nodes, {here} of them here: not the same number on every node",
            seen=f"SLURM_GPUS={total}, {inventory.evidence}, one task on each node",
            expected="the same number of devices on every node, or one task per device",
            fix=f"#SBATCH --gpus-per-node={max(1, int(total) // len(task.nodes))}      (and no --gpus)",
        )
