"""Places a process with RANK and WORLD_SIZE set: by torchrun, by Kubernetes' PyTorchJob, or by hand.

- torchrun (TORCHELASTIC_RUN_ID): one rank per process, also inside a Slurm job. Its agent already serves the
  store at MASTER_ADDR:MASTER_PORT, so no rank binds that port. The attempt combines torchrun's restarts with the
  requeues of the Slurm job around it, so that it grows with every start.
- PyTorchJob: one process per pod (see `kubernetes.py`).
- Anything else that sets RANK, WORLD_SIZE and LOCAL_RANK: one rank per process.

If srun or mpirun started this process, it is left to their launchers, and RANK and WORLD_SIZE only have to agree with
them (enroot's 50-slurm-pytorch hook sets these variables in each task of a Slurm step).
"""

from collections.abc import Mapping

from noether.environments.binding import Binding, LaunchedTask, bind_devices
from noether.environments.devices import DeviceInventory
from noether.environments.kubernetes import bind_pod, count_pods
from noether.environments.mpi import mpi_process
from noether.environments.nodes import agree_on_nodes, node_names
from noether.environments.placement import Endpoint, LaunchRequest, Placement
from noether.environments.process_facts import NOTHING_KNOWN, ProcessFacts
from noether.environments.rank_variables import RankVariables
from noether.environments.rendezvous import DEFAULT_PORT, asked_port, is_loopback
from noether.environments.slurm.step import SrunTask, number, restart_count, slurm_process
from noether.errors import RequestError

TASKS_LINE = "torchrun --nproc-per-node {n} entrypoint.py train …"


def torchrun_placement(
    request: LaunchRequest,
    environ: Mapping[str, str],
    inventory: DeviceInventory,
    host: str,
    facts: ProcessFacts = NOTHING_KNOWN,
) -> Placement | None:
    """Place the rank that RANK names; return None if RANK is not set or srun or mpirun started this process.

    Raises:
        RequestError: the variables contradict each other, or the ranks on this node do not match its devices.
    """
    elastic = bool(environ.get("TORCHELASTIC_RUN_ID"))
    if not elastic and mpi_process(environ) is not None:
        return None
    if not environ.get("RANK"):
        _refuse_without_rank(environ)
        return None
    if not elastic and isinstance(slurm_process(environ, facts), SrunTask):
        return None
    ranks = _read(environ, elastic)
    binding = _bind(ranks, environ, inventory, request)
    node_rank, nodes = _nodes(ranks)
    told = ranks.nodes is not None
    if told:
        agree_on_nodes(request, nodes, node_rank, f"{ranks.seen}, {nodes} nodes")
    endpoint, endpoint_reason = _endpoint(request, environ, ranks, host, node_rank, nodes)
    attempt, attempt_reason = _attempt(environ)
    source = "torchrun" if elastic else "Kubernetes' PyTorchJob" if ranks.pods else "RANK and WORLD_SIZE are set"
    return Placement(
        launcher="torchrun",
        world_size=binding.world_size,
        nodes=node_names(nodes, node_rank, host, endpoint.host),
        node_rank=node_rank,
        workers=binding.workers,
        endpoint=endpoint,
        attempt=attempt,
        reasons={
            "launcher": source + (f", TORCHELASTIC_RUN_ID={environ['TORCHELASTIC_RUN_ID']}" if elastic else ""),
            "world_size": f"WORLD_SIZE={ranks.count}"
            + ("" if binding.world_size == ranks.count else f", {len(binding.workers)} workers in each pod"),
            "nodes": f"{nodes} nodes" if told else "the number of nodes is unknown: guessed from the ranks on this one",
            "node_rank": f"node {node_rank}" if told else "only a label: the launcher does not number the nodes",
            "workers": f"{ranks.seen}; {binding.reason}",
            "endpoint": endpoint_reason,
            "attempt": attempt_reason,
            "local_world_size": f"LOCAL_WORLD_SIZE={environ['LOCAL_WORLD_SIZE']}"
            if environ.get("LOCAL_WORLD_SIZE")
            else "LOCAL_WORLD_SIZE is not set: the ranks known to be here",
        },
        local_world_size=binding.local_world_size,
        warnings=binding.warnings,
    )


def _refuse_without_rank(environ: Mapping[str, str]) -> None:
    """Refuse WORLD_SIZE without RANK, except inside a Slurm job, where Slurm's variables decide."""
    world = environ.get("WORLD_SIZE", "")
    in_slurm = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    if world not in ("", "1") and not in_slurm:
        raise RequestError(
            f"WORLD_SIZE={world} is set, but not RANK",
            seen=f"WORLD_SIZE={world}, no RANK",
            expected="both, set by a launcher for each process, or neither",
            fix="unset WORLD_SIZE      (or start with torchrun)",
        )


def _read(environ: Mapping[str, str], elastic: bool) -> RankVariables:
    if not environ.get("WORLD_SIZE"):
        raise RequestError(
            f"RANK={environ['RANK']} is set, but not WORLD_SIZE",
            seen=f"RANK={environ['RANK']}, no WORLD_SIZE",
            expected="both, set by a launcher for each process, or neither",
            fix="unset RANK      (or start with torchrun)",
        )

    def read(*names: str) -> int | None:
        return next((number(environ, name) for name in names if environ.get(name)), None)

    rank, count = number(environ, "RANK"), number(environ, "WORLD_SIZE")
    local_rank = read("LOCAL_RANK")
    pods = count_pods(environ, count) if local_rank is None else None
    local_count = read("LOCAL_WORLD_SIZE")
    if local_count is None:
        one_machine = is_loopback(environ.get("MASTER_ADDR", ""))
        local_count = count if one_machine and not pods else (local_rank or 0) + 1
    ranks = RankVariables(
        rank=rank,
        count=count,
        local_rank=local_rank,
        local_count=local_count,
        node_rank=read("GROUP_RANK", "PET_NODE_RANK", "NODE_RANK"),
        nodes=pods or read("GROUP_WORLD_SIZE"),
        elastic=elastic,
        pods=pods,
    )
    wrong = rank >= max(count, pods or 0) or (local_rank or 0) >= local_count or local_count > max(count, 1)
    if wrong or (ranks.nodes is not None and (ranks.node_rank or 0) >= ranks.nodes):
        raise RequestError(
            "the rank variables contradict each other",
            seen=f"{ranks.seen}, {local_count} on this node",
            expected="RANK below WORLD_SIZE, LOCAL_RANK below LOCAL_WORLD_SIZE",
            fix="unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE      (or start with torchrun)",
        )
    return ranks


def _bind(
    ranks: RankVariables, environ: Mapping[str, str], inventory: DeviceInventory, request: LaunchRequest
) -> Binding:
    if ranks.pods is not None:
        return bind_pod(ranks, ranks.pods, environ, inventory, request)
    if ranks.local_rank is None and inventory.kind == "cuda" and len(inventory.devices) > 1 and ranks.count > 1:
        raise RequestError(
            f"{len(inventory.devices)} visible devices, but nothing says which one this rank should use",
            seen=f"{ranks.seen}, {inventory.evidence}",
            expected="LOCAL_RANK, or one visible device",
            fix="LOCAL_RANK=0      (the number of this rank on its machine; torchrun sets it)",
        )
    local_rank = ranks.local_rank or 0
    task = LaunchedTask(
        rank=ranks.rank,
        count=ranks.count,
        local_rank=local_rank,
        local_count=ranks.local_count,
        most_local=ranks.local_count,
        node_rank=_nodes(ranks)[0],
        seen=f"{ranks.seen}, {ranks.local_count} on this node",
        line=TASKS_LINE,
        # torchrun gives all its workers one environment, so a single visible device is the same for all of them.
        bound=not ranks.elastic and bool(environ.get("CUDA_VISIBLE_DEVICES")),
    )
    return bind_devices(task, inventory, request.devices)


def _nodes(ranks: RankVariables) -> tuple[int, int]:
    """Return the node rank and the number of nodes, or the best guess that the variables allow."""
    if ranks.nodes is not None:
        node_rank = ranks.node_rank if ranks.node_rank is not None else ranks.rank if ranks.pods else 0
        return node_rank, ranks.nodes
    nodes = -(-ranks.count // ranks.local_count)
    node_rank = ranks.node_rank if ranks.node_rank is not None else ranks.rank // ranks.local_count
    return node_rank, max(nodes, node_rank + 1)


def _endpoint(
    request: LaunchRequest,
    environ: Mapping[str, str],
    ranks: RankVariables,
    host: str,
    node_rank: int,
    nodes: int,
) -> tuple[Endpoint, str]:
    address = environ.get("MASTER_ADDR", "")
    if request.master_addr and address and request.master_addr != address:
        raise RequestError(
            "two different masters are asked for",
            seen=f"master_addr={request.master_addr}, MASTER_ADDR={address}",
            expected="one address",
            fix="leave master_addr out" if ranks.elastic else "unset MASTER_ADDR",
        )
    master = request.master_addr or address
    if not master and ranks.count > 1:
        raise RequestError(
            f"{ranks.count} ranks, but no MASTER_ADDR",
            seen=f"{ranks.seen}, no MASTER_ADDR",
            expected="the host of rank 0",
            fix="MASTER_ADDR=HOST      (or master_addr=HOST)",
        )
    master = master or "127.0.0.1"
    port, source = asked_port(
        request.master_port, environ, "leave master_port out" if request.master_port else "unset MASTER_PORT"
    ) or (DEFAULT_PORT, f"port {DEFAULT_PORT}, no MASTER_PORT")
    served_by = "torchrun" if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and ranks.elastic else ""
    if is_loopback(master) and nodes > 1 and node_rank == 0 and not served_by:
        # The operator gives its master pod "localhost"; bound to that, no other pod could reach it.
        master = host
    reason = f"MASTER_ADDR={address or 'not set'}, {source}" + ("; served by torchrun's agent" if served_by else "")
    return Endpoint(master, port, source if "=" in source else "", served_by), reason


def _attempt(environ: Mapping[str, str]) -> tuple[int, str]:
    requeues, reason = restart_count(environ)
    if not environ.get("TORCHELASTIC_RESTART_COUNT"):
        return requeues, reason if requeues else "nothing counts how often this run was started"
    restarts = number(environ, "TORCHELASTIC_RESTART_COUNT")
    most = number(environ, "TORCHELASTIC_MAX_RESTARTS") if environ.get("TORCHELASTIC_MAX_RESTARTS") else 0
    evidence = f"TORCHELASTIC_RESTART_COUNT={restarts}"
    # After a requeue torchrun counts from 0 again, but the attempt must be higher than all earlier ones.
    return requeues * (max(most, restarts) + 1) + restarts, evidence + (f", {reason}" if requeues else "")
