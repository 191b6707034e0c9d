"""Rules about ranks: whether the tasks, the launchers and the GPUs of a job fit each other."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from noether.errors import RequestError
from noether.lint.finding import Edit, Finding, Level
from noether.lint.job import SPAWNS, Job, JobShape
from noether.lint.launch import PER_TASK_VARIABLES, Launch
from noether.lint.values import count, gpu_count, node_range

_ELASTIC = re.compile(r"\d+:\d+")


class TrainLines(Protocol):
    """What the caller knows of its own command line, so that lint can judge `noether train …` in a script."""

    def read(self, words: tuple[str, ...]) -> tuple[tuple[str, ...], str | None] | None:
        """Returns the overrides and the configuration file of `noether train WORDS`; None: it cannot be read."""

    def refusal(
        self, overrides: tuple[str, ...], file: str | None, ranks: int | None
    ) -> tuple[RequestError, bool] | None:
        """Returns why a training with so many ranks would be refused, and whether the batch is the reason."""


@dataclass(frozen=True)
class Requested:
    """The configuration given beside the script, and what reads the script's own."""

    lines: TrainLines | None = None
    hp: str | None = None
    overrides: tuple[str, ...] = ()


def _s(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def world_size(job: Job, launch: Launch) -> int | None:
    """Returns the ranks that a training has, or None where the script does not say."""
    shape = job.shape_at(launch)
    if shape is None:
        return None
    per_node, mpirun, under_srun = launch.layer("per-node"), launch.layer("mpirun"), launch.layer("srun") is not None
    if per_node is not None:
        option = "num_processes" if per_node.name == "accelerate" else "nproc_per_node"
        processes = launch.variables.number(per_node.option(option, "num_gpus"), job.known)
        if option == "num_processes":
            return processes
        processes = processes or shape.gpus_per_node
        return None if processes is None else processes * (shape.tasks if under_srun else 1)
    if mpirun is not None:
        return launch.variables.number(mpirun.option("np", "n"), job.known) or shape.tasks
    ours = launch.innermost.kind == "noether"
    if not under_srun:
        return (shape.gpus_per_node or 1) if ours else 1
    return shape.total_gpus if ours and shape.tasks == shape.nodes and shape.total_gpus else shape.tasks


def configuration(job: Job, requested: Requested) -> Iterator[Finding]:
    """batch-not-divisible, configuration-refused: the configuration given, or that of the script's `noether train`."""
    lines = requested.lines
    for launch in job.trainings if lines else ():
        assert lines is not None
        words: tuple[str, ...] = ()
        file = requested.hp
        if launch.innermost.kind == "noether":
            texts = [launch.variables.expand(word.text) for word in launch.variables.splice(launch.innermost.words[1:])]
            texts = texts[1:] if texts[:1] == ["train"] else texts
            unknown = any(sign in text for text in texts for sign in ("$", "`", "@early"))
            if unknown or {"-h", "--help"} & set(texts):
                continue
            read = lines.read(tuple(texts))
            if read is None:
                continue
            words, own = read
            file = requested.hp or own
            if own and not requested.hp and not own.startswith("/"):
                beside = job.script.folder / own
                file = str(beside) if beside.is_file() else own
                if job.script.neighbour(own) is None:
                    continue  # The script may change folders; a file that is not here says nothing about it.
        elif requested.hp is None and not requested.overrides:
            continue
        refused = lines.refusal((*words, *requested.overrides), file, world_size(job, launch))
        if refused is not None:
            error, batch = refused
            message = error.summary + (f" ({error.seen})" if error.seen and not batch else "")
            rule = "batch-not-divisible" if batch else "configuration-refused"
            yield Finding(launch.line, "error", rule, message, error.fix.splitlines()[0] if error.fix else "")
        return


def tasks(job: Job) -> Iterator[Finding]:
    """ntasks-override, one-rank-per-gpu, spawn-under-srun: what srun python gives each GPU."""
    for launch in job.steps:
        kind = launch.innermost.kind
        shape = job.step_shape(launch)
        if shape is None or kind not in ("python", "noether") or launch.layer("per-node") or launch.layer("mpirun"):
            continue
        source = job.script.neighbour(launch.innermost.name) or ""
        if found := SPAWNS.search(source):
            if shape.per_node > 1:
                message = f"{launch.innermost.name} starts workers itself ({found[0]}…)) in each of {shape.tasks} tasks"
                yield Finding(launch.line, "warning", "spawn-under-srun", message, "#SBATCH --ntasks-per-node=1")
            continue
        if not shape.total_gpus or shape.tasks in (shape.total_gpus, 1):
            continue
        certain = kind == "noether"
        if not job.shows_ddp(launch) or (shape.tasks == shape.nodes and certain) or _shared(job, launch):
            continue
        few = shape.tasks < shape.total_gpus
        gpus = _s(shape.total_gpus, "GPU")
        message = f"srun starts one process per task: {_s(shape.tasks, 'task')} on {gpus}, so " + (
            f"{shape.total_gpus - shape.tasks} of the GPUs stay idle" if few else "several ranks share a GPU"
        )
        total, each = job.given("ntasks"), job.given("ntasks-per-node")
        line = (total or each).line if (total or each) else launch.line  # type: ignore[union-attr]
        rule = "one-rank-per-gpu"
        nodes = node_range(job.options.value("nodes") or "")
        if total and each and nodes and few and count(total.value) == shape.tasks:
            product = nodes[0] * (count(each.value) or 0)
            if product == shape.total_gpus:
                rule, message = (
                    "ntasks-override",
                    f"--ntasks={total.value} wins over --ntasks-per-node={each.value}: {message}",
                )
        fix = f"#SBATCH --ntasks-per-node={shape.total_gpus // shape.nodes}"
        level: Level = "error" if certain or source else "warning"
        yield Finding(line, level, rule, message, fix)


def _shared(job: Job, launch: Launch) -> bool:
    """Says whether the step shares GPUs between tasks, or leaves some to other steps, on purpose."""
    srun = launch.layer("srun")
    given = {option.name for option in job.options.given} | set(srun.options if srun else ())
    if given & {"gpu-bind", "gres-flags", "ntasks-per-gpu", "overcommit", "gpus-per-task"} or "MPS" in job.script.text:
        return True
    return len(job.steps) > 1


def launchers(job: Job) -> Iterator[Finding]:
    """deprecated-launcher, launcher-in-launcher, and what torchrun and the like do in this job."""
    for launch in job.launches:
        chain = [layer for layer in launch.layers if layer.kind in ("srun", "mpirun", "per-node")]
        per_node = launch.layer("per-node")
        if per_node and per_node.name == "torch.distributed.launch":
            yield _deprecated(job, per_node.line, "use_env" in per_node.options)
        shape = job.shape_at(launch)
        if shape is None:
            continue
        nested = [pair for pair in itertools.pairwise(chain) if (pair[0].kind, pair[1].kind) != ("srun", "per-node")]
        for outer, inner in nested:
            number = (
                launch.variables.number(outer.option("np", "n"), job.known) if outer.kind == "mpirun" else shape.tasks
            )
            if number and number > shape.nodes and inner.kind != "srun":
                message = f"each of the {number} processes of {outer.name} runs {inner.name}, which starts a whole run"
                yield Finding(
                    inner.line,
                    "error",
                    "launcher-in-launcher",
                    message,
                    f"{outer.name} python …, or {inner.name} alone",
                )
        if per_node and not nested and per_node.name not in ("accelerate", "deepspeed"):
            yield from _per_node(job, launch, shape)


def _deprecated(job: Job, line: int, uses_env: bool) -> Finding:
    source = job.script.source(line)
    new = re.sub(r"(?<![\w/.-])python[\d.]*\s+-m\s+torch\.distributed\.launch\b", "torchrun", source)
    # An interpreter by its path, or with flags of its own, stays: its torchrun may not be the one on the PATH.
    new = new.replace("torch.distributed.launch", "torch.distributed.run")
    here = 0
    if uses_env:  # A second one is the program's own.
        new, here = re.subn(r"\s--use[-_]env\b", "", new, count=1)
    note = "without --use_env" if uses_env else "the program reads LOCAL_RANK from its environment, not --local_rank"
    note = "" if here else f"      ({note})"
    edit = Edit(line, (new,)) if here and new != source and "#" not in source else None
    message = "torch.distributed.launch is deprecated: PyTorch says to use torchrun"
    return Finding(line, "warning", "deprecated-launcher", message, new.strip() + note, edit)


def _per_node(job: Job, launch: Launch, shape: JobShape) -> Iterator[Finding]:
    """launcher-per-task, processes-per-node, separate-runs, node-count: torchrun and its older forms."""
    per_node, under_srun = launch.layer("per-node"), launch.layer("srun") is not None
    assert per_node is not None
    processes = launch.variables.number(per_node.option("nproc_per_node"), job.known)
    nodes_text = per_node.option("nnodes")
    agents = launch.variables.number(nodes_text, job.known)
    gpus = shape.gpus_per_node
    own = any(name in word.raw for name in PER_TASK_VARIABLES for word in (*launch.command.words, *per_node.words))
    if under_srun and shape.tasks > shape.nodes and agents != shape.tasks and not (own and agents in (None, 1)):
        started = f"{shape.tasks * processes} processes" if processes else f"{shape.tasks} launchers"
        on = _s(shape.total_gpus, "GPU") if shape.total_gpus else _s(shape.nodes, "node")
        times = f"srun runs it {shape.per_node:g} times a node: {started} on {on}"
        message = f"{per_node.name} starts a node's workers itself, and {times}"
        if (processes or 2) > 1 and not _shared(job, launch):
            yield Finding(launch.line, "error", "launcher-per-task", message, "#SBATCH --ntasks-per-node=1")
        return
    if processes and gpus and processes > gpus:
        message = f"{_s(processes, 'worker')} a node on {_s(gpus, 'GPU')} a node"
        yield Finding(launch.line, "error", "processes-per-node", message, f"--nproc_per_node={gpus}")
    elif processes and gpus and 1 < processes < gpus and len(job.trainings) == 1:
        message = f"{_s(processes, 'worker')} a node on {_s(gpus, 'GPU')} a node: the others stay idle"
        yield Finding(launch.line, "warning", "processes-per-node", message, f"--nproc_per_node={gpus}")
    if own or "PET_NNODES" in job.set_names or launch.command.in_background or not shape.nodes_known:
        return
    standalone = "standalone" in per_node.options
    if under_srun and shape.nodes > 1 and (standalone or nodes_text is None or agents == 1):
        what = "--standalone" if standalone else "--nnodes=1" if agents else "no --nnodes"
        message = f"{what}: each of the {shape.nodes} nodes trains alone"
        yield Finding(per_node.line, "error", "separate-runs", message, f"--nnodes={shape.nodes}")
    elif (
        agents
        and not _ELASTIC.fullmatch(nodes_text or "")
        and agents != shape.nodes
        and (under_srun or (agents > shape.nodes and not job.has_driver))
    ):
        message = f"--nnodes={agents}, but the {'step' if under_srun else 'job'} has {_s(shape.nodes, 'node')}"
        message += ": it waits for the others" if agents > shape.nodes else ""
        yield Finding(per_node.line, "error", "node-count", message, f"--nnodes={shape.nodes}")


def reach(job: Job) -> Iterator[Finding]:
    """missing-srun: a launcher or a script for several nodes that runs on the first of them alone."""
    shape = job.shape
    if not job.several_nodes or not shape.nodes_known or len(job.components) > 1 or job.has_driver or job.steps:
        return
    for launch in job.trainings:
        per_node = launch.layer("per-node")
        source = job.script.source(launch.line)
        fix = re.sub(r"^(\s*)", r"\1srun ", source, count=1).strip()
        if per_node is not None:
            if (
                per_node.name == "deepspeed"
                or launch.command.in_background
                or launch.command.within("function_definition")
            ):
                continue
            option = "num_machines" if per_node.name == "accelerate" else "nnodes"
            agents = launch.variables.number(per_node.option(option), job.known)
            level: Level = "error" if agents and agents > 1 and per_node.name != "accelerate" else "warning"
            then = " and waits for the others" if level == "error" else ": the others stay idle"
            message = f"{per_node.name} without srun runs on the first of {shape.nodes} nodes only{then}"
            yield Finding(launch.line, level, "missing-srun", message, fix)
        elif launch is job.trainings[-1]:
            message = f"without srun this runs once, on the first of {shape.nodes} nodes"
            yield Finding(launch.line, "warning", "missing-srun", message, fix)


def idle_nodes(job: Job) -> Iterator[Finding]:
    """idle-nodes: srun --nodes=1 in a job of two nodes, and nothing on the other."""
    if len(job.steps) != 1 or len(job.launches) != 1 or len(job.components) > 1:
        return
    launch = job.steps[0]
    srun, shape = launch.layer("srun"), job.step_shape(launch)
    if srun is None or shape is None or not job.shape.nodes_known or launch.command.within("function_definition"):
        return
    looped = launch.command.within("for_statement", "c_style_for_statement", "while_statement")
    if srun.option("nodes") and shape.nodes < job.shape.nodes and not looped and "hetjob" not in job.script.text:
        message = f"the only step has {shape.nodes} of the job's {job.shape.nodes} nodes: the others stay idle"
        yield Finding(
            srun.line, "warning", "idle-nodes", message, f"#SBATCH --nodes={shape.nodes}, or srun without --nodes"
        )


def step_options(job: Job) -> Iterator[Finding]:
    """srun-tasks-ignored, srun-cpus, gpus-per-task: options that a step takes otherwise than the job says."""
    cpus = job.given("cpus-per-task")
    passed = "SRUN_CPUS_PER_TASK" in job.script.text
    for launch in job.steps:
        srun, shape = launch.layer("srun"), job.step_shape(launch)
        if srun is None or shape is None:
            continue
        each = launch.variables.number(srun.option("ntasks-per-node"), job.known)
        if each and srun.option("ntasks") is None and job.given("ntasks", "ntasks-per-node"):
            total = each * (launch.variables.number(srun.option("nodes"), job.known) or job.shape.nodes)
            if job.shape.tasks > total:
                message = (
                    f"Slurm 22.05 starts all of the job's {job.shape.tasks} tasks: "
                    f"--ntasks-per-node={each} does not make them {total}"
                )
                yield Finding(
                    srun.line,
                    "warning",
                    "srun-tasks-ignored",
                    message,
                    f"srun --ntasks={total} --ntasks-per-node={each} …",
                )
        own = srun.option("cpus-per-task", "exact", "exclusive", "cpu-bind", "overlap") is not None
        threads = (
            launch.trains
            or launch.innermost.name == "ray"
            or (launch is job.steps[-1] and "OMP_NUM_THREADS" in job.script.text)
        )
        asked = cpus and (count(cpus.value) or 1) > 1
        if cpus and asked and threads and not passed and not own and not job.given("exclusive"):
            passed = True  # One line answers for all steps.
            message = (
                f"Slurm 22.05 to before 23.11: srun does not take --cpus-per-task={cpus.value} from the job, "
                "so its tasks may be bound to one CPU each"
            )
            fix = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK      (before srun)"
            yield Finding(srun.line, "warning", "srun-cpus", message, fix)
        option = job.given("gpus-per-task")
        per_task = gpu_count(option.value if option else srun.option("gpus-per-task") or "-")
        flags = (job.options.value("gres-flags") or "") + (srun.option("gres-flags") or "")
        bind = srun.option("gpu-bind") or job.options.value("gpu-bind") or ""
        if per_task == 1 and shape.per_node > 1 and job.shows_ddp(launch) and "sharing" not in flags and bind != "none":
            message = "each task sees its own GPU alone: where cgroups hide the others, NCCL cannot copy between them"
            fix = f"#SBATCH --gpus-per-node={shape.gpus_per_node or 1}, and --ntasks-per-node as many"
            yield Finding(option.line if option else srun.line, "warning", "gpus-per-task", message, fix)


def mpi(job: Job) -> Iterator[Finding]:
    """mpi-count: mpirun's number of processes against the job's tasks."""
    for launch in job.launches:
        layer = launch.layers[0]
        if layer.kind != "mpirun" or layer.name in ("ibrun", "prun", "mpiexec.hydra"):
            continue
        asked, slots = launch.variables.number(layer.option("np", "n", "c"), job.known), job.shape.tasks
        freed = {"oversubscribe", "hostfile", "machinefile", "host", "H", "map-by", "use-hwthread-cpus", "ppn"} & set(
            layer.options
        )
        if asked and asked > slots and job.given("ntasks", "ntasks-per-node", "nodes") and not freed:
            message = (
                f"{layer.name} starts {asked} processes, but the job has {_s(slots, 'task')}: Open MPI refuses more"
            )
            yield Finding(launch.line, "warning", "mpi-count", message, f"#SBATCH --ntasks={asked}")


def devices(job: Job) -> Iterator[Finding]:
    """visible-devices: GPUs by numbers that the job does not have."""
    gpus = job.shape.gpus_per_node or 0
    for command in job.script.commands if gpus and len(job.components) == 1 else ():
        for name, word in command.assignments:
            numbers = re.fullmatch(r"\d+(,\d+)*", word.text)
            if name == "CUDA_VISIBLE_DEVICES" and numbers and max(map(int, word.text.split(","))) >= gpus:
                message = (
                    f"the job has {_s(gpus, 'GPU')} a node, numbered from 0: Slurm sets CUDA_VISIBLE_DEVICES to them"
                )
                yield Finding(word.line, "warning", "visible-devices", message, "leave CUDA_VISIBLE_DEVICES to Slurm")
