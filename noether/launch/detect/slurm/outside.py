"""Place or refuse a process that is inside a Slurm job but was not started by srun (`traps.py` recognizes it).

Such a process never waits for tasks that were not started, and never silently trains on a part of the job:

- In a batch script, an interactive step, a shell of `srun --pty` or an inherited environment, the launcher is "local":
  it trains on this node's devices. If the job has more tasks, a warning shows the srun command. In a job of several
  nodes the process is refused, because the other nodes would idle; with `nodes=1`, it trains here anyway.
- A shell of salloc on a host outside the allocation is refused, because that host was not allocated.
- A task whose SLURM_* were removed (--cleanenv) is refused: it would train alone, which `nodes=1` allows.
"""

from collections.abc import Mapping
from dataclasses import replace

from noether.common.errors import RequestError
from noether.common.numbers import counted, first_of
from noether.launch.detect.local import local_placement
from noether.launch.detect.mpi import mpi_process
from noether.launch.detect.placement import LaunchContext, LaunchRequest, Placement
from noether.launch.detect.process_facts import ProcessFacts
from noether.launch.detect.slurm.step import restart_count, slurm_process
from noether.launch.detect.slurm.traps import SRUN, OutsideStep


def outside_placement(request: LaunchRequest, here: LaunchContext, process: OutsideStep) -> Placement:
    """Place a run on this node alone. RequestError: `refuse_outside` refuses the run, or the devices do not suffice."""
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
    """Raise RequestError if srun should have started this process. This does not examine the devices."""
    if request.nodes is None and not environ.get("RANK") and mpi_process(environ) is None:
        process = slurm_process(environ, facts)
        if isinstance(process, OutsideStep):
            refuse_outside(request, process, host)


def refuse_outside(request: LaunchRequest, process: OutsideStep, host: str) -> None:
    """Raise RequestError if the host is outside the job, or if the job has several nodes without `nodes=1`."""
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
            f"not started by srun: {len(process.nodes) - 1} of the job's {len(process.nodes)} nodes would stay idle",
            seen=f"{process.where} of job {process.job_id} ({process.evidence}), nodes {nodes}",
            expected="one task per device, or one task per node, started by srun",
            fix=f"{process.srun}      (or nodes=1, to train on this node only)",
        )
