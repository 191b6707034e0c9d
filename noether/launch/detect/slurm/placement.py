"""Place a task of a Slurm job: find its ranks, their devices, and the address at which the step's ranks meet.

Only variables are read, because a container has no Slurm commands; those of the step come before those of the job.
Ranks follow Slurm's numbers of the tasks, whatever the distribution. `outside.py` places processes without srun.
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

    RequestError: the variables contradict each other or the devices, or the run would cover only a part of the job.
    """
    if request.nodes == 1 and not here.environ.get("SLURM_JOB_ID"):
        return None  # Without Slurm's variables, nodes=1 requests a run on this node alone.
    if (process := slurm_process(here.environ, here.facts)) is None:
        return None
    if isinstance(process, OutsideStep):
        if request.nodes is not None and request.nodes > 1:
            return None  # The user starts a run on several machines by hand, inside an allocation.
        return outside_placement(request, here, process)
    return _place_task(request, here, process)


def _place_task(request: LaunchRequest, here: LaunchContext, task: SrunTask) -> Placement:
    """Place one task of srun, as one rank or as one rank per device (see `binding.py`)."""
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
