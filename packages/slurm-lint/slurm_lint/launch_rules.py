"""Rules about tasks, steps, launchers and GPUs that do not fit each other, and about variables that Slurm sets."""

import itertools
import re
from collections.abc import Iterator
from difflib import get_close_matches

from slurm_lint.finding import Edit, Finding
from slurm_lint.job import SPAWNS, Job, JobShape
from slurm_lint.launch import SHELL_WORDS, Launch, Layer
from slurm_lint.options import SRUN, count, names_in, node_range
from slurm_lint.shell import REPEATED, unquote
from slurm_lint.variables import PER_TASK_VARIABLES, pieces
from slurm_lint.words import counted

_UNSET = r"(?<!\\)\$\{?(SLURM_(%s))\b(?!:?[-=])"
_FOR_GPUS, _FOR_TASKS, _OF_STEP = (re.compile(_UNSET % name) for name in ("GPUS(?:_PER_NODE)?", "NTASKS", "STEP_GPUS"))
_READ = re.compile(r"(?:\$\{?|\$\(\([^)]*?\b)SLURM_([A-Z]\w*?)(?:_(?:HET|PACK)_GROUP_\w+)?\b")
_SET = names_in(
    """ARRAY_JOB_ID ARRAY_TASK_COUNT ARRAY_TASK_ID ARRAY_TASK_MAX ARRAY_TASK_MIN ARRAY_TASK_STEP CLUSTER_NAME
    CPUS_ON_NODE CPUS_PER_TASK GPUS GPUS_ON_NODE GPUS_PER_NODE HET_JOB_ID HET_SIZE JOBID JOB_ACCOUNT JOB_CPUS_PER_NODE
    JOB_END_TIME JOB_GID JOB_GPUS JOB_ID JOB_NAME JOB_NODELIST JOB_NODES JOB_NUM_NODES JOB_PARTITION JOB_QOS
    JOB_RESERVATION JOB_SLUID JOB_START_TIME JOB_UID JOB_USER LOCALID MEM_PER_CPU MEM_PER_NODE NNODES NODEID
    NODELIST NPROCS NTASKS NTASKS_PER_NODE PACK_JOB_ID PROCID RESTART_COUNT STEPID STEP_GPUS STEP_ID STEP_NODELIST
    STEP_NUM_NODES STEP_NUM_TASKS STEP_TASKS_PER_NODE SUBMIT_DIR SUBMIT_HOST TASKS_PER_NODE TASK_PID"""
)
"""Variables, without SLURM_, that sbatch and srun set (manuals of 22.05 to 25.11), if scripts use similar names."""
_MEANT = {
    "CPUS_ON_NODE": "CPUS_PER_NODE NCPUS NUM_CPUS", "GPUS_ON_NODE": "NGPUS NUM_GPUS", "MEM_PER_NODE": "MEM",
    "SUBMIT_DIR": "WORKING_DIR WORKDIR JOB_WORKDIR", "NNODES": "NODES", "NTASKS": "TASKS NUM_TASKS", "PROCID": "RANK",
    "LOCALID": "LOCAL_RANK", "ARRAY_TASK_ID": "TASK_ID",
}  # fmt: skip
_FROM_ZERO = re.compile(r"(?:^|[\[,])0+(?=[-,:%\]]|$)")
_ID = r"[\"']*\$\{?SLURM_ARRAY_TASK_ID(?!_)\}?[\"']*"
_LINE = re.compile(rf"\b(sed)\s(?:[^|]*\s)?{_ID}\s*(?:p|q|!d)(?=[\s\"';]|$)"
                   rf"|\bhead\s+(?:-n\s*|-|--lines=){_ID}[^|]*\|\s*tail\b"
                   rf"|\bawk\s(?:[^|]*\bNR\s*==\s*{_ID}|-v\s*(\w+)={_ID}\s+'NR\s*==\s*\2\b)")  # fmt: skip
_COUNTS = re.compile(r"TASK_ID\S*\s*(?:-eq|-gt|-ne|==?|!=|>)\s*[\"']?0|(?<!\$)\(\([^)]*\+[+=]|\blet\b")
"""Matches text that excludes the index 0 of an array, or adds something to the index."""
ONE_THREAD = names_in(
    "hostname nvidia-smi echo ls cp mv rm mkdir rsync tar cat date env printenv sleep true lscpu pwd which pip"
)


def world_size(job: Job, launch: Launch) -> int | None:
    """Return the number of ranks of a training; None if the script does not determine it."""
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
    if launch.layer("ranks") and (not under_srun or shape.tasks == shape.nodes):  # One process starts a rank per GPU.
        return (shape.total_gpus or shape.tasks) if under_srun else (shape.gpus_per_node or 1)
    return shape.tasks if under_srun else 1


def workers(job: Job, launch: Launch, per_node: Layer, shape: JobShape) -> int | None:
    """Return the number of workers that a launcher starts on each node; None if the script does not determine it."""
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
    """one-rank-per-gpu: the number of ranks that srun or mpirun starts differs from the number of GPUs."""
    for launch in job.launches:
        kind, shape, srun = launch.innermost.kind, job.shape_at(launch), launch.layer("srun")
        starter = srun or launch.layer("mpirun")
        if kind not in ("python", "ranks") or launch.layer("per-node") or shape is None or starter is None:
            continue
        source = job.script.neighbour(launch.innermost.name) or ""
        ranks, gpus, nested = world_size(job, launch) or 1, shape.total_gpus, srun and launch.layer("mpirun")
        # If the program itself spawns the ranks, the tasks are not the ranks.
        if not gpus or nested or ranks in (gpus, 1) or SPAWNS.search(source) or shares_gpus(job, launch, ranks > gpus):
            continue
        # MASTER_ADDR alone does not prove that each task is a rank: the only task of a node may spawn the ranks.
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
            message = f"--ntasks={total.value} overrides --ntasks-per-node={each.value}: {message}"
        wanted = ("ntasks", gpus) if total else ("ntasks-per-node", gpus // shape.nodes)
        write = None if copies and not shown else job.script.with_option(*wanted)
        certain = launch.layer("ranks") is not None or bool(source)
        yield Finding((total or each or launch).line, "one-rank-per-gpu", message, edit=write, certain=certain)


def shares_gpus(job: Job, launch: Launch, several_to_a_gpu: bool) -> bool:
    """Return whether a launch deliberately lets ranks share GPUs, or leaves GPUs to other steps."""
    srun = launch.layer("srun")
    given = {option.name: option.value for option in job.options.given} | dict(srun.options if srun else {})
    sharing = {"gpu-bind", "ntasks-per-gpu", "overcommit", "gpus-per-task"} & set(given)
    beside = any(other.command.in_background for other in (*job.steps, *job.trainings)) and len(job.launches) > 1
    flags = several_to_a_gpu and "sharing" in given.get("gres-flags", "")
    return bool(sharing) or flags or beside or "MPS" in job.code


def reach(job: Job) -> Iterator[Finding]:
    """missing-srun: a program that should run on several nodes runs only on the first node."""
    nodes = job.shape.nodes
    if nodes < 2 or not job.shape.nodes_known or len(job.components) > 1 or job.has_driver or job.steps:
        return
    own = [x for x in job.launches if x.innermost.kind == "other" and x.innermost.words[0].raw.startswith("./")]
    for launch in job.trainings or own:
        per_node, program = launch.layer("per-node"), re.escape(launch.command.words[0].raw)
        starts = "srun " if launch.runs_script else "srun --kill-on-bad-exit=1 "
        edit = job.script.rewritten(launch.line, rf"(?<!\S)(?={program})", starts)
        apart = launch.command.in_background or launch.command.within("function_definition")
        # On CPUs, a program with the number of tasks among its words starts the tasks itself.
        told = job.shape.tasks > nodes and str(job.shape.tasks) in launch.command.texts
        driver = told and not job.shape.total_gpus and not job.shows_ddp(launch)
        if per_node is None and launch is (job.trainings or own)[-1] and not driver:
            message = f"without srun this runs once, on the first of {nodes} nodes, unless it starts other ranks itself"
            # Offer no edit for a program that may start the other ranks itself, because it must run only once.
            edit = edit if job.shows_ddp(launch) else None
            yield Finding(launch.line, "missing-srun", message, "srun, where each task is a rank", edit, certain=False)
        elif per_node and per_node.name != "deepspeed" and not apart:
            waits = per_node.name != "accelerate" and (job.number(launch, per_node, "nnodes") or 1) > 1
            then = " and waits for the others" if waits else ": the others stay idle"
            message = f"{per_node.name} without srun runs only on the first of {nodes} nodes{then}"
            yield Finding(launch.line, "missing-srun", message, edit=edit, certain=waits)


def mpi(job: Job) -> Iterator[Finding]:
    """mpi-count: mpirun starts more processes than the job has tasks."""
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
    """visible-devices: CUDA_VISIBLE_DEVICES lists GPUs that the job does not have, or leaves GPUs idle."""
    gpus = job.shape.gpus_per_node or 0
    alone = len(job.launches) == 1 == job.shape.nodes
    given = [word for launch in job.launches for _, word in launch.command.assignments]  # As in A=1 program.
    for name, word in job.script.assignments if gpus and len(job.components) == 1 else ():
        numbers = name == "CUDA_VISIBLE_DEVICES" and re.fullmatch(r"\d+(,\d+)*", word.text)
        chosen = set(map(int, word.text.split(","))) if numbers else set()
        if max(chosen, default=0) >= gpus:
            message = f"each node has {counted(gpus, 'GPU')}, numbered from 0, and Slurm already sets the variable"
            yield Finding(word.line, "visible-devices", message, "leave CUDA_VISIBLE_DEVICES to Slurm")
        elif 0 < len(chosen) < gpus and alone and (word in given or name in job.script.exported):
            message = f"{gpus - len(chosen)} of the job's {counted(gpus, 'GPU')} stay idle"
            yield Finding(word.line, "visible-devices", message, f"request {counted(len(chosen), 'GPU')}, or use all")


def launchers(job: Job) -> Iterator[Finding]:
    """deprecated-launcher, launcher-in-launcher, and all rules about torchrun and similar launchers."""
    for launch in job.launches:
        chain = [layer for layer in launch.layers if layer.kind in ("srun", "mpirun", "per-node")]
        per_node, shape = launch.layer("per-node"), job.shape_at(launch)
        if per_node and per_node.name == "torch.distributed.launch":
            fix = "torchrun …      (without --use_env: the program reads LOCAL_RANK from its environment)"
            yield Finding(per_node.line, "deprecated-launcher", "torch.distributed.launch is deprecated", fix)
        if shape is None:
            continue
        nested = [pair for pair in itertools.pairwise(chain) if (pair[0].kind, pair[1].kind) != ("srun", "per-node")]
        for outer, inner in nested:
            number = job.number(launch, outer, "np", "n") if outer.kind == "mpirun" else shape.tasks
            inside = outer.kind == "per-node" and inner.kind == "srun"
            if inside or (number and number > shape.nodes and inner.kind != "srun"):
                each = f"each {'worker' if inside else f'of the {number} processes'} of {outer.name}"
                message, fix = f"{each} runs {inner.name}: a full run", f"{outer.name} python …, or {inner.name} alone"
                yield Finding(inner.line, "launcher-in-launcher", message, fix)
        if per_node and not nested:
            yield from _per_node(job, launch, per_node, shape)
            yield from _workers(job, launch, per_node, shape)
            if per_node.name == "deepspeed":
                yield from _deepspeed(job, launch, per_node, shape)


def _per_node(job: Job, launch: Launch, per_node: Layer, shape: JobShape) -> Iterator[Finding]:
    srun, torch = launch.layer("srun"), per_node.name not in ("accelerate", "deepspeed")
    processes = workers(job, launch, per_node, shape) if not torch or per_node.option("nproc_per_node") else None
    agents = job.number(launch, per_node, "nnodes", "num_machines")
    own = any(name in word.raw for name in PER_TASK_VARIABLES for word in (*launch.command.words, *per_node.words))
    several = shape.tasks > shape.nodes and (shape.nodes == 1 or per_node.name != "deepspeed")
    if srun and several and agents != shape.tasks and not (own and agents in (None, 1)):
        started = f"{shape.tasks * processes} processes" if processes else f"{shape.tasks} launchers"
        on = counted(shape.total_gpus, "GPU") if shape.total_gpus else counted(shape.nodes, "node")
        message = f"{per_node.name} starts a node's workers itself, but srun runs it {shape.per_node:g} times a node: "
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
        rule, message = "separate-runs", f"{what}: each of the {shape.nodes} nodes trains as if it were alone"
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
    # An explicit 1 may be intended: one process may spread a model over all GPUs of a node.
    alone = processes == 1 and "$" not in (per_node.option(option) or "$") and shape.nodes == 1
    if processes < gpus and (alone or shares_gpus(job, launch, False)):
        return
    machines = job.number(launch, per_node, "num_machines") or 1 if name == "accelerate" else 1
    default = "" if per_node.option(option) else f" (no --{option})"
    message = f"{counted(processes, 'worker')} per node{default} on {counted(gpus, 'GPU')} per node"
    message += "" if processes > gpus else ": the other GPUs stay idle"
    edit, fix = _with_value(job, launch, option, gpus * machines), f"--{option}={gpus * machines}"
    if "multi_gpu" in per_node.options and gpus * machines == 1:  # The flag is refused for one process.
        edit, fix = None, f"#SBATCH --gpus-per-node={processes}"
    yield Finding(launch.line, "processes-per-node", message, fix, edit, certain=processes > gpus)


def _with_value(job: Job, launch: Launch, option: str, value: int) -> Edit | None:
    typed = rf"(--{option.replace('_', '[-_]')}[= ])\d+\b"
    return job.script.rewritten(launch.line, typed, rf"\g<1>{value}", launch.command.last_line)


def _deepspeed(job: Job, launch: Launch, deepspeed: Layer, shape: JobShape) -> Iterator[Finding]:
    """deepspeed-nodes: deepspeed uses ssh to reach other nodes, and reaches only the nodes in its hostfile."""
    if {"no_ssh", "node_rank"} & set(deepspeed.options) or shape.nodes < 2 or not shape.nodes_known:
        return
    message = f"without --hostfile deepspeed uses only this node: the other {shape.nodes - 1} stay idle"
    fix, under = "--hostfile=FILE, a line `HOST slots=GPUS` for each node", launch.layer("srun") is not None
    if under:
        message = f"srun runs deepspeed {shape.tasks} times, and each starts a separate run"
        fix = "--no_ssh --node_rank=$SLURM_NODEID …, or srun torchrun"
    if under or "hostfile" not in job.code.lower():
        yield Finding(deepspeed.line, "deepspeed-nodes", message, fix)


def step_nodes(job: Job) -> Iterator[Finding]:
    """idle-nodes: a step that leaves nodes of the job idle."""
    has = job.shape.nodes
    for launch, srun, shape in job.known_steps if len(job.components) == 1 and job.shape.nodes_known else ():
        others = (x for x in job.launches if x is not launch and {layer.kind for layer in x.layers} != {"other"})
        alone = not any(others) and not launch.command.within(*REPEATED) and "hetjob" not in job.code
        if srun.option("nodes") and shape.nodes < has and alone:
            message = f"the only step has {shape.nodes} of the job's {has} nodes: the others stay idle"
            yield Finding(srun.line, "idle-nodes", message, f"#SBATCH --nodes={shape.nodes}, or srun without --nodes")


def step_cpus(job: Job) -> Iterator[Finding]:
    """srun-cpus: steps do not get the job's CPUs per task. One finding covers all steps."""
    asked = job.options.value("cpus-per-task")
    if (count(asked) or 1) < 2 or "SRUN_CPUS_PER_TASK" in job.code or job.options.last("exclusive"):
        return
    for launch, srun, _ in job.known_steps:
        threads = launch.trains or (launch is job.steps[-1] and launch.innermost.name not in ONE_THREAD)
        if threads and srun.option("cpus-per-task", "cpu-bind") is None:
            message = f"in Slurm 22.05 to 23.02, srun ignores the job's --cpus-per-task={asked}: a task may get one CPU"
            export = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
            edit = job.script.rewritten(srun.line, r"^(\s*)srun\s", rf"\1{export}\n\g<0>")
            yield Finding(srun.line, "srun-cpus", message, f"{export}      (before srun)", edit)
            return


def side_by_side(job: Job) -> Iterator[Finding]:
    """step-takes-all: each of several steps in the background gets all tasks of the job."""
    sizes = ("ntasks", "ntasks-per-node", "nodes", "nodelist", "relative", "het-group")
    steps = [(x, srun) for x, srun, _ in job.known_steps if x.command.in_background and srun.option(*sizes) is None]
    for launch, srun in steps:
        if (len(steps) > 1 or launch.command.within(*REPEATED)) and job.shape.tasks > 1:
            message = f"srun without --ntasks starts all {job.shape.tasks} tasks of the job in each of these steps"
            yield Finding(srun.line, "step-takes-all", message, "srun --ntasks=1 --exact …")
            return


def misplaced(job: Job) -> Iterator[Finding]:
    """shell-word: srun is told to run something that is not a program."""
    for launch in (x for x in job.launches if x.command.name != "time"):
        if re.match(r"[A-Za-z_]\w*=", name := launch.innermost.name):
            message = f"{launch.command.name} runs {name} as if it were a program"
            yield Finding(launch.innermost.line, "shell-word", message, f"{launch.command.name} env {name} …")
    for launch in (x for x in job.steps if x.layers[0].kind == "srun"):
        program, whole = launch.innermost, launch.innermost.words[0].raw
        told = {"help", "usage", "version"} & set(program.options) or program.slurm.problems
        if program.kind == "srun" == launch.command.name and not told:
            yield Finding(program.line, "shell-word", "srun is given no program to start", "srun … PROGRAM")
        elif program.name in SHELL_WORDS:
            message = f"srun starts only programs, and {program.name} is a command of the shell"
            yield Finding(program.line, "shell-word", message, f"srun bash -c '{program.name} … && …'")
        elif len(launch.layers) == 2 and re.match(r"([\"'])\w[^$]*\s[^$]*\1$", whole):
            message = f"srun reads all of {whole} as the name of one program"
            yield Finding(program.line, "shell-word", message, f"srun bash -c {whole}")


def unset(job: Job) -> Iterator[Finding]:
    """unset-variable: a number of GPUs or tasks is read from a variable that Slurm does not set in this job."""
    given = {option.name for option in job.options.given}
    gpus = {"gres", "gpus", "gpus-per-node"} & given and "gpus-per-task" not in given
    tasks = "nodes" in given and not {"ntasks", "ntasks-per-node", "ntasks-per-gpu"} & given
    world = [word for name, word in job.script.assignments if name == "WORLD_SIZE"]
    for launch in job.launches if gpus or tasks else ():
        words = launch.command.words
        # srun sets SLURM_NTASKS only in the tasks, so it is empty if the batch shell expands it.
        now = " ".join(pieces(word.raw, quoted=False) for word in (*words, *world)) if tasks else ""
        text = " ".join(launch.variables.expand(word.raw) for word in words) if gpus else ""
        match = _FOR_GPUS.search(text) or _FOR_TASKS.search(now) or (not launch.layer("srun") and _OF_STEP.search(text))
        option = match[2].lower().replace("_", "-") if match else ""
        if match and option not in given and match[1] not in job.set_names:
            new = {"ntasks": "SLURM_NNODES", "step-gpus": "SLURM_JOB_GPUS"}.get(option, "SLURM_GPUS_ON_NODE")
            edit = job.script.rewritten(launch.line, rf"\b{match[1]}\b", new, launch.command.last_line)
            without = "srun" if option == "step-gpus" else f"--{option}"
            line = edit.line if edit else launch.line
            yield Finding(line, "unset-variable", f"{match[1]} is empty without {without}", new, edit)


def never_set(job: Job) -> Iterator[Finding]:
    """unset-variable: the script reads a variable that Slurm never sets, and neither sets nor tests it."""
    text = "\n".join((*job.script.outer, job.script.text))
    lines = [*enumerate(job.code.split("\n"), job.script.first_line)]
    for name, line in {name: line for line, source in lines[::-1] for name in _READ.findall(source)}.items():
        meant = [right for right, wrong in _MEANT.items() if name in wrong.split()]
        near = [] if name in _SET or name.lower().replace("_", "-") in SRUN else get_close_matches(name, _SET, 1, 0.81)
        own = re.search(rf"\bSLURM_{name}:?[-=+?]|-[nvz] \S*SLURM_{name}\b|\bread .*SLURM_{name}\b", text)
        if (meant or near) and not own and not re.search("TMP|SCRATCH|LOCAL$", name):  # Sites may set such names.
            new = f"SLURM_{(meant or near)[0]}"
            yield Finding(line, "unset-variable", f"Slurm never sets SLURM_{name}", new)
    code = re.sub(r"'[^'\n]*'", "''", job.code) if not re.search(r"(?m)^\s*(source|\.)\s", job.code) else ""
    for match in re.finditer(r"(?<!\\)\$\{?([a-z][a-z\d_]+)\b(?!:?[-+?=])", code):
        # The script does not set or mention a variable whose name never occurs without a $.
        tested = re.search(rf"\[ [^\n]*\$\{{?{match[1]}\b", code)
        if not tested and not re.search(rf"(?<![$\w{{]){match[1]}\b|\$\{{[#!]{match[1]}", text):
            number = job.script.first_line + code.count("\n", 0, match.start())
            message = f"nothing here sets {match[1]}: it is empty unless it is passed to the job"
            yield Finding(number, "unset-variable", message, f"sbatch --export=ALL,{match[1]}=…")
            return


def array(job: Job) -> Iterator[Finding]:
    """array-from-zero: an array's index, which begins at 0, selects a line of a file, whose lines begin at 1."""
    indices, lines = job.options.value("array") or "", enumerate(job.code.split("\n"), job.script.first_line)
    found = ((number, _LINE.search(job.variables.expand(line))) for number, line in lines)
    number, match = next((pair for pair in found if pair[1]), (0, None))
    if match and _FROM_ZERO.search(indices) and not _COUNTS.search(job.code):
        then = "sed refuses line 0" if match[1] else "the job with index 0 gets no line"
        message = f"--array={indices} begins at 0, but lines are counted from 1: {then}"
        fix = "$((SLURM_ARRAY_TASK_ID + 1)), or #SBATCH --array=1-…"
        yield Finding(number, "array-from-zero", message, fix, certain=bool(match[1]))
