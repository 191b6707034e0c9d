"""Rules about srun's steps: what a step takes of the job, and options that it does not read."""

import re
from collections.abc import Iterator

from slurm_lint.finding import Finding
from slurm_lint.job import Job
from slurm_lint.launch import SHELL_WORDS
from slurm_lint.options import count, names_in
from slurm_lint.shell import REPEATED

ONE_THREAD = names_in("hostname nvidia-smi echo ls cp mv rm mkdir rsync tar cat date env printenv sleep true lscpu")


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
        if threads and srun.option("cpus-per-task", "exact", "exclusive", "cpu-bind", "overlap") is None:
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
        if program.name in SHELL_WORDS:
            message = f"srun starts programs, and {program.name} is a word of the shell"
            yield Finding(program.line, "shell-word", message, f"srun bash -c '{program.name} … && …'")
        elif len(launch.layers) == 2 and re.match(r"([\"'])\w[^$]*\s[^$]*\1$", whole):
            message = f"srun takes all of {whole} for the name of one program"
            yield Finding(program.line, "shell-word", message, f"srun bash -c {whole}")
