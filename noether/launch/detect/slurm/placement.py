"""Place a task of a Slurm job: find its ranks, their devices, and the address at which the step's ranks meet.

Everything is read from variables, the step's before the job's: a container has no Slurm commands. Ranks are numbered as
Slurm numbers the tasks, whatever the distribution. `outside.py` handles processes that srun did not start.
"""

from dataclasses import replace

from noether.launch.detect.binding import agree_with_rank_variables, bind_devices
from noether.launch.detect.local import agree_on_nodes
from noether.launch.detect.placement import LaunchContext, LaunchRequest, Placement
from noether.launch.detect.slurm.endpoint import step_endpoint
from noether.launch.detect.slurm.nodes import component_devices, refuse_uneven_devices, step_warnings
from noether.launch.detect.slurm.outside import outside_placement
from noether.launch.detect.slurm.step import SrunTask, restart_count, slurm_process
from noether.launch.detect.slurm.traps import OutsideStep


def slurm_placement(request: LaunchRequest, here: LaunchContext) -> Placement | None:
    """Place a task of srun, or another process inside a Slurm job; return None outside Slurm.

    RequestError: the variables contradict each other or the devices, or this would silently train on a part of the job.
    """
    if request.nodes == 1 and not here.environ.get("SLURM_JOB_ID"):
        return None  # With a stripped environment, nodes=1 requests this node only.
    if (process := slurm_process(here.environ, here.facts)) is None:
        return None
    if isinstance(process, OutsideStep):
        if request.nodes is not None and request.nodes > 1:
            return None  # The user starts several machines by hand inside an allocation.
        return outside_placement(request, here, process)
    return _place_task(request, here, process)


def _place_task(request: LaunchRequest, here: LaunchContext, task: SrunTask) -> Placement:
    """Place one task of srun: as one rank, or as one rank for each of its devices (see `binding.py`)."""
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
    binding = replace(binding, warnings=(*binding.warnings, *step_warnings(environ, task)))
    return binding.placed("slurm", task.nodes, step_endpoint(request, environ, task), restart_count(environ), reasons)
