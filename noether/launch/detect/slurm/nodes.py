"""Compare a Slurm step's nodes with each other and with the job: devices, tasks, and components that stay unused."""

from collections.abc import Mapping

from noether.common.errors import RequestError
from noether.common.numbers import first_of, whole
from noether.launch.detect.placement import DeviceInventory, LaunchRequest
from noether.launch.detect.slurm.node_list import parse_nodelist
from noether.launch.detect.slurm.step import SrunTask

GPU_OPTIONS = ("_PER_NODE", "_PER_TASK", "")
MAX_COMPONENTS = 1024


def component_devices(
    request: LaunchRequest, environ: Mapping[str, str], task: SrunTask, kind: str
) -> tuple[int, ...] | None:
    """Return each task's device count in a heterogeneous step with one task per node; None if all nodes are alike.

    Such a task starts a worker on each device, and its ranks follow those of the nodes before it in the list. To number
    its ranks, it must therefore know how many devices these nodes have.

    RequestError: only some nodes of the step have GPUs, or the variables do not show how many GPUs the nodes have.
    """
    size = whole(environ.get("SLURM_HET_SIZE", ""))
    one_a_node = task.most_local == 1
    if size is None or request.accelerator not in ("auto", "gpu"):
        return None
    # For each node, the GPUs per node that its component requested. None: unknown, as another option requested them.
    gpus: dict[str, int | None] = {}
    component: dict[str, int] = {}
    for group in range(min(size, MAX_COMPONENTS)):
        # Outside a job, `srun … : …` sets only the older names, and no variable for the number of GPUs (Slurm 22.05).
        older = environ.get(f"SLURM_JOB_NODELIST_PACK_GROUP_{group}", "")
        nodes = environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{group}", "")
        per_node, per_task, total = (environ.get(f"SLURM_GPUS{how}_HET_GROUP_{group}", "") for how in GPU_OPTIONS)
        # The value is a count, "2", or a GPU type and a count, "a100:2".
        count = whole((per_node or (per_task if one_a_node else "")).rpartition(":")[2])
        known = count if count is not None else None if per_node or per_task or total or not nodes else 0
        for node in parse_nodelist(nodes or older) if nodes or older else ():
            component[node], gpus[node] = group, known
    counts = [gpus.get(node) for node in task.nodes]
    without = tuple(node for node, count in zip(task.nodes, counts, strict=True) if count == 0)
    if request.accelerator == "auto" and 0 < len(without) < len(counts):
        raise RequestError(
            "some-nodes-without-gpus", "some nodes of this step have GPUs, but others have none",
            seen=f"no GPUs on {first_of(without, 4)}, SLURM_GPUS…_HET_GROUP_… for the others",
            expected="one kind of device on every node of a run",
            fix="srun --het-group=1 noether train …      (the component with GPUs; or accelerator=cpu)",
        )  # fmt: skip
    if not one_a_node or len({component.get(node) for node in task.nodes}) == 1:
        return None
    if kind != "cuda" or request.devices is not None:
        return None  # Every node then uses the same number of devices, whatever its component is.
    if any(not count for count in counts):
        raise RequestError(
            "hetjob-gpus-unknown",
            "the components of this heterogeneous step do not say how many GPUs their nodes have",
            seen=f"no SLURM_GPUS_PER_NODE_HET_GROUP_… for each of {task.node_list}, one task on each",
            expected="the GPU count of each component, because a node's ranks follow those of the nodes before it",
            fix="#SBATCH --gpus-per-node=N      (in every component, with srun --het-group=… in the script; or one "
            "task per device,\nor devices=N for the same number on each node)",
        )
    return tuple(count for count in counts if count)


def refuse_uneven_devices(
    request: LaunchRequest, environ: Mapping[str, str], inventory: DeviceInventory, task: SrunTask
) -> None:
    """Raise RequestError if, with one task per node, the job's GPU count (--gpus) is not node count × GPUs here."""
    total = whole(environ.get("SLURM_GPUS", "").rpartition(":")[2])
    if inventory.kind != "cuda" or request.devices is not None or total is None:
        return
    here = len(inventory.devices)
    if task.is_whole_job and task.most_local == 1 and total != here * len(task.nodes):
        raise RequestError(
            "gpus-differ-between-nodes",
            f"{total} GPUs on {len(task.nodes)} nodes, {here} of them here: not the same number on every node",
            seen=f"SLURM_GPUS={total}, {inventory.evidence}, one task on each node",
            expected="the same number of devices on every node, or one task per device",
            fix=f"#SBATCH --gpus-per-node={max(1, total // len(task.nodes))}      (and no --gpus)",
        )


def step_warnings(environ: Mapping[str, str], task: SrunTask) -> list[str]:
    """Return warnings: the step has fewer tasks per node than requested, or it does not use a component of the job."""
    warnings = []
    wanted, most = whole(environ.get("SLURM_NTASKS_PER_NODE", "")) or 0, task.most_local
    # Each component of a heterogeneous job has its own task count, which can differ from SLURM_NTASKS_PER_NODE.
    alike = len(task.nodes) > 1 and task.is_whole_job and "SLURM_HET_SIZE" not in environ
    if alike and wanted > most:
        warnings.append(
            f"SLURM_NTASKS_PER_NODE={wanted}, but SLURM_NTASKS={task.count} started {most} on a node: --ntasks takes "
            f"precedence; leave it out to start {wanted * len(task.nodes)} tasks"
        )
    other = environ.get("SLURM_JOB_NODELIST_HET_GROUP_1", "")
    if other and environ.get("SLURM_STEP_NODELIST") == environ.get("SLURM_JOB_NODELIST_HET_GROUP_0"):
        warnings.append(
            f"this step runs only on the first component of a heterogeneous job; {other} is not used "
            "(srun --het-group=0,1 starts tasks on both)"
        )
    return warnings
