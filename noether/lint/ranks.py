"""Does every GPU get one rank? The rules about tasks, GPUs and the programs that start workers."""

import itertools
import re
from collections.abc import Iterator

from noether.lint.finding import Edit, Finding, Level
from noether.lint.job import Job, Shape
from noether.lint.launch import Launch
from noether.lint.values import count, node_range

SPAWNS = re.compile(r"mp\.spawn\(|multiprocessing\.spawn\(|\bspawn\(|mp\.start_processes\(|notebook_launcher\(")
SPREADS = re.compile(r"DataParallel\(|device_map|mp\.Process\(|start_processes\(")


def tasks(job: Job) -> Iterator[Finding]:
    """ntasks-override: the number of tasks against nodes × tasks per node."""
    for options, shape in zip(job.components, job.shapes, strict=True):
        total, each = options.last("ntasks"), options.last("ntasks-per-node")
        nodes = node_range(options.value("nodes") or "")
        if not total or not each or not nodes or nodes[0] != nodes[1]:
            continue
        number, per_node = count(total.value), count(each.value)
        if number is None or per_node is None:
            continue
        product = nodes[0] * per_node
        if number == product or (not shape.total_gpus and nodes[0] <= number < product):
            continue
        fix = f"#SBATCH --ntasks={product}"
        message = f"--ntasks={number} wins over --ntasks-per-node={per_node}: {nodes[0]} × {per_node} are {product}"
        if shape.total_gpus:
            message += f", and of {shape.total_gpus} GPUs {number} get a rank" if number < product else ""
        yield Finding(total.line, "error", "ntasks-override", message, fix, Edit(total.line, (_with(job, total, fix),)))


def _with(job: Job, option: object, fix: str) -> str:
    source = job.script.source(option.line)  # type: ignore[attr-defined]
    others = [given for given in job.options.given if given.line == option.line]  # type: ignore[attr-defined]
    if len(others) == 1:
        return fix
    return re.sub(r"(--ntasks[= ]|-n\s*)\d+", lambda m: m[1] + fix.rpartition("=")[2], source, count=1)


def step_ranks(job: Job) -> Iterator[Finding]:
    """one-rank-per-gpu, uneven-tasks, idle-gpus: what srun python gives each GPU."""
    if any(finding.level == "error" for finding in tasks(job)):
        return
    for launch in job.steps:
        kind = launch.innermost.kind
        if kind not in ("python", "noether") or launch.layer("per-node") or launch.layer("mpirun"):
            continue
        shape = job.step_shape(launch)
        if shape is None or not shape.total_gpus:
            continue
        on_node = shape.gpus_per_node or shape.total_gpus
        if shape.tasks == shape.total_gpus:
            options = job.options_of(launch)
            uneven = shape.nodes > 1 and not options.last("ntasks-per-node") and shape.tasks > shape.nodes
            srun = launch.layer("srun")
            own = srun is not None and any(srun.option(n) for n in ("ntasks-per-node", "gpus-per-task", "distribution"))
            if uneven and not own and not options.last("gpus-per-task") and not options.last("ntasks-per-gpu"):
                message = (
                    f"{shape.tasks} tasks on {shape.nodes} nodes may be placed unevenly: Slurm fills nodes in turn"
                )
                fix = f"#SBATCH --ntasks-per-node={shape.tasks // shape.nodes}"
                yield Finding(job.line_of("ntasks"), "warning", "uneven-tasks", message, fix)
            continue
        if kind == "noether" and shape.tasks == shape.nodes:
            continue
        source = job.script.neighbour(launch.innermost.name) or ""
        if shape.tasks == shape.nodes and (SPAWNS.search(source) or SPREADS.search(source)):
            continue
        chosen = launch.layer("srun")
        deliberate = chosen is not None and chosen.option("ntasks") in ("1",) and shape.tasks == 1
        message = (
            f"{shape.tasks} task{'s' * (shape.tasks != 1)} on {shape.total_gpus} GPUs "
            f"({shape.nodes} × {on_node}): srun python starts one process per task, so "
            + ("GPUs stay idle" if shape.tasks < shape.total_gpus else "several ranks share a GPU")
        )
        fix, line, edit = _tasks_fix(job, shape, on_node, launch)
        level: Level = "warning" if deliberate else "error"
        rule = "idle-gpus" if deliberate else "one-rank-per-gpu"
        yield Finding(line, level, rule, message, fix, edit)


def _tasks_fix(job: Job, shape: Shape, on_node: int, launch: Launch) -> tuple[str, int, Edit | None]:
    srun = launch.layer("srun")
    if srun is not None and (srun.option("ntasks") or srun.option("ntasks-per-node")):
        return f"srun --ntasks={shape.total_gpus} --ntasks-per-node={on_node}", launch.line, None
    fix = f"#SBATCH --ntasks-per-node={on_node}"
    each, total = job.given("ntasks-per-node"), job.given("ntasks")
    if each and job.script.source(each.line).count("--") == 1 and not total:
        return fix, each.line, Edit(each.line, (fix,))
    if total and job.script.source(total.line).count("-") <= 2 and not each:
        return fix, total.line, Edit(total.line, (fix,))
    if not each and not total and shape.nodes_known:
        gpus = job.line_of("gres", "gpus-per-node", "gpus")
        return fix, gpus, Edit(gpus, (job.script.source(gpus), fix))
    return fix, job.line_of("ntasks-per-node", "ntasks", "gres", "gpus-per-node", "gpus"), None


def launchers(job: Job) -> Iterator[Finding]:
    """deprecated-launcher, launcher-in-launcher, launcher-per-task, processes-per-node, node-count …"""
    for launch in job.launches:
        chain = [layer for layer in launch.layers if layer.kind in ("srun", "mpirun", "per-node")]
        kinds = [layer.kind for layer in chain]
        per_node = launch.layer("per-node")
        if per_node and per_node.name == "torch.distributed.launch":
            message = "torch.distributed.launch is deprecated in favour of torchrun"
            line = job.script.source(per_node.line)
            fix = re.sub(r"[^\s'\"]*python[\d.]*\s+(-u\s+)?-m\s+torch\.distributed\.launch", "torchrun", line)
            fix = re.sub(r"\s--use[-_]env\b", "", fix)
            edit = Edit(per_node.line, (fix,)) if "torchrun" in fix and "use" in line.replace("-", "_") else None
            edit = edit if re.search(r"--use[-_]env\b", line) else None
            yield Finding(per_node.line, "warning", "deprecated-launcher", message, fix.strip(), edit)
        nested = [(a, b) for a, b in itertools.pairwise(chain) if (a.kind, b.kind) != ("srun", "per-node")]
        for outer, inner in nested:
            message = (
                f"{inner.name} inside {outer.name}: each of {outer.name}'s processes starts a whole run of its own"
            )
            yield Finding(
                inner.line, "error", "launcher-in-launcher", message, f"{outer.name} python …, or {inner.name} alone"
            )
        shape = job.step_shape(launch) if kinds[:1] == ["srun"] else job.shape
        if shape is None or nested:
            continue
        if per_node and not nested:
            yield from _per_node(job, launch, shape)
        if kinds == ["srun"] and launch.innermost.kind == "python" and shape.per_node > 1:
            source = job.script.neighbour(launch.innermost.name)
            found = source and SPAWNS.search(source)
            if found:
                message = f"{launch.innermost.name} starts workers itself ({found[0]}…)) in each of {shape.tasks} tasks"
                fix = "#SBATCH --ntasks-per-node=1"
                yield Finding(launch.line, "error", "spawn-under-srun", message, fix)


def _per_node(job: Job, launch: Launch, shape: Shape) -> Iterator[Finding]:
    per_node, under_srun = launch.layer("per-node"), launch.layer("srun") is not None
    assert per_node is not None
    variables = job.variables_at(launch)
    processes = variables.number(per_node.option("nproc_per_node", "num_gpus") or "", job.known)
    each, gpus = int(shape.per_node + 0.999), shape.gpus_per_node
    if any(finding.rule == "ntasks-override" for finding in tasks(job)):
        return
    if under_srun and shape.tasks > shape.nodes:
        started = f"{shape.tasks * processes} processes" if processes else f"{shape.tasks} launchers"
        on = f"{shape.total_gpus} GPUs" if shape.total_gpus else f"{shape.nodes} nodes"
        message = (
            f"{per_node.name} starts a node's workers itself, but srun starts it {each} times a node: {started} on {on}"
        )
        fix = "#SBATCH --ntasks-per-node=1"
        given, total = job.given("ntasks-per-node"), job.given("ntasks")
        alone = given and job.script.source(given.line).split("=")[0].strip() == "#SBATCH --ntasks-per-node"
        edit = Edit(given.line, (fix,)) if given and alone and not total else None
        yield Finding(given.line if edit and given else launch.line, "error", "launcher-per-task", message, fix, edit)
    elif processes and gpus and processes != gpus:
        level = "error" if processes > gpus else "warning"
        message = f"{processes} workers a node on {gpus} GPU{'s' * (gpus != 1)} a node"
        yield Finding(launch.line, level, "processes-per-node", message, f"--nproc_per_node={gpus}")  # type: ignore[arg-type]
    if per_node.name in ("accelerate", "deepspeed"):
        return
    nodes = per_node.option("nnodes")
    asked = variables.number(nodes, job.known) if nodes is not None else None
    standalone = "standalone" in per_node.options
    if shape.nodes > 1 and under_srun and (standalone or nodes is None):
        message = f"without --nnodes each of {shape.nodes} nodes trains alone"
        rule, level = "separate-runs", "error" if standalone else "warning"
        if standalone:
            message = f"--standalone on {shape.nodes} nodes: each trains alone"
        yield Finding(per_node.line, level, rule, message, f"--nnodes={shape.nodes}")  # type: ignore[arg-type]
    elif asked is not None and asked != shape.nodes and shape.nodes_known:
        message = f"--nnodes={asked}, but the job has {shape.nodes} node{'s' * (shape.nodes != 1)}"
        yield Finding(per_node.line, "error", "node-count", message, f"--nnodes={shape.nodes}")


def mpi(job: Job) -> Iterator[Finding]:
    """mpi-count: mpirun's number of processes against the job's tasks."""
    for launch in job.launches:
        layer = launch.layers[0]
        if layer.kind != "mpirun":
            continue
        asked = job.variables_at(launch).number(layer.option("np", "n", "c") or "", job.known)
        slots = job.shape.tasks
        if (
            asked
            and asked > slots
            and "oversubscribe" not in layer.options
            and (job.given("ntasks") or job.given("ntasks-per-node") or job.given("nodes"))
        ):
            message = f"mpirun starts {asked} processes, but the job has {slots} task{'s' * (slots != 1)}"
            yield Finding(launch.line, "error", "mpi-count", message, f"#SBATCH --ntasks={asked}")


def inherited(job: Job) -> Iterator[Finding]:
    """srun-tasks-ignored: an --ntasks-per-node of srun that the job's number of tasks overrides."""
    for launch in job.steps:
        srun = launch.layer("srun")
        if srun is None or srun.option("ntasks-per-node") is None or srun.option("ntasks") is not None:
            continue
        each = job.variables_at(launch).number(srun.option("ntasks-per-node") or "", job.known)
        given = job.given("ntasks") or job.given("ntasks-per-node")
        if each is None or not given or job.shape.tasks <= each * job.shape.nodes:
            continue
        total = each * job.shape.nodes
        message = (
            f"srun takes the job's {job.shape.tasks} tasks: --ntasks-per-node={each} alone does not make them {total}"
        )
        source = job.script.source(srun.line)
        fix = source.replace("srun ", f"srun --ntasks={total} ", 1)
        yield Finding(srun.line, "error", "srun-tasks-ignored", message, fix.strip(), Edit(srun.line, (fix,)))


def resources(job: Job) -> Iterator[Finding]:
    """gpus-per-task, cpus-per-task, visible-devices."""
    for launch in job.steps:
        shape = job.step_shape(launch)
        if shape is None or not launch.trains or shape.per_node <= 1 or not shape.total_gpus:
            continue
        srun = launch.layer("srun")
        bind = (srun and srun.option("gpu-bind")) or job.options.value("gpu-bind") or ""
        if bind == "none":
            continue
        option = job.given("gpus-per-task") or (bind and job.given("gpu-bind"))
        line = option.line if option else launch.line
        if (
            job.given("gpus-per-task")
            or (srun and srun.option("gpus-per-task"))
            or re.match("single|per_task|closest|map|mask", bind)
        ):
            message = "each task sees its own GPU alone: NCCL loses direct copies between the GPUs of a node"
            gpus = shape.gpus_per_node or 1
            yield Finding(line, "warning", "gpus-per-task", message, f"#SBATCH --gpus-per-node={gpus}")
            break
    if any(shape.total_gpus for shape in job.shapes) and job.trainings and not job.given("exclusive"):
        names = ("cpus-per-task", "cpus-per-gpu", "mincpus", "extra-node-info", "threads-per-core")
        sruns = [launch.layer("srun") for launch in job.steps]
        given = any(job.given(name) for name in names) or any(s and s.option("cpus-per-task") for s in sruns)
        if not given and len(job.components) == 1:
            line = job.line_of("gres", "gpus-per-node", "gpus", "gpus-per-task")
            message = "no --cpus-per-task: each task gets one CPU for its program and all its data loading"
            fix = "#SBATCH --cpus-per-task=8"
            yield Finding(line, "warning", "cpus-per-task", message, fix, Edit(line, (job.script.source(line), fix)))
    for command in job.script.commands:
        for word in command.words:
            if command.name == "export" and re.match(r"CUDA_VISIBLE_DEVICES=[\"']?\d", word.raw) and job.asks_for_gpus:
                message = "Slurm sets CUDA_VISIBLE_DEVICES to the GPUs it gave; a fixed list may name another job's"
                yield Finding(word.line, "warning", "visible-devices", message, "leave the line out")
