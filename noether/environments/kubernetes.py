"""Handles a pod of Kubernetes' PyTorchJob, which sets RANK to the number of the pod and does not set LOCAL_RANK.

One process in each pod starts a worker on each of its devices. Every pod must have the same number of devices.
"""

from collections.abc import Mapping

from noether.environments.binding import Binding, LaunchedTask, bind_devices
from noether.environments.devices import DeviceInventory
from noether.environments.placement import LaunchRequest
from noether.environments.rank_variables import RankVariables
from noether.environments.slurm.step import number
from noether.errors import RequestError


def count_pods(environ: Mapping[str, str], world: int) -> int | None:
    """Return the number of pods, or None if the PyTorchJob operator did not start this process.

    Args:
        environ: the environment.
        world: WORLD_SIZE. Older operators set only this, and set it to the number of pods.
    """
    if environ.get("PET_NNODES", "").isdigit():
        return number(environ, "PET_NNODES")
    return world if environ.get("KUBERNETES_SERVICE_HOST") else None


def bind_pod(
    ranks: RankVariables,
    pods: int,
    environ: Mapping[str, str],
    inventory: DeviceInventory,
    request: LaunchRequest,
) -> Binding:
    """Assign devices to a pod's process, which determines its ranks.

    Raises:
        RequestError: the operator assumes a number of processes per pod that differs from the number of devices.
    """
    task = LaunchedTask(
        rank=ranks.node_rank if ranks.node_rank is not None else ranks.rank,
        count=pods,
        local_rank=0,
        local_count=1,
        most_local=1,
        node_rank=ranks.node_rank if ranks.node_rank is not None else ranks.rank,
        seen=ranks.seen,
        line="nprocPerNode: {n}",
        may_spawn=True,
    )
    binding = bind_devices(task, inventory, request.devices)
    each = len(binding.workers)
    # The operator computes WORLD_SIZE as pods × nprocPerNode if that is a number, else as pods × 1 ("auto", missing).
    wanted = environ.get("PET_NPROC_PER_NODE", "")
    if (wanted.isdigit() and int(wanted) != each) or ranks.count not in (pods, pods * each):
        raise RequestError(
            f"{each} worker{'s' if each > 1 else ''} in this pod, but the PyTorchJob assumes another number",
            seen=f"{ranks.seen}, {pods} pods, PET_NPROC_PER_NODE={wanted or 'not set'}, {inventory.evidence}",
            expected="as many processes as devices in each pod",
            fix=f'nprocPerNode: "{each}"' + (f"      (or devices={wanted})" if wanted.isdigit() else ""),
        )
    return binding
