"""Check that the variables of a Slurm step are complete, agree with each other, and belong to this process.

A shell, a batch script or another job can inherit such variables; a container or `env -i` can remove some of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from noether.common.errors import RequestError
from noether.common.numbers import whole
from noether.launch.detect.placement import as_pairs
from noether.launch.detect.process_facts import ProcessFacts, StepSeen, interactive_shell, step_seen
from noether.launch.detect.slurm.node_list import parse_nodelist, parse_task_counts

INTERACTIVE_STEP = "4294967290"  # SLURM_INTERACTIVE_STEP of slurm.h: salloc with use_interactive_step.
STEP_VARIABLES = tuple(
    f"SLURM_{name}"
    for name in ("STEP_ID", "STEP_NODELIST", "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE", "PROCID", "LOCALID", "NODEID")
)
SRUN = "srun noether train …"
NAMED_STEPS = {"batch": "the batch script", "interactive": "an interactive step"}


def check_complete(environ: Mapping[str, str]) -> None:
    """Raise RequestError if one of the step's variables is missing."""
    if missing := [name for name in STEP_VARIABLES if not environ.get(name)]:
        raise RequestError(
            "step-variables-missing", "some of the step's SLURM_* variables are missing",
            seen=", ".join(f"no {name}" if name in missing else f"{name}={environ[name]}" for name in STEP_VARIABLES),
            expected=", ".join(STEP_VARIABLES), fix="pass every SLURM_* variable into the container",
        )  # fmt: skip


def check_counts(
    environ: Mapping[str, str], nodes: tuple[str, ...], counts: tuple[int, ...],
    *, count: int, rank: int, local_rank: int, node_rank: int,
) -> None:  # fmt: skip
    """Raise RequestError if two of the step's variables contradict each other."""
    local_count = counts[node_rank] if node_rank < len(counts) else 0
    # SLURM_GTIDS lists this node's ranks by local rank.
    listed = environ.get("SLURM_GTIDS", "").split(",")[local_rank : local_rank + 1]
    impossible = (
        ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", len(nodes) != len(counts)),
        ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", sum(counts) != count),
        ("SLURM_NODEID", "SLURM_STEP_NODELIST", node_rank >= len(nodes)),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", rank >= count),
        ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", local_rank >= local_count),
        ("SLURM_PROCID", "SLURM_GTIDS", listed not in ([], [""], [str(rank)])),
    )
    for first, second, wrong in impossible:
        if wrong:
            raise RequestError("step-counts-contradict", f"{first} and {second} contradict each other",
                               seen=f"{first}={environ[first]}, {second}={environ[second]}",
                               expected="the variables that srun set for one step", fix=SRUN)  # fmt: skip


@dataclass(frozen=True)
class OutsideStep:
    """A process that is inside a Slurm job but is not a task of srun.

    `where`: what started the process ("the batch script"); `evidence`: the variables that show this. `nodes`: the nodes
    of the job. `tasks`: the number of tasks that srun would start, read from `tasks_source`. `on_node`: whether the
    process is certainly on a node of the job. `srun`: the command that starts the tasks from here.
    """

    job_id: str
    where: str
    evidence: str
    nodes: tuple[str, ...]
    tasks: int
    tasks_source: str
    on_node: bool
    srun: str = SRUN


def outside_step(environ: Mapping[str, str], facts: ProcessFacts) -> OutsideStep | None:
    """Describe a process of a job; return None for a task of srun. RequestError: variables contradict the process."""
    seen = step_seen(facts)
    if seen is not None and not seen.step.isdigit():
        return _outside(environ, NAMED_STEPS.get(seen.step, "a login to the node"), seen.evidence)
    if seen is not None:
        _refuse_other_step(environ, seen)
    if not environ.get("SLURM_STEP_NUM_TASKS"):
        rank = environ.get("SLURM_PROCID", "")
        if rank not in ("", "0"):
            return None  # This is a task of srun; `check_complete` then names the missing variables.
        if rank or environ.get("SLURMD_NODENAME"):
            return _outside(environ, "the batch script", "no SLURM_STEP_NUM_TASKS")
        return _outside(environ, "a shell of salloc", "no SLURM_STEP_NUM_TASKS, no SLURM_PROCID", on_node=False)
    if environ.get("SLURM_STEP_ID") == INTERACTIVE_STEP:
        return _outside(environ, "an interactive step", f"SLURM_STEP_ID={INTERACTIVE_STEP}")
    if inherited := _inherited(environ):
        if seen is not None:
            raise RequestError("step-variables-contradict", "the variables of this Slurm step contradict each other",
                               seen=f"{inherited}, and {seen.evidence}",
                               expected="the variables that srun set for this step", fix=SRUN)  # fmt: skip
        return _outside(environ, "another job's step, or the environment of one", inherited)
    if shell := _typed_into(environ, facts):
        # The shell's step occupies the job's CPUs: without --overlap, a second step would wait for these CPUs.
        opened = _outside(environ, "a shell that srun --pty opened", shell)
        return replace(opened, srun="srun --overlap noether train …")
    return None


def _outside(environ: Mapping[str, str], where: str, evidence: str, *, on_node: bool = True) -> OutsideStep:
    whole_job = "SLURM_JOB_NODELIST"
    lists = [name for name in sorted(environ) if name == whole_job or name.startswith(f"{whole_job}_HET_GROUP_")]
    nodes = [node for name in lists if environ[name] for node in parse_nodelist(environ[name], whole_job)]
    source = next((name for name in ("SLURM_NTASKS", "SLURM_TASKS_PER_NODE") if environ.get(name)), "")
    tasks = sum(parse_task_counts(environ[source], source)) if source else 1
    said, job_id = f"{source}={environ.get(source, '')}", environ["SLURM_JOB_ID"]
    return OutsideStep(job_id, where, evidence, tuple(dict.fromkeys(nodes)), tasks, said, on_node=on_node)


def refuse_stripped(environ: Mapping[str, str], facts: ProcessFacts) -> None:
    """Raise RequestError if step variables are set without SLURM_JOB_ID, or if a step's process has no variables."""
    if left := [name for name in STEP_VARIABLES if environ.get(name)]:
        raise RequestError("step-without-job-id",
                           "some of the step's SLURM_* variables are set, but SLURM_JOB_ID is not",
                           seen=as_pairs({name: environ[name] for name in left}),
                           expected="all SLURM_* variables that srun set, or none",
                           fix="pass every SLURM_* variable into the container, or none of them")  # fmt: skip
    seen = step_seen(facts)
    if seen is None or seen.step == "extern":  # "extern" is an ssh login to a node of the job, not a task of a step.
        return
    raise RequestError(
        "step-variables-removed", "this process runs in a Slurm step, but its SLURM_* variables were removed",
        seen=f"no SLURM_JOB_ID, but {seen.evidence}",
        expected="the variables that srun sets (without them, every task would train alone, on any device it finds)",
        fix="drop --cleanenv (apptainer), --export=NONE, env -i or sudo from the line that starts noether"
        "\n(or nodes=1, to train on this node only, as one process)",
    )  # fmt: skip


def _refuse_other_step(environ: Mapping[str, str], seen: StepSeen) -> None:
    """Raise RequestError if the variables are those of a step other than the one in which this process runs."""
    job_id, step = environ["SLURM_JOB_ID"], environ.get("SLURM_STEP_ID", "")
    # A component of a heterogeneous job has its own job id, but SLURM_JOB_ID is the id of the first component.
    # Outside a job, `srun … : …` sets only the older names (Slurm 22.05).
    groups = ("SLURM_JOB_ID_HET_GROUP_", "SLURM_JOB_ID_PACK_GROUP_")
    jobs = {job_id, *(value for name, value in environ.items() if name.startswith(groups))}
    if seen.job_id in jobs and seen.step == step and environ.get("SLURM_STEP_NUM_TASKS"):
        return
    raise RequestError(
        "another-step", "this process does not run in the Slurm step that its variables name",
        seen=f"SLURM_JOB_ID={job_id}, {f'SLURM_STEP_ID={step}' if step else 'no SLURM_STEP_ID'}; {seen.evidence}",
        expected="the variables that srun set for this step", fix=SRUN,
    )  # fmt: skip


def _inherited(environ: Mapping[str, str]) -> str:
    """Return the contradiction which shows that the step's variables were inherited from another step, or "".

    sbatch and salloc set the job's variables, but keep inherited step variables. For a batch script, slurmd sets
    SLURM_GTIDS=0 and SLURMD_NODENAME.
    """
    pairs = (("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    for of_step, of_job in pairs:
        if environ.get(of_job) and environ.get(of_step) != environ[of_job]:
            return f"{of_step}={environ.get(of_step, '')}, {of_job}={environ[of_job]}"
    of_step, of_job = environ.get("SLURM_STEP_NODELIST", ""), environ.get("SLURM_JOB_NODELIST", "")
    if of_step and of_job:
        step_nodes, name = parse_nodelist(of_step, "SLURM_STEP_NODELIST"), environ.get("SLURMD_NODENAME", "")
        if not set(step_nodes) <= set(parse_nodelist(of_job, "SLURM_JOB_NODELIST")):
            return f"SLURM_STEP_NODELIST={of_step}, SLURM_JOB_NODELIST={of_job}"
        if name and name not in step_nodes:
            return f"SLURM_STEP_NODELIST={of_step}, SLURMD_NODENAME={name}"
    ids, counts, node = (environ.get(f"SLURM_{name}", "") for name in ("GTIDS", "STEP_TASKS_PER_NODE", "NODEID"))
    number = whole(node)
    if ids and counts and number is not None:
        tasks = parse_task_counts(counts, "SLURM_STEP_TASKS_PER_NODE")
        if number < len(tasks) and len(ids.split(",")) != tasks[number]:
            return f"SLURM_STEP_TASKS_PER_NODE={counts}, SLURM_GTIDS={ids}"
    return ""


def _typed_into(environ: Mapping[str, str], facts: ProcessFacts) -> str:
    """Return the evidence that this command was typed into `srun --pty bash`, or "".

    SLURM_PTY_PORT alone is no evidence: it is also set under an srun in such a shell, and under `srun --pty noether`.
    """
    if "SLURM_PTY_PORT" not in environ:
        return ""
    if shell := interactive_shell(facts):
        return f"SLURM_PTY_PORT is set and {shell} is between slurmstepd and this process"
    if shell is None and facts.stdin_is_terminal:
        return "SLURM_PTY_PORT is set and standard input is a terminal"
    return ""
