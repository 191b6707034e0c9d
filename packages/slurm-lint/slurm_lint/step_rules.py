"""Rules about srun's steps, what they take of the job, and about the variables that Slurm sets."""

import re
from collections.abc import Iterator
from difflib import get_close_matches

from slurm_lint.finding import Finding
from slurm_lint.job import Job
from slurm_lint.launch import SHELL_WORDS
from slurm_lint.options import SRUN, count, names_in
from slurm_lint.shell import REPEATED
from slurm_lint.variables import pieces

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
"""What sbatch and srun set, after SLURM_ (their manuals, 22.05 to 25.11); names that are like no other are left out."""
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
"""What leaves the index 0 out, or counts on from it."""
ONE_THREAD = names_in(
    "hostname nvidia-smi echo ls cp mv rm mkdir rsync tar cat date env printenv sleep true lscpu pwd which pip"
)


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
    """srun-cpus: the job's CPUs for each task, which its steps do not get. One finding answers for all steps."""
    asked = job.options.value("cpus-per-task")
    if (count(asked) or 1) < 2 or "SRUN_CPUS_PER_TASK" in job.code or job.options.last("exclusive"):
        return
    for launch, srun, _ in job.known_steps:
        threads = launch.trains or (launch is job.steps[-1] and launch.innermost.name not in ONE_THREAD)
        if threads and srun.option("cpus-per-task", "cpu-bind") is None:
            message = f"Slurm 22.05 to 23.02: srun ignores the job's --cpus-per-task={asked}: a task may have one CPU"
            export = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
            edit = job.script.rewritten(srun.line, r"^(\s*)srun\s", rf"\1{export}\n\g<0>")
            yield Finding(srun.line, "srun-cpus", message, f"{export}      (before srun)", edit)
            return


def side_by_side(job: Job) -> Iterator[Finding]:
    """step-takes-all: several steps in the background, each of which is given all of the job's tasks."""
    sizes = ("ntasks", "ntasks-per-node", "nodes", "nodelist", "relative", "het-group")
    steps = [(x, srun) for x, srun, _ in job.known_steps if x.command.in_background and srun.option(*sizes) is None]
    for launch, srun in steps:
        if (len(steps) > 1 or launch.command.within(*REPEATED)) and job.shape.tasks > 1:
            message = f"srun without --ntasks starts all {job.shape.tasks} tasks of the job in each of these steps"
            yield Finding(srun.line, "step-takes-all", message, "srun --ntasks=1 --exact …")
            return


def misplaced(job: Job) -> Iterator[Finding]:
    """shell-word: what srun is to start, and is no program."""
    for launch in (x for x in job.launches if x.command.name != "time"):
        if re.match(r"[A-Za-z_]\w*=", name := launch.innermost.name):
            message = f"{launch.command.name} takes {name} for the name of a program"
            yield Finding(launch.innermost.line, "shell-word", message, f"{launch.command.name} env {name} …")
    for launch in (x for x in job.steps if x.layers[0].kind == "srun"):
        program, whole = launch.innermost, launch.innermost.words[0].raw
        told = {"help", "usage", "version"} & set(program.options) or program.slurm.problems
        if program.kind == "srun" == launch.command.name and not told:
            yield Finding(program.line, "shell-word", "srun is given no program to start", "srun … PROGRAM")
        elif program.name in SHELL_WORDS:
            message = f"srun starts programs, and {program.name} is a word of the shell"
            yield Finding(program.line, "shell-word", message, f"srun bash -c '{program.name} … && …'")
        elif len(launch.layers) == 2 and re.match(r"([\"'])\w[^$]*\s[^$]*\1$", whole):
            message = f"srun takes all of {whole} for the name of one program"
            yield Finding(program.line, "shell-word", message, f"srun bash -c {whole}")


def unset(job: Job) -> Iterator[Finding]:
    """unset-variable: the number of GPUs or tasks from a variable that Slurm sets for another option."""
    given = {option.name for option in job.options.given}
    gpus = {"gres", "gpus", "gpus-per-node"} & given and "gpus-per-task" not in given
    tasks = "nodes" in given and not {"ntasks", "ntasks-per-node", "ntasks-per-gpu"} & given
    world = [word for name, word in job.script.assignments if name == "WORLD_SIZE"]
    for launch in job.launches if gpus or tasks else ():
        words = launch.command.words
        # srun sets SLURM_NTASKS in the tasks: it is empty where the batch shell expands it.
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
    """unset-variable: a name that Slurm never sets, where the script neither sets nor tests it."""
    text = "\n".join((*job.script.outer, job.script.text))
    lines = [*enumerate(job.code.split("\n"), job.script.first_line)]
    for name, line in {name: line for line, source in lines[::-1] for name in _READ.findall(source)}.items():
        meant = [right for right, wrong in _MEANT.items() if name in wrong.split()]
        near = [] if name in _SET or name.lower().replace("_", "-") in SRUN else get_close_matches(name, _SET, 1, 0.81)
        own = re.search(rf"\bSLURM_{name}:?[-=+?]|-[nvz] \S*SLURM_{name}\b|\bread .*SLURM_{name}\b", text)
        if (meant or near) and not own and not re.search("TMP|SCRATCH|LOCAL$", name):  # Some sites set those.
            new = f"SLURM_{(meant or near)[0]}"
            yield Finding(line, "unset-variable", f"Slurm sets no variable SLURM_{name}", new)
    code = re.sub(r"'[^'\n]*'", "''", job.code) if not re.search(r"(?m)^\s*(source|\.)\s", job.code) else ""
    for match in re.finditer(r"(?<!\\)\$\{?([a-z][a-z\d_]+)\b(?!:?[-+?=])", code):
        # What is never named without its $ is neither set here, nor read, nor told of.
        tested = re.search(rf"\[ [^\n]*\$\{{?{match[1]}\b", code)
        if not tested and not re.search(rf"(?<![$\w{{]){match[1]}\b|\$\{{[#!]{match[1]}", text):
            number = job.script.first_line + code.count("\n", 0, match.start())
            message = f"nothing here sets {match[1]}: it is empty unless the job is given it"
            yield Finding(number, "unset-variable", message, f"sbatch --export=ALL,{match[1]}=…")
            return


def array(job: Job) -> Iterator[Finding]:
    """array-from-zero: lines of a file by the index of an array, where that begins at 0."""
    indices, lines = job.options.value("array") or "", enumerate(job.code.split("\n"), job.script.first_line)
    found = ((number, _LINE.search(job.variables.expand(line))) for number, line in lines)
    number, match = next((pair for pair in found if pair[1]), (0, None))
    if match and _FROM_ZERO.search(indices) and not _COUNTS.search(job.code):
        then = "sed refuses line 0" if match[1] else "the job of index 0 gets none"
        message = f"--array={indices} begins at 0, and lines are counted from 1: {then}"
        fix = "$((SLURM_ARRAY_TASK_ID + 1)), or #SBATCH --array=1-…"
        yield Finding(number, "array-from-zero", message, fix, certain=bool(match[1]))
