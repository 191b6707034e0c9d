"""Places a task of a Slurm job: its ranks, their devices, and where the tasks of the step meet.

Everything is read from the environment, the step's variables before the job's. No Slurm command is called, because a
container has none.

A task of srun is one rank, or one for each of its devices (`binding.py`), numbered as Slurm numbers the tasks, whatever
the distribution. The ranks meet on the first node of the step, at port `derived(job, step)`, unless `master_addr`,
MASTER_ADDR, `master_port` or MASTER_PORT say otherwise.

What was not started by srun (`step.py` finds that out) never waits for tasks that were not started, and never trains
on a part of the job silently:

- a batch script, an interactive step, a shell of `srun --pty`, an inherited environment: on one node it trains on its
  devices as launcher "local", with a warning and the srun line if the job has more tasks; in a job of several nodes it
  is refused, for the others would idle, and `nodes=1` trains here anyway;
- a shell of salloc on a host outside the allocation is refused: the host was not allocated;
- a step whose SLURM_* were stripped (--cleanenv) is refused: every task would train alone; `nodes=1` trains here.
"""

from collections.abc import Mapping
from dataclasses import replace

from noether.common.errors import RequestError
from noether.common.numbers import counted, first_of, whole
from noether.launch.detect.binding import agree_with_rank_variables, bind_devices
from noether.launch.detect.endpoint import asked_address, derived, port_of, refuse_loopback, refuse_other_master
from noether.launch.detect.local import agree_on_nodes, local_endpoint, local_placement
from noether.launch.detect.mpi import mpi_process
from noether.launch.detect.placement import DeviceInventory, Endpoint, LaunchContext, LaunchRequest, Placement
from noether.launch.detect.process_facts import ProcessFacts
from noether.launch.detect.slurm.step import SRUN, OutsideStep, SrunTask, parse_nodelist, restart_count, slurm_process


def slurm_placement(request: LaunchRequest, here: LaunchContext) -> Placement | None:
    """Place a task of srun, or another process inside a Slurm job; return None outside Slurm.

    RequestError: the variables contradict each other or the devices, or it would train on a part of the job unasked.
    """
    if request.nodes == 1 and not here.environ.get("SLURM_JOB_ID"):
        return None  # With a stripped environment, nodes=1 asks for this node only.
    if (process := slurm_process(here.environ, here.facts)) is None:
        return None
    if isinstance(process, OutsideStep):
        if request.nodes is not None and request.nodes > 1:
            return None  # The user starts several machines by hand inside an allocation.
        return outside_placement(request, here, process)
    return _place_task(request, here, process)


def _place_task(request: LaunchRequest, here: LaunchContext, task: SrunTask) -> Placement:
    environ, inventory = here.environ, here.inventory
    agree_on_nodes(request, len(task.nodes), task.node_rank, f"SLURM_STEP_NODELIST={task.node_list}")
    counts = component_devices(request, environ, task, inventory.kind)
    binding = bind_devices(task, inventory, request.devices, counts)
    refuse_uneven_devices(request, environ, inventory, task)
    also = agree_with_rank_variables(environ, task, binding.world_size)
    ranks = "" if binding.world_size == task.count else f", {binding.world_size} ranks"
    reasons = {
        "launcher": f"srun, step {task.step_id} of job {task.job_id}" + (f"; {also} agree" if also else ""),
        "world_size": f"SLURM_STEP_NUM_TASKS={task.count}{ranks}",
        "nodes": f"SLURM_STEP_NODELIST={task.node_list}",
        "node_rank": f"SLURM_NODEID={task.node_rank}",
        "workers": f"SLURM_PROCID={task.rank}, SLURM_LOCALID={task.local_rank}",
        "local_world_size": f"{task.local_count} of node {task.node_rank} in SLURM_STEP_TASKS_PER_NODE",
    }
    binding = replace(binding, warnings=(*binding.warnings, *_step_warnings(environ, task)))
    return binding.placed("slurm", task.nodes, _endpoint(request, environ, task), restart_count(environ), reasons)


def _endpoint(request: LaunchRequest, environ: Mapping[str, str], task: SrunTask) -> tuple[Endpoint, str]:
    variables, note = dict(environ), ""
    if task.count > 1 and environ.get("MASTER_PORT") == str(task.job_id % 4536 + 61000):
        # enroot's 50-slurm-pytorch hook derives this from the job id alone, so two steps of a job would share it.
        note = f" (MASTER_PORT={variables.pop('MASTER_PORT')} from enroot is ignored: all steps of the job share it)"
    if task.count == 1:
        return local_endpoint(request.master_port, variables)
    first = task.nodes[0]
    otherwise, why = derived(task.job_id, task.step_id, f"job {task.job_id} + step {task.step_id}")
    port, source, reason = port_of(request.master_port, variables, (otherwise, why + note))
    address, asked_by = asked_address(request.master_addr, variables)
    refuse_loopback(address, asked_by, len(task.nodes))
    if asked_by == "master_addr":
        return Endpoint(address, port, source), f"master_addr={address}; {reason}"
    _refuse_other_first_node(environ, task)
    if len(task.nodes) == 1:
        # Always resolves, and nothing outside the node can reach it.
        return Endpoint("127.0.0.1", port, source), f"every rank is on {first}; {reason}"
    seen = f"{first} is the first of SLURM_STEP_NODELIST={task.node_list}"
    if address:
        refuse_other_master(address, first, seen)
        return Endpoint(address, port, source), f"MASTER_ADDR={address}, {seen}; {reason}"
    return Endpoint(first, port, source), f"{seen}; {reason}"


def _refuse_other_first_node(environ: Mapping[str, str], task: SrunTask) -> None:
    """Refuse a step whose rank 0 is not on the first node of its list (--distribution=arbitrary can do that)."""
    name = environ.get("SLURMD_NODENAME", "")
    ids = environ.get("SLURM_GTIDS", "")
    here = task.node_rank == 0
    rank_zero_here = task.rank == 0 or "0" in ids.split(",")
    misplaced = (rank_zero_here and not here) or (here and ids and not rank_zero_here)
    if misplaced or name not in ("", task.nodes[task.node_rank]):
        raise RequestError(
            "step-order",
            "the first node of the step is not where rank 0 runs"
            if misplaced
            else "this node has another position in the step's node list",
            seen=f"SLURM_STEP_NODELIST={task.node_list}, SLURM_NODEID={task.node_rank}, "
            f"SLURMD_NODENAME={name}, SLURM_GTIDS={ids}",
            expected="rank 0 on the first node, where the other ranks look for it",
            fix="srun --distribution=block noether train …      (or master_addr=HOST, the host of rank 0)",
        )


def _step_warnings(environ: Mapping[str, str], task: SrunTask) -> list[str]:
    warnings = []
    wanted, most = whole(environ.get("SLURM_NTASKS_PER_NODE", "")) or 0, task.most_local
    # A component of a heterogeneous job has its own number of tasks, which may differ from SLURM_NTASKS_PER_NODE.
    alike = len(task.nodes) > 1 and _is_whole_job(environ, task) and "SLURM_HET_SIZE" not in environ
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


def _is_whole_job(environ: Mapping[str, str], task: SrunTask) -> bool:
    return environ.get("SLURM_JOB_NUM_NODES") == str(len(task.nodes))


def outside_placement(request: LaunchRequest, here: LaunchContext, process: OutsideStep) -> Placement:
    """Place a run on this node of a Slurm job, as launcher "local".

    RequestError: see `refuse_outside`; or the request does not fit this node.
    """
    refuse_outside(request, process, here.host)
    local = local_placement(request, here)
    restarts, restarts_reason = restart_count(here.environ)
    warnings, workers, count = list(local.warnings), counted(local.world_size, "worker"), len(process.nodes)
    if process.tasks > 1 or count > 1:
        nodes = f" on {count} nodes" if count > 1 else ""
        warnings.append(
            f"{process.tasks_source}{nodes}, but this process is not a task of srun (job {process.job_id}, "
            f"{process.where}): it trains on this node alone, with {workers}; to start every task: {process.srun}"
        )
    reasons = {
        **local.reasons,
        "launcher": f"not started by srun: {process.where} of job {process.job_id}: {process.evidence}",
        "world_size": f"{workers} on this node",
        "nodes": "this node alone" + (f" of {first_of(process.nodes, 4)}, nodes=1" if count > 1 else ""),
        "restarts": restarts_reason,
    }
    return replace(local, restarts=restarts, reasons=reasons, warnings=tuple(warnings))


def refuse_wrong_place(request: LaunchRequest, environ: Mapping[str, str], host: str, facts: ProcessFacts) -> None:
    """Refuse to train if srun should have started this process. This does not look at the devices.

    RequestError: see `refuse_outside` and `slurm_process`.
    """
    if request.nodes is None and not environ.get("RANK") and mpi_process(environ) is None:
        process = slurm_process(environ, facts)
        if isinstance(process, OutsideStep):
            refuse_outside(request, process, host)


def refuse_outside(request: LaunchRequest, process: OutsideStep, host: str) -> None:
    """Refuse to train on only one of a job's nodes, or on a host outside the job.

    RequestError: the host is outside the allocation, or the job has several nodes and `nodes=1` is not set.
    """
    names = {name.partition(".")[0].lower() for name in process.nodes}
    outside = not process.on_node and names and host.partition(".")[0].lower() not in names
    nodes = first_of(process.nodes, 4)
    if outside:
        raise RequestError("outside-the-job", f"this is {process.where} on {host}, but the job's nodes are {nodes}",
                           seen=f"job {process.job_id}, {process.evidence}, host {host}",
                           expected="a process that srun started on the allocated nodes", fix=SRUN)  # fmt: skip
    if len(process.nodes) > 1 and request.nodes != 1:
        raise RequestError(
            "not-started-by-srun",
            f"not started by srun: {len(process.nodes) - 1} of the job's {len(process.nodes)} nodes would do nothing",
            seen=f"{process.where} of job {process.job_id} ({process.evidence}), nodes {nodes}",
            expected="one task per device, or one task per node, started by srun",
            fix=f"{process.srun}      (or nodes=1, to train on this node only)",
        )


GPU_OPTIONS = ("_PER_NODE", "_PER_TASK", "")
MAX_COMPONENTS = 1024


def component_devices(
    request: LaunchRequest, environ: Mapping[str, str], task: SrunTask, kind: str
) -> tuple[int, ...] | None:
    """Return each task's number of devices in a heterogeneous step with one task per node; None if all are alike.

    A task that is alone on its node starts a worker on each device, and its ranks are numbered after those of the nodes
    before it: so every task must know how many devices those have.

    RequestError: only some nodes of the step have GPUs, or the components do not say how many their nodes have.
    """
    size = whole(environ.get("SLURM_HET_SIZE", ""))
    one_a_node = task.most_local == 1
    if size is None or request.accelerator not in ("auto", "gpu"):
        return None
    # How many GPUs each node's component asked for: 0 if it did not ask, None if it asked in another way.
    gpus: dict[str, int | None] = {}
    component: dict[str, int] = {}
    for group in range(min(size, MAX_COMPONENTS)):
        # `srun … : …` outside a job sets only the older names, and nothing that says how many GPUs (Slurm 22.05).
        older = environ.get(f"SLURM_JOB_NODELIST_PACK_GROUP_{group}", "")
        nodes = environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{group}", "")
        per_node, per_task, total = (environ.get(f"SLURM_GPUS{how}_HET_GROUP_{group}", "") for how in GPU_OPTIONS)
        # "2", or with a type "a100:2".
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
        return None  # With `devices` set, every node uses the same number, whatever its component has.
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

    RequestError: the job's number of GPUs is not its number of nodes times the number of devices here.
    """
    total = whole(environ.get("SLURM_GPUS", "").rpartition(":")[2])
    if inventory.kind != "cuda" or request.devices is not None or total is None:
        return
    here, differ = len(inventory.devices), _is_whole_job(environ, task) and task.most_local == 1
    if differ and total != here * len(task.nodes):
        raise RequestError(
            "gpus-differ-between-nodes",
            f"{total} GPUs on {len(task.nodes)} nodes, {here} of them here: not the same number on every node",
            seen=f"SLURM_GPUS={total}, {inventory.evidence}, one task on each node",
            expected="the same number of devices on every node, or one task per device",
            fix=f"#SBATCH --gpus-per-node={max(1, total // len(task.nodes))}      (and no --gpus)",
        )
