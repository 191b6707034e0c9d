"""Rules about torchrun, accelerate, deepspeed and mpirun: how often each is started, and how many workers it starts."""

import itertools
import re
from collections.abc import Iterator

from slurm_lint.finding import Edit, Finding
from slurm_lint.job import Job, JobShape
from slurm_lint.launch import Launch, Layer
from slurm_lint.rank_rules import shares_gpus, workers
from slurm_lint.variables import PER_TASK_VARIABLES
from slurm_lint.words import counted


def launchers(job: Job) -> Iterator[Finding]:
    """deprecated-launcher, launcher-in-launcher, and what torchrun and the like do in this job."""
    for launch in job.launches:
        chain = [layer for layer in launch.layers if layer.kind in ("srun", "mpirun", "per-node")]
        per_node, shape = launch.layer("per-node"), job.shape_at(launch)
        if per_node and per_node.name == "torch.distributed.launch":
            yield _deprecated(job, per_node.line, "use_env" in per_node.options)
        if shape is None:
            continue
        nested = [pair for pair in itertools.pairwise(chain) if (pair[0].kind, pair[1].kind) != ("srun", "per-node")]
        for outer, inner in nested:
            number = job.number(launch, outer, "np", "n") if outer.kind == "mpirun" else shape.tasks
            inside = outer.kind == "per-node" and inner.kind == "srun"
            if inside or (number and number > shape.nodes and inner.kind != "srun"):
                each = f"each {'worker' if inside else f'of the {number} processes'} of {outer.name}"
                message, fix = f"{each} runs {inner.name}, a whole run", f"{outer.name} python …, or {inner.name} alone"
                yield Finding(inner.line, "launcher-in-launcher", message, fix)
        if per_node and not nested:
            yield from _per_node(job, launch, per_node, shape)
            yield from _workers(job, launch, per_node, shape)
            if per_node.name == "deepspeed":
                yield from _deepspeed(job, launch, per_node, shape)


def _deprecated(job: Job, line: int, uses_env: bool) -> Finding:
    source = job.script.source(line)
    # An interpreter by its path, or with flags of its own, stays: its torchrun may not be the one on the PATH.
    new = re.sub(r"(?<![\w/.-])python[\d.]*\s+-m\s+torch\.distributed\.launch\b", "torchrun", source)
    new = new.replace("torch.distributed.launch", "torch.distributed.run")
    new, here = re.subn(r"\s--use[-_]env\b", "", new, count=1) if uses_env else (new, 0)
    note = "without --use_env" if uses_env else "the program reads LOCAL_RANK from its environment, not --local_rank"
    edit = Edit(line, (new,), safe=True) if here and "#" not in source else None
    message = "torch.distributed.launch is deprecated: PyTorch says to use torchrun"
    return Finding(line, "deprecated-launcher", message, f"{new.strip()}      ({note})", edit)


def _per_node(job: Job, launch: Launch, per_node: Layer, shape: JobShape) -> Iterator[Finding]:
    srun, torch = launch.layer("srun"), per_node.name not in ("accelerate", "deepspeed")
    processes = workers(job, launch, per_node, shape) if not torch or per_node.option("nproc_per_node") else None
    agents = job.number(launch, per_node, "nnodes", "num_machines")
    own = any(name in word.raw for name in PER_TASK_VARIABLES for word in (*launch.command.words, *per_node.words))
    several = shape.tasks > shape.nodes and (shape.nodes == 1 or per_node.name != "deepspeed")
    if srun and several and agents != shape.tasks and not (own and agents in (None, 1)):
        started = f"{shape.tasks * processes} processes" if processes else f"{shape.tasks} launchers"
        on = counted(shape.total_gpus, "GPU") if shape.total_gpus else counted(shape.nodes, "node")
        message = f"{per_node.name} starts a node's workers itself, and srun runs it {shape.per_node:g} times a node: "
        message += f"{started} on {on}"
        if (processes or 2) > 1 and not shares_gpus(job, launch, several_to_a_gpu=True):
            given = ("ntasks", shape.nodes) if job.options.last("ntasks") else ("ntasks-per-node", 1)
            yield Finding(launch.line, "launcher-per-task", message, edit=job.script.with_option(*given))
        return
    if not torch or own or "PET_NNODES" in job.set_names or launch.command.in_background or not shape.nodes_known:
        return
    standalone, nodes_text = "standalone" in per_node.options, per_node.option("nnodes")
    if srun and shape.nodes > 1 and (standalone or nodes_text is None or agents == 1):
        what = "--standalone" if standalone else "--nnodes=1" if agents else "no --nnodes"
        rule, message = "separate-runs", f"{what}: each of the {shape.nodes} nodes takes itself for the whole run"
    elif agents and agents != shape.nodes and (srun or (agents > shape.nodes and not job.has_driver)):
        has = f"the {'step' if srun else 'job'} has {counted(shape.nodes, 'node')}"
        rule, message = "node-count", f"--nnodes={agents}, but {has}"
        message += ": it waits for the others" if agents > shape.nodes else ""
    else:
        return
    edit = _with_value(job, launch, "nnodes", shape.nodes)
    yield Finding(per_node.line, rule, message, f"--nnodes={shape.nodes}", edit)


def _workers(job: Job, launch: Launch, per_node: Layer, shape: JobShape) -> Iterator[Finding]:
    processes, gpus, name = workers(job, launch, per_node, shape), shape.gpus_per_node, per_node.name
    option = {"accelerate": "num_processes", "deepspeed": "num_gpus"}.get(name, "nproc_per_node")
    several = launch.layer("srun") is not None and shape.tasks > shape.nodes
    if not processes or not gpus or processes == gpus or several or "cpu" in per_node.options:
        return
    # One worker may be meant where 1 is written; a model may be spread over all GPUs of a node.
    alone = processes == 1 and "$" not in (per_node.option(option) or "$") and shape.nodes == 1
    if processes < gpus and (alone or shares_gpus(job, launch, False)):
        return
    machines = job.number(launch, per_node, "num_machines") or 1 if name == "accelerate" else 1
    default = "" if per_node.option(option) else f" (no --{option})"
    message = f"{counted(processes, 'worker')} a node{default} on {counted(gpus, 'GPU')} a node"
    message += "" if processes > gpus else ": the others stay idle"
    edit, fix = _with_value(job, launch, option, gpus * machines), f"--{option}={gpus * machines}"
    if "multi_gpu" in per_node.options and gpus * machines == 1:  # accelerate refuses one process with it.
        edit, fix = None, f"#SBATCH --gpus-per-node={processes}"
    yield Finding(launch.line, "processes-per-node", message, fix, edit, certain=processes > gpus)


def _with_value(job: Job, launch: Launch, option: str, value: int) -> Edit | None:
    typed = rf"(--{option.replace('_', '[-_]')}[= ])\d+\b"
    return job.script.rewritten(launch.line, typed, rf"\g<1>{value}", launch.command.last_line)


def _deepspeed(job: Job, launch: Launch, deepspeed: Layer, shape: JobShape) -> Iterator[Finding]:
    """deepspeed-nodes: deepspeed reaches the other nodes by ssh, and only those that its hostfile names."""
    if {"no_ssh", "node_rank"} & set(deepspeed.options) or shape.nodes < 2 or not shape.nodes_known:
        return
    message = f"without --hostfile deepspeed uses this node alone: the other {shape.nodes - 1} stay idle"
    fix, under = "--hostfile=FILE, a line `HOST slots=GPUS` for each node", launch.layer("srun") is not None
    if under:
        message = f"srun runs deepspeed {shape.tasks} times, and each starts a run of its own"
        fix = "--no_ssh --node_rank=$SLURM_NODEID …, or srun torchrun"
    if under or "hostfile" not in job.code.lower():
        yield Finding(deepspeed.line, "deepspeed-nodes", message, fix)
