"""Rules about ranks: whether the tasks, the launchers and the GPUs of a job fit each other."""

import re
from collections.abc import Iterator

from slurm_lint.finding import Finding
from slurm_lint.job import SPAWNS, Job, JobShape
from slurm_lint.launch import Launch, Layer
from slurm_lint.options import count, node_range
from slurm_lint.shell import unquote
from slurm_lint.words import counted


def world_size(job: Job, launch: Launch) -> int | None:
    """Return the ranks that a training has, or None where the script does not say."""
    shape, per_node, under_srun = job.shape_at(launch), launch.layer("per-node"), launch.layer("srun") is not None
    if shape is None:
        return None
    if per_node is not None:
        processes, agents = workers(job, launch, per_node, shape), shape.tasks if under_srun else 1
        if per_node.name in ("accelerate", "deepspeed"):
            alone = shape.nodes if "hostfile" in per_node.options else 1
            agents = job.number(launch, per_node, "num_machines", "num_nodes") or alone
        return processes and processes * agents
    if mpirun := launch.layer("mpirun"):
        return job.number(launch, mpirun, "np", "n") or shape.tasks
    if launch.layer("ranks") and (not under_srun or shape.tasks == shape.nodes):  # It starts a rank for each GPU.
        return (shape.total_gpus or shape.tasks) if under_srun else (shape.gpus_per_node or 1)
    return shape.tasks if under_srun else 1


def workers(job: Job, launch: Launch, per_node: Layer, shape: JobShape) -> int | None:
    """Return the workers that a launcher starts on each node, or None where the script does not say."""
    if per_node.name == "accelerate":
        total, machines = (job.number(launch, per_node, name) for name in ("num_processes", "num_machines"))
        return total // (machines or 1) if total else None
    if per_node.name == "deepspeed":
        chosen = per_node.option("include", "i", "exclude", "e") is not None
        return job.number(launch, per_node, "num_gpus") or (None if chosen else shape.gpus_per_node)
    asked = per_node.option("nproc_per_node")
    if asked is None:
        return None if "PET_NPROC_PER_NODE" in job.set_names else 1
    return shape.gpus_per_node if unquote(asked) in ("gpu", "auto") else job.number(launch, per_node, "nproc_per_node")


def tasks(job: Job) -> Iterator[Finding]:
    """one-rank-per-gpu: what srun python gives each GPU."""
    for launch in job.launches:
        kind, shape, srun = launch.innermost.kind, job.shape_at(launch), launch.layer("srun")
        starter = srun or launch.layer("mpirun")
        if kind not in ("python", "ranks") or launch.layer("per-node") or shape is None or starter is None:
            continue
        source = job.script.neighbour(launch.innermost.name) or ""
        ranks, gpus, nested = world_size(job, launch) or 1, shape.total_gpus, srun and launch.layer("mpirun")
        # Where the program spawns ranks, the tasks are none.
        if not gpus or nested or ranks in (gpus, 1) or SPAWNS.search(source) or shares_gpus(job, launch, ranks > gpus):
            continue
        # An address alone does not show that each task is a rank: the one task of a node may spawn them.
        shown, many = job.shows_ddp(launch), ranks > shape.nodes and not source
        copies = many and srun is not None and ranks > gpus and "mpi" not in job.code.lower()
        if not shown and not copies and not (many and "MASTER_ADDR" in job.set_names):
            continue
        idle = f"{gpus - ranks} of the GPUs stay idle" if ranks < gpus else "several ranks share a GPU"
        on = counted(gpus, "GPU")
        message = f"{starter.name} starts one process per task: {counted(ranks, 'task')} on {on}, so {idle}"
        total, each = job.options.last("ntasks"), job.options.last("ntasks-per-node")
        nodes = node_range(job.options.value("nodes")) or (0, 0)
        if total and each and count(total.value) == ranks < gpus == nodes[0] * (count(each.value) or 0):
            message = f"--ntasks={total.value} wins over --ntasks-per-node={each.value}: {message}"
        wanted = ("ntasks", gpus) if total else ("ntasks-per-node", gpus // shape.nodes)
        write = None if copies and not shown else job.script.with_option(*wanted)
        certain = launch.layer("ranks") is not None or bool(source)
        yield Finding((total or each or launch).line, "one-rank-per-gpu", message, edit=write, certain=certain)


def shares_gpus(job: Job, launch: Launch, several_to_a_gpu: bool) -> bool:
    """Say whether the launch shares GPUs between its ranks, or leaves some to others beside it, on purpose."""
    srun = launch.layer("srun")
    given = {option.name: option.value for option in job.options.given} | dict(srun.options if srun else {})
    sharing = {"gpu-bind", "ntasks-per-gpu", "overcommit", "gpus-per-task"} & set(given)
    beside = any(other.command.in_background for other in (*job.steps, *job.trainings)) and len(job.launches) > 1
    flags = several_to_a_gpu and "sharing" in given.get("gres-flags", "")
    return bool(sharing) or flags or beside or "MPS" in job.code


def reach(job: Job) -> Iterator[Finding]:
    """missing-srun: a launcher or a script for several nodes that runs on the first of them alone."""
    nodes = job.shape.nodes
    if nodes < 2 or not job.shape.nodes_known or len(job.components) > 1 or job.has_driver or job.steps:
        return
    own = [x for x in job.launches if x.innermost.kind == "other" and x.innermost.words[0].raw.startswith("./")]
    for launch in job.trainings or own:
        per_node, program = launch.layer("per-node"), re.escape(launch.command.words[0].raw)
        starts = "srun " if launch.runs_script else "srun --kill-on-bad-exit=1 "
        edit = job.script.rewritten(launch.line, rf"(?<!\S)(?={program})", starts)
        apart = launch.command.in_background or launch.command.within("function_definition")
        # On CPUs, what is told how many tasks there are starts them itself.
        told = job.shape.tasks > nodes and str(job.shape.tasks) in launch.command.texts
        driver = told and not job.shape.total_gpus and not job.shows_ddp(launch)
        if per_node is None and launch is (job.trainings or own)[-1] and not driver:
            message = f"without srun this runs once, on the first of {nodes} nodes, unless it starts the others itself"
            # A program that starts others by its own means is to run once.
            edit = edit if job.shows_ddp(launch) else None
            yield Finding(launch.line, "missing-srun", message, "srun, where each task is a rank", edit, certain=False)
        elif per_node and per_node.name != "deepspeed" and not apart:
            waits = per_node.name != "accelerate" and (job.number(launch, per_node, "nnodes") or 1) > 1
            then = " and waits for the others" if waits else ": the others stay idle"
            message = f"{per_node.name} without srun runs on the first of {nodes} nodes only{then}"
            yield Finding(launch.line, "missing-srun", message, edit=edit, certain=waits)


def mpi(job: Job) -> Iterator[Finding]:
    """mpi-count: mpirun's number of processes against the job's tasks."""
    freeing = {"oversubscribe", "hostfile", "machinefile", "host", "H", "map_by", "use_hwthread_cpus", "ppn"}
    for launch in job.launches:
        layer = launch.layers[0]
        if layer.kind != "mpirun" or layer.name in ("ibrun", "prun", "mpiexec.hydra") or freeing & set(layer.options):
            continue
        asked, slots = job.number(launch, layer, "np", "n", "c"), job.shape.tasks
        if asked and asked > slots and job.options.last("ntasks", "ntasks-per-node", "nodes"):
            has = counted(slots, "task")
            message = f"{layer.name} starts {asked} processes, but the job has {has}: Open MPI refuses more"
            yield Finding(launch.line, "mpi-count", message, edit=job.script.with_option("ntasks", asked))
        spread = len(job.launches) > 1 or {"npernode", "pernode", "bynode", "N"} & set(layer.options)
        if asked and job.shape.nodes > 1 and asked <= (job.shape.tasks_per_node or 0) and not spread:
            message = f"{layer.name} puts {counted(asked, 'rank')} on the first of {job.shape.nodes} nodes"
            yield Finding(launch.line, "idle-nodes", message, f"-np {slots}, or #SBATCH --nodes=1")


def devices(job: Job) -> Iterator[Finding]:
    """visible-devices: GPUs by numbers that the job does not have."""
    gpus = job.shape.gpus_per_node or 0
    alone = len(job.launches) == 1 == job.shape.nodes
    given = [word for launch in job.launches for _, word in launch.command.assignments]  # In front of the program.
    for name, word in job.script.assignments if gpus and len(job.components) == 1 else ():
        numbers = name == "CUDA_VISIBLE_DEVICES" and re.fullmatch(r"\d+(,\d+)*", word.text)
        chosen = set(map(int, word.text.split(","))) if numbers else set()
        if max(chosen, default=0) >= gpus:
            message = f"the job has {counted(gpus, 'GPU')} a node, numbered from 0, and Slurm sets the variable to them"
            yield Finding(word.line, "visible-devices", message, "leave CUDA_VISIBLE_DEVICES to Slurm")
        elif 0 < len(chosen) < gpus and alone and (word in given or name in job.script.exported):
            message = f"{gpus - len(chosen)} of the job's {counted(gpus, 'GPU')} stay idle"
            yield Finding(word.line, "visible-devices", message, f"ask for {counted(len(chosen), 'GPU')}, or use all")
