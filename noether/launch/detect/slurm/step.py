"""Read from srun's variables which task of a Slurm step this process is."""

from collections.abc import Mapping
from dataclasses import dataclass

from noether.common.numbers import whole, whole_number
from noether.common.sanitize import shortened
from noether.launch.detect.binding import LaunchedTask
from noether.launch.detect.process_facts import ProcessFacts
from noether.launch.detect.slurm.node_list import parse_nodelist, parse_task_counts
from noether.launch.detect.slurm.traps import OutsideStep, check_complete, check_counts, outside_step, refuse_stripped


def read_task(environ: Mapping[str, str]) -> "SrunTask":
    """Read the variables of one task of srun. RequestError: some are missing, malformed or contradictory."""
    check_complete(environ)
    nodes = parse_nodelist(environ["SLURM_STEP_NODELIST"], "SLURM_STEP_NODELIST")
    counts = parse_task_counts(environ["SLURM_STEP_TASKS_PER_NODE"], "SLURM_STEP_TASKS_PER_NODE")
    step_id = whole_number(environ, "SLURM_STEP_ID")
    count = whole_number(environ, "SLURM_STEP_NUM_TASKS")
    rank = whole_number(environ, "SLURM_PROCID")
    local_rank = whole_number(environ, "SLURM_LOCALID")
    node_rank = whole_number(environ, "SLURM_NODEID")
    check_counts(environ, nodes, counts, count=count, rank=rank, local_rank=local_rank, node_rank=node_rank)
    local_count, on_node = counts[node_rank], whole(environ.get("SLURM_GPUS_ON_NODE", ""))
    return SrunTask(
        rank=rank, count=count, node_rank=node_rank,
        local_rank=local_rank, local_count=local_count, most_local=max(counts),
        seen=f"SLURM_PROCID={rank}, SLURM_LOCALID={local_rank}, SLURM_NODEID={node_rank}, "
        f"SLURM_STEP_NUM_TASKS={count}, SLURM_STEP_TASKS_PER_NODE={shortened(environ['SLURM_STEP_TASKS_PER_NODE'])}",
        line="#SBATCH --ntasks-per-node={n}      (one task per device; or 1: one task per node)",
        may_spawn=True,
        # A single visible device belongs to this task alone only if the node has at least as many devices as tasks.
        bound=on_node >= local_count if on_node is not None else "CUDA_VISIBLE_DEVICES" in environ,
        job_id=whole_number(environ, "SLURM_JOB_ID"), step_id=step_id,
        nodes=nodes, node_list=shortened(environ["SLURM_STEP_NODELIST"]),
        is_whole_job=environ.get("SLURM_JOB_NUM_NODES") == str(len(nodes)),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SrunTask(LaunchedTask):
    """One task of srun. `nodes`: the nodes of the step.

    `node_list`: their list as srun wrote it, cut off if long. `is_whole_job`: whether the job has no other nodes.
    """

    job_id: int
    step_id: int
    nodes: tuple[str, ...]
    node_list: str
    most_local: int
    is_whole_job: bool


def slurm_process(environ: Mapping[str, str], facts: ProcessFacts) -> SrunTask | OutsideStep | None:
    """Describe this process as a task of srun, or as another process inside a job; return None outside Slurm.

    RequestError: variables contradict each other or the system, or were removed, so that each task would train alone.
    """
    if not environ.get("SLURM_JOB_ID"):
        refuse_stripped(environ, facts)
        return None
    return outside_step(environ, facts) or read_task(environ)


def restart_count(environ: Mapping[str, str]) -> tuple[int, str]:
    """Return how often Slurm requeued the job, and the evidence. RequestError: SLURM_RESTART_COUNT is not a number."""
    if environ.get("SLURM_RESTART_COUNT"):
        count = whole_number(environ, "SLURM_RESTART_COUNT")
        return count, f"SLURM_RESTART_COUNT={count}"
    return 0, "the job was not requeued"
