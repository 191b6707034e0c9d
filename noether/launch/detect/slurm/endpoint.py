"""Choose where the ranks of a Slurm step meet: by default on its first node, at the port `derived(job, step)`.

`master_addr` or MASTER_ADDR sets another address, and `master_port` or MASTER_PORT sets another port.
"""

from collections.abc import Mapping

from noether.common.errors import RequestError
from noether.launch.detect.endpoint import asked_address, derived, port_of, refuse_loopback, refuse_other_master
from noether.launch.detect.local import local_endpoint
from noether.launch.detect.placement import Endpoint, LaunchRequest
from noether.launch.detect.slurm.step import SrunTask


def step_endpoint(request: LaunchRequest, environ: Mapping[str, str], task: SrunTask) -> tuple[Endpoint, str]:
    """Return the step's endpoint and the reason. RequestError: a setting is wrong, or rank 0 is on another node."""
    variables, note = dict(environ), ""
    if task.count > 1 and environ.get("MASTER_PORT") == str(task.job_id % 4536 + 61000):
        # enroot's 50-slurm-pytorch hook derives its port from the job id alone, so two steps of a job would share it.
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
        # This address always resolves, and other nodes cannot reach it.
        return Endpoint("127.0.0.1", port, source), f"every rank is on {first}; {reason}"
    seen = f"{first} is the first of SLURM_STEP_NODELIST={task.node_list}"
    if address:
        refuse_other_master(address, first, seen)
        return Endpoint(address, port, source), f"MASTER_ADDR={address}, {seen}; {reason}"
    return Endpoint(first, port, source), f"{seen}; {reason}"


def _refuse_other_first_node(environ: Mapping[str, str], task: SrunTask) -> None:
    """Raise RequestError if rank 0 is not on the list's first node, which --distribution=arbitrary makes possible."""
    name, ids, here = environ.get("SLURMD_NODENAME", ""), environ.get("SLURM_GTIDS", ""), task.node_rank == 0
    rank_zero_here = task.rank == 0 or "0" in ids.split(",")
    misplaced = (rank_zero_here and not here) or (here and ids and not rank_zero_here)
    if misplaced or name not in ("", task.nodes[task.node_rank]):
        raise RequestError(
            "step-order", "the first node of the step is not where rank 0 runs"
            if misplaced else "this node has another position in the step's node list",
            seen=f"SLURM_STEP_NODELIST={task.node_list}, SLURM_NODEID={task.node_rank}, "
            f"SLURMD_NODENAME={name}, SLURM_GTIDS={ids}",
            expected="rank 0 on the first node, where the other ranks look for it",
            fix="srun --distribution=block noether train …      (or master_addr=HOST, the host of rank 0)",
        )  # fmt: skip
