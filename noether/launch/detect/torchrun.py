"""Place a process that has RANK and WORLD_SIZE, set by torchrun, by Kubernetes' PyTorchJob, or by hand.

- torchrun (TORCHELASTIC_RUN_ID): one rank per process, also inside a Slurm job. torchrun's agent already serves the
  store at MASTER_ADDR:MASTER_PORT, so no rank binds that port. `restarts` combines torchrun's restart count with the
  requeue count of the Slurm job, so that it grows with every restart.
- PyTorchJob: RANK is the index of the pod, and LOCAL_RANK is not set. One process in each pod starts a worker on each
  of the pod's devices. Every pod must have the same number of devices.
- Any other program that sets RANK, WORLD_SIZE and LOCAL_RANK: one rank per process.

If srun or mpirun started this process, RANK and WORLD_SIZE do not place it: the code for that launcher does, and checks
that the two agree with the placement. (enroot's 50-slurm-pytorch hook sets them in each task of a Slurm step.)
"""

from collections.abc import Mapping
from dataclasses import dataclass

from noether.common.errors import RequestError
from noether.common.numbers import counted, whole, whole_number
from noether.common.sanitize import shortened
from noether.launch.detect.binding import UNCOUNTED, Binding, LaunchedTask, bind_devices
from noether.launch.detect.endpoint import asked_address, is_loopback, port_of, refuse_loopback
from noether.launch.detect.local import agree_on_nodes, node_names
from noether.launch.detect.mpi import mpi_process
from noether.launch.detect.placement import DeviceInventory, Endpoint, LaunchContext, LaunchRequest, Placement
from noether.launch.detect.slurm.step import SrunTask, restart_count, slurm_process


@dataclass(frozen=True, kw_only=True)
class RankedTask(LaunchedTask):
    """A process with RANK and WORLD_SIZE; in a pod of a PyTorchJob, `rank` and `count` refer to the pods.

    `world`: WORLD_SIZE. `nodes`: the number of nodes. With `told=False`, `nodes` and `node_rank` are guesses.
    """

    world: int
    nodes: int
    told: bool
    is_pod: bool
    elastic: bool


def torchrun_placement(request: LaunchRequest, here: LaunchContext) -> Placement | None:
    """Place a process by RANK; return None if RANK is not set, or if srun or mpirun started this process.

    RequestError: the variables contradict each other, or the ranks on this node do not match its devices.
    """
    environ = here.environ
    elastic = bool(environ.get("TORCHELASTIC_RUN_ID"))
    if not elastic and mpi_process(environ) is not None:
        return None
    if not environ.get("RANK"):
        # If there is a Slurm job, the code for Slurm places this process.
        if environ.get("WORLD_SIZE", "") not in ("", "1") and not environ.get("SLURM_JOB_ID"):
            raise _half_set(environ, "WORLD_SIZE", "RANK")
        return None
    if not elastic and isinstance(slurm_process(environ, here.facts), SrunTask):
        return None
    asked = asked_address(request.master_addr, environ, "leave master_addr out" if elastic else "unset MASTER_ADDR")
    task = _read(environ, elastic, asked[0])
    binding = _bind(task, environ, here.inventory, request)
    if task.told:
        agree_on_nodes(request, task.nodes, task.node_rank, f"{task.seen}, {task.nodes} nodes")
    endpoint = _endpoint(request, environ, task, here.host, asked)
    source = "torchrun" if elastic else "Kubernetes' PyTorchJob" if task.is_pod else "RANK and WORLD_SIZE are set"
    local_world = environ.get("LOCAL_WORLD_SIZE") or "not set: the ranks known to be here"
    each = "" if binding.world_size == task.world else f", {len(binding.workers)} workers in each pod"
    reasons = {
        "launcher": source + (f", TORCHELASTIC_RUN_ID={environ['TORCHELASTIC_RUN_ID']}" if elastic else ""),
        "world_size": f"WORLD_SIZE={task.world}{each}",
        "nodes": f"{task.nodes} nodes" if task.told else "unknown: guessed from the ranks on this node",
        "node_rank": f"node {task.node_rank}" if task.told else "only a label: the launcher does not number the nodes",
        "workers": task.seen,
        "local_world_size": f"LOCAL_WORLD_SIZE={local_world}",
    }
    nodes = node_names(task.nodes, task.node_rank, here.host, endpoint[0].host)
    return binding.placed("torchrun", nodes, endpoint, _restarts(environ), reasons)


def _half_set(environ: Mapping[str, str], there: str, missing: str) -> RequestError:
    return RequestError("rank-variables-half-set", f"{there}={environ[there]} is set, but not {missing}",
                        seen=f"{there}={environ[there]}, no {missing}",
                        expected="both variables, set by a launcher for each process, or neither",
                        fix=f"unset {there}      (or start with torchrun)")  # fmt: skip


def _read(environ: Mapping[str, str], elastic: bool, master: str) -> RankedTask:
    if not environ.get("WORLD_SIZE"):
        raise _half_set(environ, "RANK", "WORLD_SIZE")

    def read(*names: str) -> int | None:
        return next((whole_number(environ, name) for name in names if environ.get(name)), None)

    rank, world = whole_number(environ, "RANK"), whole_number(environ, "WORLD_SIZE")
    local_rank, local_count = read("LOCAL_RANK"), read("LOCAL_WORLD_SIZE")
    pods = _count_pods(environ, world) if local_rank is None else None
    if local_count is None:
        local_count = world if is_loopback(master) and not pods else (local_rank or 0) + 1
    node_rank, told_nodes = read("GROUP_RANK", "PET_NODE_RANK", "NODE_RANK"), pods or read("GROUP_WORLD_SIZE")
    local = "no LOCAL_RANK" if local_rank is None else f"LOCAL_RANK={local_rank}"
    seen = f"RANK={rank}, WORLD_SIZE={world}, {local}"
    wrong = rank >= max(world, pods or 0) or (local_rank or 0) >= local_count or local_count > max(world, 1)
    if wrong or (told_nodes is not None and (node_rank or 0) >= told_nodes):
        raise RequestError(
            "rank-variables-contradict", "the rank variables contradict each other",
            seen=f"{seen}, {local_count} on this node",
            expected="RANK below WORLD_SIZE, LOCAL_RANK below LOCAL_WORLD_SIZE",
            fix="unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE      (or start with torchrun)",
        )  # fmt: skip
    if node_rank is None:
        node_rank = rank if pods else 0 if told_nodes is not None else rank // local_count
    return RankedTask(
        rank=node_rank if pods else rank, count=pods or world,
        local_rank=local_rank or 0, local_count=1 if pods else local_count, node_rank=node_rank,
        seen=seen, may_spawn=bool(pods),
        line="nprocPerNode: {n}" if pods else "torchrun --nproc-per-node {n} entrypoint.py train …",
        # torchrun starts all its workers with one environment, so a single visible device is the same for every worker.
        bound=not elastic and bool(environ.get("CUDA_VISIBLE_DEVICES")),
        world=world, told=told_nodes is not None, is_pod=bool(pods), elastic=elastic,
        nodes=max(-(-world // local_count), node_rank + 1) if told_nodes is None else told_nodes,
    )  # fmt: skip


def _count_pods(environ: Mapping[str, str], world: int) -> int | None:
    """Return the number of pods, or None if the PyTorchJob operator did not start this process."""
    if environ.get("PET_NNODES", "").isdigit():
        return whole_number(environ, "PET_NNODES")
    # Old versions of the operator set only WORLD_SIZE, to the number of pods.
    return world if environ.get("KUBERNETES_SERVICE_HOST") else None


def _bind(task: RankedTask, environ: Mapping[str, str], inventory: DeviceInventory, request: LaunchRequest) -> Binding:
    several = inventory.kind == "cuda" and len(inventory.devices) > 1 and task.count > 1
    if several and not task.is_pod and not environ.get("LOCAL_RANK"):
        raise RequestError(
            "no-device-for-rank",
            f"{len(inventory.devices)} visible devices, but nothing says which one this rank should use",
            seen=f"{task.seen}, {inventory.evidence}", expected="LOCAL_RANK, or one visible device",
            fix="LOCAL_RANK=0      (the index of this rank on its machine; torchrun sets it)",
        )  # fmt: skip
    binding = bind_devices(task, inventory, request.devices)
    each = len(binding.workers)
    # The operator sets WORLD_SIZE to pods × nprocPerNode, or to the pod count if nprocPerNode is "auto" or missing.
    wanted = shortened(environ.get("PET_NPROC_PER_NODE", ""))
    fits = task.world in (task.count, task.count * each) and (not wanted[:1].isdigit() or wanted == str(each))
    if task.is_pod and not fits:
        raise RequestError(
            "pytorchjob-workers", f"{counted(each, 'worker')} in this pod, but the PyTorchJob assumes another number",
            seen=f"{task.seen}, {task.count} pods, PET_NPROC_PER_NODE={wanted or 'not set'}, {inventory.evidence}",
            expected="one process per device in each pod",
            fix=f'nprocPerNode: "{each}"' + (f"      (or devices={wanted})" if whole(wanted) else ""),
        )  # fmt: skip
    return binding


def _endpoint(
    request: LaunchRequest, environ: Mapping[str, str], task: RankedTask, host: str, asked: tuple[str, str]
) -> tuple[Endpoint, str]:
    master, asked_by = asked
    if not master and task.world > 1:
        raise RequestError("no-master-address", f"{task.world} ranks, but no MASTER_ADDR",
                           seen=f"{task.seen}, no MASTER_ADDR", expected="the host of rank 0",
                           fix="MASTER_ADDR=HOST      (or master_addr=HOST)")  # fmt: skip
    reason = f"{asked_by}={master}" if master else "one rank, no MASTER_ADDR"
    master = master or "127.0.0.1"
    port, source, port_reason = port_of(
        request.master_port, environ, fix="leave master_port out" if request.master_port else "unset MASTER_PORT"
    )
    served_by = "torchrun" if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and task.elastic else ""
    if is_loopback(master) and task.nodes > 1 and not served_by:
        if not task.told or task.node_rank > 0:
            refuse_loopback(master, asked_by, task.nodes)
        # The operator sets "localhost" in the master pod, but other pods could not reach a port bound to that address.
        master, reason = host, f"{host}, as {reason} in the pod of rank 0"
    reason += f"; {port_reason}" + ("; served by torchrun's agent" if served_by else "")
    return Endpoint(master, port, source, served_by), reason


def _restarts(environ: Mapping[str, str]) -> tuple[int, str]:
    requeues, reason = restart_count(environ)
    if not environ.get("TORCHELASTIC_RESTART_COUNT"):
        return (requeues, reason) if requeues else UNCOUNTED
    restarts = whole_number(environ, "TORCHELASTIC_RESTART_COUNT")
    most = whole_number(environ, "TORCHELASTIC_MAX_RESTARTS") if environ.get("TORCHELASTIC_MAX_RESTARTS") else 0
    evidence = f"TORCHELASTIC_RESTART_COUNT={restarts}"
    # After a requeue torchrun counts from 0 again, but `restarts` must be higher than before the requeue.
    return requeues * (max(most, restarts) + 1) + restarts, evidence + (f", {reason}" if requeues else "")
