"""Finds out which of srun's tasks this process is, checking the step's variables against each other and the system."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from noether.common.errors import RequestError
from noether.common.numbers import whole, whole_number
from noether.common.sanitize import shortened
from noether.launch.detect.binding import LaunchedTask
from noether.launch.detect.placement import as_pairs
from noether.launch.detect.process_facts import ProcessFacts, StepSeen, interactive_shell, step_seen

MAX_NODES = 65_536
"""More nodes than any Slurm cluster has. A longer list is a mistake, and is refused before it is expanded."""
MAX_NAME = 255
"""The longest possible host name, in characters (RFC 1035)."""
LIST, COUNTS = "a list such as node[08-11],login1", "task counts such as 2(x2),1"

_ITEM = re.compile(r"(?!,)([A-Za-z0-9._-]*+(?:\[[0-9,-]*+\][A-Za-z0-9._-]*+)*+),")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def parse_nodelist(text: str, source: str = "") -> tuple[str, ...]:
    """Return the node names that a Slurm node list stands for, in its order and including repeats.

    `a1,b[2-3,7],c` is a1 b2 b3 b7 c. `node[098-101]` keeps the width of the first number: node098 … node101.
    With several brackets the last one varies fastest. Text may follow a bracket (`node[1-2]-ib`).

    `source` is what an error calls the list, by default the list itself.

    RequestError: the text is not a node list, or names more than MAX_NODES nodes.
    """
    names: list[str] = []
    position, rest = 0, f"{text},"
    try:
        if text.count(",") >= MAX_NODES:  # Inside and outside of brackets, a comma stands before one more name.
            raise ValueError(f"names more than {MAX_NODES} nodes")
        while position < len(rest):
            if (item := _ITEM.match(rest, position)) is None:
                raise ValueError(f"cannot be read at {rest[position : position + 40]!r}")
            names += _names_of(item[1], MAX_NODES - len(names))
            position = item.end()
    except ValueError as error:
        raise _refusal("node-list-invalid", f"a node list that {error}", LIST, text, source) from None
    return tuple(names)


def _names_of(item: str, most: int) -> list[str]:
    """Return the names that one item of a list stands for, such as `rack[1-2]node[08-11]-ib`.

    ValueError: what is wrong with it.
    """
    literals, brackets = re.split(r"\[.*?\]", item), re.findall(r"\[(.*?)\]", item)
    ranges = [[_range(word) for word in bracket.split(",")] for bracket in brackets]
    # A very long name repeated MAX_NODES times would fill the memory.
    digits = [max(max(len(str(last)), width) for _, last, width in group) for group in ranges]
    if sum(map(len, literals)) + sum(digits) > MAX_NAME:
        raise ValueError(f"has a name of more than {MAX_NAME} characters")
    if prod(sum(last - first + 1 for first, last, _ in group) for group in ranges) > most:
        raise ValueError(f"names more than {MAX_NODES} nodes")
    numbers = [[f"{n:0{width}d}" for first, last, width in group for n in range(first, last + 1)] for group in ranges]
    return ["{}".join(literals).format(*chosen) for chosen in product(*numbers)]


def _range(word: str) -> tuple[int, int, int]:
    """Return the first and the last number of `08-11` or `7`, and the width that they are written with."""
    match = _RANGE.fullmatch(word)
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(f"has an invalid range {word[:40]!r}")
    return int(match[1]), int(match[2] or match[1]), len(match[1])


def parse_task_counts(text: str, source: str = "") -> tuple[int, ...]:
    """Return the number of tasks on each node: `2(x2),1` is (2, 2, 1). `source` is as for `parse_nodelist`.

    RequestError: the text is not a list of task counts, a node has no task, or there are more than MAX_NODES nodes.
    """
    counts: list[int] = []
    for word in text.split(","):
        match = _TASKS.fullmatch(word)
        tasks, repeats = (int(match[1]), int(match[2] or 1)) if match else (0, 0)
        if tasks == 0 or repeats == 0:
            raise _refusal("task-counts-invalid", f"{word[:40]!r} is not a number of tasks", COUNTS, text, source)
        if len(counts) + repeats > MAX_NODES:
            raise _refusal("too-many-nodes", f"tasks on more than {MAX_NODES} nodes", COUNTS, text, source)
        counts += [tasks] * repeats
    return tuple(counts)


def _refusal(code: str, summary: str, expected: str, text: str, source: str) -> RequestError:
    shown = shortened(text, 120)
    return RequestError(code, summary, seen=f"{source}={shown}" if source else repr(shown), expected=expected,
                        fix="srun noether train …      (srun sets it; do not write SLURM_* by hand)")  # fmt: skip


INTERACTIVE_STEP = "4294967290"  # SLURM_INTERACTIVE_STEP of slurm.h: salloc with use_interactive_step.
STEP_VARIABLES = tuple(
    f"SLURM_{name}"
    for name in ("STEP_ID", "STEP_NODELIST", "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE", "PROCID", "LOCALID", "NODEID")
)
SRUN = "srun noether train …"
NAMED_STEPS = {"batch": "the batch script", "interactive": "an interactive step"}


@dataclass(frozen=True, kw_only=True)
class SrunTask(LaunchedTask):
    """One task that srun started, as described by its step's variables; `nodes` are the step's, not the job's.

    `node_list` is their list as srun wrote it, cut off if it is long.
    """

    job_id: int
    step_id: int
    nodes: tuple[str, ...]
    node_list: str
    most_local: int


@dataclass(frozen=True)
class OutsideStep:
    """A process inside a Slurm job that is not a task of srun.

    `where` is what it was started from, and `evidence` what shows that. `nodes` are the job's; `tasks` is the number
    of tasks that srun would start, read from `tasks_source`. `on_node`: slurmd started a parent of this process, so
    it is on an allocated node. `srun` is the line that starts them from here.
    """

    job_id: str
    where: str
    evidence: str
    nodes: tuple[str, ...]
    tasks: int
    tasks_source: str
    on_node: bool
    srun: str = SRUN


def slurm_process(environ: Mapping[str, str], facts: ProcessFacts) -> SrunTask | OutsideStep | None:
    """Return what this process is to Slurm: a task of srun, another process inside a job, or None outside Slurm.

    RequestError: the variables contradict each other or the system, or were removed: each task would train alone.
    """
    seen = step_seen(facts)
    job_id = environ.get("SLURM_JOB_ID", "")
    if not job_id:
        _refuse_stripped(environ, seen)
        return None
    if seen is not None and not seen.step.isdigit():
        where = NAMED_STEPS.get(seen.step, "a login to the node")
        return _outside(environ, job_id, where, seen.evidence, on_node=True)
    if seen is not None:
        _refuse_other_step(environ, job_id, seen)
    if not environ.get("SLURM_STEP_NUM_TASKS"):
        rank = environ.get("SLURM_PROCID", "")
        if rank not in ("", "0"):
            return _read_task(environ)  # A task of srun; this names the variables that are missing.
        if rank or environ.get("SLURMD_NODENAME"):
            return _outside(environ, job_id, "the batch script", "no SLURM_STEP_NUM_TASKS", on_node=True)
        evidence = "no SLURM_STEP_NUM_TASKS, no SLURM_PROCID"
        return _outside(environ, job_id, "a shell of salloc", evidence, on_node=False)
    if environ.get("SLURM_STEP_ID") == INTERACTIVE_STEP:
        return _outside(environ, job_id, "an interactive step", f"SLURM_STEP_ID={INTERACTIVE_STEP}", on_node=True)
    if inherited := _inherited(environ):
        if seen is not None:
            raise RequestError("step-variables-contradict", "the variables of this Slurm step contradict each other",
                               seen=f"{inherited}, and {seen.evidence}",
                               expected="the variables that srun set for this step", fix=SRUN)  # fmt: skip
        return _outside(environ, job_id, "another job's step, or the environment of one", inherited, on_node=True)
    if shell := _typed_into(environ, facts):
        # Its step holds the job's CPUs, so a second step would wait for them without --overlap.
        opened = _outside(environ, job_id, "a shell that srun --pty opened", shell, on_node=True)
        return replace(opened, srun="srun --overlap noether train …")
    return _read_task(environ)


def _refuse_stripped(environ: Mapping[str, str], seen: StepSeen | None) -> None:
    if left := [name for name in STEP_VARIABLES if environ.get(name)]:
        raise RequestError("step-without-job-id",
                           "some of the step's SLURM_* variables are set, but SLURM_JOB_ID is not",
                           seen=as_pairs({name: environ[name] for name in left}),
                           expected="all SLURM_* variables that srun set, or none",
                           fix="pass every SLURM_* variable into the container, or none of them")  # fmt: skip
    if seen is None or seen.step == "extern":  # An ssh login to a node of the job, which is not a task of a step.
        return
    raise RequestError(
        "step-variables-removed", "this process runs in a Slurm step, but its SLURM_* variables were removed",
        seen=f"no SLURM_JOB_ID, but {seen.evidence}",
        expected="the variables that srun sets: without them every task would train alone, on any device it finds",
        fix="drop --cleanenv (apptainer), --export=NONE, env -i or sudo from the line that starts noether"
        "\n(or nodes=1, to train on this node only, as one process)",
    )  # fmt: skip


def _refuse_other_step(environ: Mapping[str, str], job_id: str, seen: StepSeen) -> None:
    """Refuse an environment that belongs to another step, as its ranks are not ours."""
    # A component of a heterogeneous job runs under its own id, but SLURM_JOB_ID is the first component's.
    # `srun … : …` outside a job sets only the older names (Slurm 22.05).
    groups = ("SLURM_JOB_ID_HET_GROUP_", "SLURM_JOB_ID_PACK_GROUP_")
    jobs = {job_id, *(value for name, value in environ.items() if name.startswith(groups))}
    step = environ.get("SLURM_STEP_ID", "")
    if seen.job_id in jobs and seen.step == step and environ.get("SLURM_STEP_NUM_TASKS"):
        return
    raise RequestError(
        "another-step", "this process does not run in the Slurm step that its variables name",
        seen=f"SLURM_JOB_ID={job_id}, {f'SLURM_STEP_ID={step}' if step else 'no SLURM_STEP_ID'}; {seen.evidence}",
        expected="the variables that srun set for this step", fix=SRUN,
    )  # fmt: skip


def _inherited(environ: Mapping[str, str]) -> str:
    """Return the variables that show that the step's variables were inherited from another step, or "".

    sbatch and salloc set the job's variables but leave inherited variables of a step as they are; slurmd sets
    SLURM_GTIDS=0 and SLURMD_NODENAME for a batch script.
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

    SLURM_PTY_PORT alone is not enough: it is also set in every srun that such a shell starts, and in
    `srun --pty noether`.
    """
    if "SLURM_PTY_PORT" not in environ:
        return ""
    if shell := interactive_shell(facts):
        return f"SLURM_PTY_PORT is set and {shell} is between slurmstepd and this process"
    if shell is None and facts.stdin_is_terminal:
        return "SLURM_PTY_PORT is set and standard input is a terminal"
    return ""


def _outside(environ: Mapping[str, str], job_id: str, where: str, evidence: str, *, on_node: bool) -> OutsideStep:
    whole_job = "SLURM_JOB_NODELIST"
    lists = [name for name in sorted(environ) if name == whole_job or name.startswith(f"{whole_job}_HET_GROUP_")]
    nodes = [node for name in lists if environ[name] for node in parse_nodelist(environ[name], whole_job)]
    source = next((name for name in ("SLURM_NTASKS", "SLURM_TASKS_PER_NODE") if environ.get(name)), "")
    tasks = sum(parse_task_counts(environ[source], source)) if source else 1
    said = f"{source}={environ.get(source, '')}"
    return OutsideStep(job_id, where, evidence, tuple(dict.fromkeys(nodes)), tasks, said, on_node=on_node)


def _read_task(environ: Mapping[str, str]) -> SrunTask:
    """Read a task's variables, and refuse them if they contradict each other."""
    if missing := [name for name in STEP_VARIABLES if not environ.get(name)]:
        raise RequestError(
            "step-variables-missing", "some of the step's SLURM_* variables are missing",
            seen=", ".join(f"no {name}" if name in missing else f"{name}={environ[name]}" for name in STEP_VARIABLES),
            expected=", ".join(STEP_VARIABLES), fix="pass every SLURM_* variable into the container",
        )  # fmt: skip
    nodes = parse_nodelist(environ["SLURM_STEP_NODELIST"], "SLURM_STEP_NODELIST")
    counts = parse_task_counts(environ["SLURM_STEP_TASKS_PER_NODE"], "SLURM_STEP_TASKS_PER_NODE")
    step_id, count = whole_number(environ, "SLURM_STEP_ID"), whole_number(environ, "SLURM_STEP_NUM_TASKS")
    rank, local_rank, node_rank = (whole_number(environ, f"SLURM_{name}") for name in ("PROCID", "LOCALID", "NODEID"))
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
    on_node = whole(environ.get("SLURM_GPUS_ON_NODE", ""))
    return SrunTask(
        rank=rank, count=count, node_rank=node_rank,
        local_rank=local_rank, local_count=local_count, most_local=max(counts),
        seen=f"SLURM_PROCID={rank}, SLURM_LOCALID={local_rank}, SLURM_NODEID={node_rank}, "
        f"SLURM_STEP_NUM_TASKS={count}, SLURM_STEP_TASKS_PER_NODE={shortened(environ['SLURM_STEP_TASKS_PER_NODE'])}",
        line="#SBATCH --ntasks-per-node={n}      (one task per device; or 1: one task per node)",
        may_spawn=True,
        # A single visible device is this task's own only if the node has one for each task: else all see the same one.
        bound=on_node >= local_count if on_node is not None else "CUDA_VISIBLE_DEVICES" in environ,
        job_id=whole_number(environ, "SLURM_JOB_ID"), step_id=step_id,
        nodes=nodes, node_list=shortened(environ["SLURM_STEP_NODELIST"]),
    )  # fmt: skip


def restart_count(environ: Mapping[str, str]) -> tuple[int, str]:
    """Return how often Slurm has requeued the job, and the reason.

    RequestError: SLURM_RESTART_COUNT is not a number.
    """
    if environ.get("SLURM_RESTART_COUNT"):
        count = whole_number(environ, "SLURM_RESTART_COUNT")
        return count, f"SLURM_RESTART_COUNT={count}"
    return 0, "the job was not requeued"
