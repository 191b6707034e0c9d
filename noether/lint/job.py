"""How many nodes, tasks and GPUs does a job ask for, and how many does one of its steps get?"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from noether.lint.launch import Launch, Layer, find_launches
from noether.lint.options import Given, Options
from noether.lint.script import Script
from noether.lint.shell import Variables
from noether.lint.values import count, gpu_count, gpus_in_gres, node_range


@dataclass(frozen=True)
class Shape:
    """Nodes, tasks and GPUs. None: the script does not say, and Slurm or the cluster decides.

    tasks: all tasks. tasks_per_node: as asked for, or where every node gets equally many.
    gpus_per_node: of each node; total_gpus: of all.
    """

    nodes: int
    tasks: int
    tasks_per_node: int | None
    gpus_per_node: int | None
    total_gpus: int | None
    nodes_known: bool = True

    @property
    def per_node(self) -> float:
        """Tasks per node, on average."""
        return self.tasks / self.nodes


def shape_of(options: Options) -> Shape:
    """Returns what the options of a component ask for; what cannot be read counts as not given."""

    def number(name: str) -> int | None:
        return count(options.value(name) or "")

    asked = node_range(options.value("nodes") or "")
    nodes = asked[0] if asked else None
    tasks, per_node = number("ntasks"), number("ntasks-per-node")
    gpus = gpu_count(options.value("gpus") or "-")
    per_gpu = number("ntasks-per-gpu")
    if tasks is None and per_gpu and gpus:
        tasks = per_gpu * gpus
    known = nodes is not None
    if nodes is None:
        nodes = ceil(tasks / per_node) if tasks and per_node else 1
        known = not (tasks and tasks > 1) or bool(per_node)
    if tasks is None:
        tasks = nodes * (per_node or 1)
    if per_node is None and tasks % nodes == 0 and known:
        per_node = tasks // nodes
    on_node = gpus_on_node(options)
    if (per_task := gpu_count(options.value("gpus-per-task") or "-")) is not None:
        gpus = per_task * tasks
    if on_node is None and gpus is not None and known and gpus % nodes == 0:
        on_node = gpus // nodes
    total = gpus if gpus is not None else None if on_node is None else on_node * nodes
    return Shape(nodes, tasks, per_node, on_node, total, known)


def gpus_on_node(options: Options) -> int | None:
    """Returns the GPUs of each node that --gpus-per-node or --gres ask for, or None."""
    if (per_node := gpu_count(options.value("gpus-per-node") or "-")) is not None:
        return per_node
    in_gres = gpus_in_gres(options.value("gres") or "")
    return in_gres or None


class Job:
    """A script, what it asks for and what it starts: all that the rules look at."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.components = script.components
        self.shapes = [shape_of(options) for options in self.components]
        self.launches, self.variables = find_launches(script.commands, script.neighbour)

    @property
    def options(self) -> Options:
        """The options of the job, or of a heterogeneous job's first component."""
        return self.components[0]

    @property
    def shape(self) -> Shape:
        """The shape of the job, or of a heterogeneous job's first component."""
        return self.shapes[0]

    @cached_property
    def trainings(self) -> list[Launch]:
        """The launches that may be one run of several ranks."""
        return [launch for launch in self.launches if launch.trains]

    @cached_property
    def steps(self) -> list[Launch]:
        """The launches under srun."""
        return [launch for launch in self.launches if launch.layer("srun")]

    @property
    def asks_for_gpus(self) -> bool:
        """Whether any component asks for a GPU."""
        return any(shape.total_gpus for shape in self.shapes)

    def line_of(self, *names: str) -> int:
        """Returns the line of the first of these options that was given, or that of the script's first line."""
        given = (self.options.last(name) for name in names)
        return next((option.line for option in given if option), self.script.first_line)

    def given(self, name: str) -> Given | None:
        """Returns the option that holds in the first component."""
        return self.options.last(name)

    def step_shape(self, launch: Launch) -> Shape | None:
        """Returns what a step starts: srun's own options before the job's. None where that cannot be known."""
        srun = launch.layer("srun")
        if srun is None or srun.slurm is None:
            return None
        group = srun.option("het-group", "pack-group")
        if group is not None and len(self.components) > 1:
            chosen = [int(part) for part in group.split(",") if part.isdigit()]
            shapes = [self.shapes[index] for index in chosen if index < len(self.shapes)]
            if len(shapes) != 1:
                return None
            return shapes[0]
        return merged(self.shape, srun, self.variables_at(launch), self.known)

    def options_of(self, launch: Launch) -> Options:
        """Returns the options of the component that a step runs in; the first one's where it names none."""
        srun = launch.layer("srun")
        group = (srun.option("het-group", "pack-group") if srun else None) or "0"
        index = int(group) if group.isdigit() else 0
        return self.components[index] if index < len(self.components) else self.options

    def variables_at(self, launch: Launch) -> Variables:
        """Returns the variables as they stand where a launch begins."""
        return Variables(dict(launch.assigned))

    @property
    def known(self) -> Mapping[str, int | None]:
        """What Slurm sets in the batch shell."""
        shape = self.shape
        asked_tasks = shape.tasks if self.given("ntasks") or self.given("ntasks-per-node") else None
        cpus = self.given("cpus-per-task")
        return {
            "SLURM_NNODES": shape.nodes, "SLURM_JOB_NUM_NODES": shape.nodes, "SLURM_NTASKS": asked_tasks,
            "SLURM_NPROCS": asked_tasks, "SLURM_NTASKS_PER_NODE": shape.tasks_per_node,
            "SLURM_GPUS_ON_NODE": shape.gpus_per_node, "SLURM_GPUS_PER_NODE": shape.gpus_per_node,
            "SLURM_GPUS": shape.total_gpus, "SLURM_CPUS_PER_TASK": count(cpus.value) if cpus else None,
        }  # fmt: skip


def merged(job: Shape, srun: Layer, variables: Variables, known: Mapping[str, int | None]) -> Shape | None:
    """Returns the shape of a step: what srun's options leave of the job's."""

    def number(name: str) -> int | None:
        text = srun.option(name)
        return None if text is None else variables.number(text, known)

    own = {name: number(name) for name in ("nodes", "ntasks", "ntasks-per-node")}
    if any(srun.option(name) is not None and value is None for name, value in own.items()):
        return None
    nodes = own["nodes"] or job.nodes
    shape = job
    if own["nodes"]:
        per_node = job.tasks_per_node or 1
        shape = replace(job, nodes=nodes, nodes_known=True)
        if own["nodes"] != job.nodes and not own["ntasks"] and job.tasks_per_node:
            shape = replace(shape, tasks=per_node * nodes)
    if own["ntasks"]:
        tasks = own["ntasks"]
        nodes = min(nodes, tasks)
        even = tasks // nodes if tasks % nodes == 0 else None
        shape = replace(shape, nodes=nodes, tasks=tasks, tasks_per_node=own["ntasks-per-node"] or even)
    elif own["ntasks-per-node"]:
        per_node = own["ntasks-per-node"]
        shape = replace(shape, tasks=per_node * nodes, tasks_per_node=per_node)
    if srun.slurm is not None:
        on_node = gpus_on_node(srun.slurm)
        per_task = gpu_count(srun.option("gpus-per-task") or "-")
        whole = gpu_count(srun.option("gpus") or "-")
        if per_task is not None:
            return replace(shape, total_gpus=per_task * shape.tasks, gpus_per_node=per_task * ceil(shape.per_node))
        if whole is not None:
            return replace(shape, total_gpus=whole, gpus_per_node=whole // shape.nodes)
        if on_node is not None:
            return replace(shape, total_gpus=on_node * shape.nodes, gpus_per_node=on_node)
    if shape.gpus_per_node is not None:
        shape = replace(shape, total_gpus=shape.gpus_per_node * shape.nodes)
    return shape
