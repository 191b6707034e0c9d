"""Places a process that is in a Slurm job but was not started by srun: it trains on this node alone, or is refused.

What `noether train` does if srun did not start it (`step.py` finds that out):

| started from                                     | what happens                                                 |
|--------------------------------------------------|--------------------------------------------------------------|
| batch script, interactive step, shell of         | trains on this node's devices, as launcher "local"; with a   |
| `srun --pty`, inherited environment; one node    | warning and the srun line if the job has more tasks          |
| the same, in a job of several nodes              | refused: the others would idle. `nodes=1` trains here anyway |
| shell of salloc on a host outside the allocation | refused: the host was not allocated                          |
| a step whose SLURM_* were stripped (--cleanenv)  | refused: every task would train alone. `nodes=1` trains here |

It never waits for tasks that were not started, and never silently trains on only one of several nodes.
"""

from collections.abc import Mapping
from dataclasses import replace

from noether.common.errors import RequestError
from noether.common.numbers import counted
from noether.launch.detect.launch_context import LaunchContext
from noether.launch.detect.local import local_placement
from noether.launch.detect.mpi import mpi_process
from noether.launch.detect.placement import LaunchRequest, Placement
from noether.launch.detect.process_facts import ProcessFacts
from noether.launch.detect.slurm.step import SRUN, OutsideStep, describe_nodes, restart_count, slurm_process


def outside_placement(request: LaunchRequest, here: LaunchContext, process: OutsideStep) -> Placement:
    """Place a run on this node of a Slurm job, as launcher "local".

    Raises:
        RequestError: see `refuse_outside`; or the request does not fit this node.
    """
    refuse_outside(request, process, here.host)
    local = local_placement(request, here)
    restarts, restarts_reason = restart_count(here.environ)
    warnings = list(local.warnings)
    workers = counted(local.world_size, "worker")
    evidence = f"{process.where} of job {process.job_id}: {process.evidence}"
    if process.tasks > 1 or len(process.nodes) > 1:
        nodes = f" on {len(process.nodes)} nodes" if len(process.nodes) > 1 else ""
        warnings.append(
            f"{process.tasks_source}{nodes}, but this process is not a task of srun (job {process.job_id}, "
            f"{process.where}): it trains on this node alone, with {workers}; to start every task: {process.srun}"
        )
    reasons = {
        **local.reasons,
        "launcher": f"not started by srun: {evidence}",
        "world_size": f"{workers} on this node",
        "nodes": "this node alone"
        + (f" of {describe_nodes(process.nodes)}, nodes=1" if len(process.nodes) > 1 else ""),
        "restarts": restarts_reason,
    }
    return replace(local, restarts=restarts, reasons=reasons, warnings=tuple(warnings))


def refuse_wrong_place(request: LaunchRequest, environ: Mapping[str, str], host: str, facts: ProcessFacts) -> None:
    """Refuse to train if srun should have started this process. This does not look at the devices.

    Raises:
        RequestError: see `refuse_outside` and `slurm_process`.
    """
    if request.nodes is None and not environ.get("RANK") and mpi_process(environ) is None:
        process = slurm_process(environ, facts)
        if isinstance(process, OutsideStep):
            refuse_outside(request, process, host)


def refuse_outside(request: LaunchRequest, process: OutsideStep, host: str) -> None:
    """Refuse to train on only one of a job's nodes, or on a host outside the job.

    Raises:
        RequestError: the host is outside the allocation, or the job has several nodes and `nodes=1` is not set.
    """
    names = {name.partition(".")[0].lower() for name in process.nodes}
    outside = not process.on_node and names and host.partition(".")[0].lower() not in names
    nodes = describe_nodes(process.nodes)
    if outside:
        raise RequestError(
            "outside-the-job",
            f"this is {process.where} on {host}, but the job's nodes are {nodes}",
            seen=f"job {process.job_id}, {process.evidence}, host {host}",
            expected="a process that srun started on the allocated nodes",
            fix=SRUN,
        )
    if len(process.nodes) > 1 and request.nodes != 1:
        raise RequestError(
            "not-started-by-srun",
            f"not started by srun: {len(process.nodes) - 1} of the job's {len(process.nodes)} nodes would do nothing",
            seen=f"{process.where} of job {process.job_id} ({process.evidence}), nodes {nodes}",
            expected="one task per device, or one task per node, started by srun",
            fix=f"{process.srun}      (or nodes=1, to train on this node only)",
        )
