"""Does the training reach the whole job? The rules about nodes left idle and programs that srun does not start."""

import re
from collections.abc import Iterator

from noether.lint.finding import Edit, Finding
from noether.lint.job import Job
from noether.lint.launch import Launch
from noether.lint.ranks import SPAWNS, SPREADS

_PREPARING = {"hostname", "nvidia-smi", "echo", "printf", "date", "true", "sleep", "env", "printenv", "id", "ls",
              "mkdir", "cp", "mv", "rm", "ln", "rsync", "tar", "unzip", "touch", "chmod", "python -c"}  # fmt: skip
"""Programs that a step runs before the training: files to the nodes, a word on what they are."""
_PYTHON = re.compile(r"(?:\S*/)?\bpython[\d.]*\s+(?:-u\s+)?(?=[^\s-])")
_TRAINING = re.compile(r"train|tune|main\.py$|(^|/)run_")
"""Names that people give to the program that trains."""


def idle_nodes(job: Job) -> Iterator[Finding]:
    """idle-nodes: srun --nodes=1 in a job of two nodes, and nothing on the other."""
    steps = [(launch, job.step_shape(launch)) for launch in job.steps if launch.trains]
    if len(job.components) > 1 or len(steps) < len(job.trainings):
        return
    used = 0
    for launch, shape in steps:
        srun = launch.layer("srun")
        chosen = srun is None or any(srun.option(name) for name in ("nodelist", "relative", "exclude"))
        if shape is None or chosen or launch.command.depth:
            return  # Nodes that are chosen one by one are chosen with something in mind, and a loop may fill them all.
        # Steps in the background run side by side.
        used = used + shape.nodes if launch.command.after == "&" else max(used, shape.nodes)
    if not steps or used >= job.shape.nodes:
        return
    launch = steps[-1][0]
    srun = launch.layer("srun")
    if srun is None or srun.option("nodes") is None:
        return
    source = job.script.source(srun.line)
    fix = re.sub(r"\s(?:-N\s*|--nodes[= ])\d+(?=\s)", "", source, count=1)
    message = f"the step has {used} of the job's {job.shape.nodes} nodes; the others stay idle"
    edit = Edit(srun.line, (fix,)) if fix != source else None
    fix = f"{fix.strip()}      (or #SBATCH --nodes={used})"
    yield Finding(srun.line, "warning", "idle-nodes", message, fix, edit)


def bare(job: Job) -> Iterator[Finding]:
    """missing-srun: programs that run on the first node alone."""
    if any(launch.layer("mpirun") for launch in job.launches) or any(_may_be_the_training(step) for step in job.steps):
        return
    certain = not any(step.trains for step in job.steps)
    for launch in job.trainings:
        kind, last = launch.innermost.kind, launch.innermost
        if launch.layer("srun") or not (certain or kind == "noether" or _TRAINING.search(last.name)):
            continue
        shape = job.shape
        several = shape.tasks > 1
        per_node = launch.layer("per-node")
        if per_node is not None:
            if shape.nodes < 2 or per_node.name == "deepspeed":
                continue
            what = f"{per_node.name} without srun runs on the first of {shape.nodes} nodes only"
        elif kind == "submitit" or not several:
            if kind == "python" and shape.total_gpus and shape.total_gpus > 1 and launch is job.trainings[-1]:
                source = job.script.neighbour(last.name) or ""
                if not (SPAWNS.search(source) or SPREADS.search(source)):
                    message = f"one process on {shape.total_gpus} GPUs: unless it starts workers itself, GPUs stay idle"
                    start = f"torchrun --standalone --nproc-per-node={shape.total_gpus} "
                    line = job.script.source(last.line).strip()
                    fix = _PYTHON.sub(start, line, count=1) if _PYTHON.search(line) else start + last.name
                    yield Finding(launch.line, "warning", "idle-gpus", message, fix)
            continue
        else:
            if launch is not job.trainings[-1]:
                continue  # Steps before the last prepare something, as a rule.
            source = job.script.neighbour(last.name) or ""
            if shape.nodes == 1 and SPAWNS.search(source):
                continue
            if not shape.total_gpus and not job.given("ntasks-per-node") and shape.nodes == 1:
                continue  # --ntasks=8 for one program of eight threads: a habit that works.
            what = f"without srun this runs once, on the first node, not as {shape.tasks} tasks"
        line = job.script.source(launch.line)
        fix = re.sub(r"^(\s*)", r"\1srun ", line, count=1)
        plain = line.lstrip().startswith(launch.command.words[0].raw) and launch.command.before in ("", "\n")
        yield Finding(
            launch.line,
            "error" if certain else "warning",
            "missing-srun",
            what,
            fix.strip(),
            Edit(launch.line, (fix,)) if plain else None,
        )


def _may_be_the_training(step: Launch) -> bool:
    """Says whether a step is more than a preparation: not hostname, say, and not python preprocess.py."""
    programs = [layer for layer in step.layers if layer.kind not in ("srun", "shell", "container")]
    return not programs or not all(
        program.name in _PREPARING or (program.kind == "python" and not _TRAINING.search(program.name))
        for program in programs
    )
