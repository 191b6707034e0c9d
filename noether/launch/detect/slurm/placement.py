"""Places a task of a Slurm job: its ranks, their devices, and where the tasks of the step meet.

Everything is read from the environment, the step's variables before the job's. No Slurm command is called, because a
container has none.

A task of srun is one rank. If it is the only task on its node, it is one rank for each of its devices; on a CPU,
`devices=N` makes it N ranks. Ranks are SLURM_PROCID, local ranks SLURM_LOCALID and node ranks SLURM_NODEID, whatever
the distribution. The ranks meet on the first node of the step, at port `derived_port(job, step)`, unless
`master_addr`, MASTER_ADDR, `master_port` or MASTER_PORT say otherwise. `restarts` is SLURM_RESTART_COUNT.

Processes that are not tasks of srun are handled in `outside_step.py`.
"""

from collections.abc import Mapping

from noether.common.errors import RequestError
from noether.launch.detect.binding import agree_with_rank_variables, bind_devices
from noether.launch.detect.launch_context import LaunchContext
from noether.launch.detect.local import local_endpoint
from noether.launch.detect.nodes import agree_on_nodes
from noether.launch.detect.placement import Endpoint, LaunchRequest, Placement
from noether.launch.detect.rendezvous import asked_address, derived, port_of, refuse_loopback, refuse_other_master
from noether.launch.detect.slurm.devices import component_devices, refuse_uneven_devices
from noether.launch.detect.slurm.outside_step import outside_placement
from noether.launch.detect.slurm.step import OutsideStep, SrunTask, restart_count, slurm_process


def slurm_placement(request: LaunchRequest, here: LaunchContext) -> Placement | None:
    """Place a task of srun, or another process inside a Slurm job; return None outside Slurm.

    Raises:
        RequestError: the variables contradict each other, the tasks do not match the devices, or this process would
            train on only a part of the job although nobody asked for that.
    """
    if request.nodes == 1 and not here.environ.get("SLURM_JOB_ID"):
        return None  # With a stripped environment, nodes=1 asks for this node only.
    process = slurm_process(here.environ, here.facts)
    if process is None:
        return None
    if isinstance(process, OutsideStep):
        if request.nodes is not None and request.nodes > 1:
            return None  # The user starts several machines by hand inside an allocation.
        return outside_placement(request, here, process)
    return _place_task(request, here, process)


def _place_task(request: LaunchRequest, here: LaunchContext, task: SrunTask) -> Placement:
    environ, inventory = here.environ, here.inventory
    step = f"srun, step {task.step_id} of job {task.job_id}"
    agree_on_nodes(request, len(task.nodes), task.node_rank, f"SLURM_STEP_NODELIST={task.node_list}")
    counts = component_devices(request, environ, task, inventory.kind)
    binding = bind_devices(task, inventory, request.devices, counts)
    refuse_uneven_devices(request, environ, inventory, task)
    also = agree_with_rank_variables(environ, task, binding.world_size)
    endpoint, endpoint_reason = _endpoint(request, environ, task)
    restarts, restarts_reason = restart_count(environ)
    ranks = "" if binding.world_size == task.count else f", {binding.world_size} ranks"
    return Placement(
        launcher="slurm",
        world_size=binding.world_size,
        nodes=task.nodes,
        node_rank=task.node_rank,
        workers=binding.workers,
        endpoint=endpoint,
        restarts=restarts,
        reasons={
            "launcher": step + (f"; {also} agree" if also else ""),
            "world_size": f"SLURM_STEP_NUM_TASKS={task.count}{ranks}",
            "nodes": f"SLURM_STEP_NODELIST={task.node_list}",
            "node_rank": f"SLURM_NODEID={task.node_rank}",
            "workers": f"SLURM_PROCID={task.rank}, SLURM_LOCALID={task.local_rank}; {binding.reason}",
            "endpoint": endpoint_reason,
            "restarts": restarts_reason,
            "local_world_size": f"{task.local_count} of node {task.node_rank} in SLURM_STEP_TASKS_PER_NODE",
        },
        local_world_size=binding.local_world_size,
        warnings=(*binding.warnings, *_step_warnings(environ, task)),
    )


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
    misnamed = name not in ("", task.nodes[task.node_rank])
    if misplaced or misnamed:
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
    wanted, most = environ.get("SLURM_NTASKS_PER_NODE", ""), task.most_local
    whole_job = environ.get("SLURM_JOB_NUM_NODES") == str(len(task.nodes))
    # A component of a heterogeneous job has its own number of tasks, which may differ from SLURM_NTASKS_PER_NODE.
    if (
        len(task.nodes) > 1
        and whole_job
        and wanted.isdigit()
        and int(wanted) > most
        and "SLURM_HET_SIZE" not in environ
    ):
        warnings.append(
            f"SLURM_NTASKS_PER_NODE={wanted}, but SLURM_NTASKS={task.count} started {most} on a node: --ntasks takes "
            f"precedence; leave it out to start {int(wanted) * len(task.nodes)} tasks"
        )
    other = environ.get("SLURM_JOB_NODELIST_HET_GROUP_1", "")
    if other and environ.get("SLURM_STEP_NODELIST") == environ.get("SLURM_JOB_NODELIST_HET_GROUP_0"):
        warnings.append(
            f"this step runs only on the first component of a heterogeneous job; {other} is not used "
            "(srun --het-group=0,1 starts tasks on both)"
        )
    return warnings
