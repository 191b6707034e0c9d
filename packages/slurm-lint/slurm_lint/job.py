"""Count the nodes, tasks and GPUs of a job and of its steps, and find out what a script reveals about its program."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from slurm_lint.launch import Launch, Layer, find_launches
from slurm_lint.options import Options, count, gpu_count, gpus_in_gres, node_range
from slurm_lint.programs import Asked
from slurm_lint.script import Script

SPAWNS = re.compile(r"\bspawn\(|start_processes\(|notebook_launcher\(|mp\.Process\(")
_DDP = re.compile(r"DistributedDataParallel|init_process_group|WORLD_SIZE|LOCAL_RANK|SLURM_PROCID")
_RANK_OPTION = re.compile(r"--(world[-_]size|rank|local[-_]rank|num[-_]processes|process[-_]id)\b")
_DRIVERS = re.compile(
    r"(?i)\bray\b|dask|parsl|scoop|submitit|spark|optuna|hpo\b|mpi4py|horovodrun|snakemake|nextflow|julia|\bssh\b|pdsh|"
    r"clush|disbatch|(?<![\w-])parallel\b|mpirun|mpiexec|ibrun|aprun|prun\b|jsrun|flux\b|srun\b|charmrun|pbsdsh|hostfile|blaunch"
)
SERVES = (
    r"vllm serve|vllm\.\S+api_server|sglang\.launch_server|ollama serve|llava\.serve\.[cm]|uvicorn|gunicorn|"
    r"tensorboard|jupyter[ -](lab|notebook)(?! [a-z])|mlflow (ui|server)|ray start .*--block|streamlit run|"
    r"text-generation-launcher"
)
_SERVER = re.compile(
    rf"{SERVES}|\bray start|spark-class|jupyter|start-master|start-worker|dask[- ](worker|scheduler)|mongod\b|server|"
    r"balancer|nvidia-smi|dcgmi|\btop\b|gpustat|monitor|\bwatch\b|^sleep\b"
)


@dataclass(frozen=True)
class JobShape:
    """The counts of nodes, tasks and GPUs. None: the count is not in the script; Slurm or the cluster decides it."""

    nodes: int
    tasks: int
    tasks_per_node: int | None  # As requested, or calculated if all nodes get equally many.
    gpus_per_node: int | None
    total_gpus: int | None
    nodes_known: bool = True

    @property
    def per_node(self) -> float:
        """The average number of tasks per node."""
        return self.tasks / self.nodes


def shape_of(options: Options) -> JobShape:
    """Return the shape that the options of a component request. Unreadable options are ignored."""
    nodes, most = node_range(options.value("nodes")) or (None, None)
    names = ("ntasks", "ntasks-per-node", "ntasks-per-gpu")
    tasks, per_node, per_gpu = (count(options.value(name)) for name in names)
    gpus, on_node = gpu_count(options.value("gpus")), gpus_on_node(options)
    if tasks is None and per_gpu:
        tasks = per_gpu * (gpus or (on_node or 0) * (nodes or 1)) or None
    known = nodes == most if nodes else not options.value("nodes") and ((tasks or 1) == 1 or bool(per_node))
    nodes = nodes or (ceil(tasks / per_node) if tasks and per_node else 1)
    tasks = tasks or nodes * (per_node or 1)
    nodes = min(nodes, tasks)  # As srun: "can't run 1 processes on 4 nodes, setting nnodes to 1"
    if per_node is None and tasks % nodes == 0 and known:
        per_node = tasks // nodes
    if (per_task := gpu_count(options.value("gpus-per-task"))) is not None and options.last(*names, "nodes"):
        gpus = per_task * tasks
    if on_node is None and gpus is not None and known and gpus % nodes == 0:
        on_node = gpus // nodes
    total = gpus if gpus is not None else None if on_node is None else on_node * nodes
    return JobShape(nodes, tasks, per_node, on_node, total, known)


def gpus_on_node(options: Options) -> int | None:
    """Return the number of GPUs per node in --gpus-per-node or --gres; None if neither option requests GPUs."""
    per_node = gpu_count(options.value("gpus-per-node"))
    return gpus_in_gres(options.value("gres") or "") or None if per_node is None else per_node


class Job:
    """A script with its requests and its launches, which all rules get as input."""

    def __init__(self, script: Script, asked: Asked) -> None:
        self.script, self.site = script, asked.site
        self.components = script.components
        self.shapes = [shape_of(options) for options in self.components]
        self.options, self.shape = self.components[0], self.shapes[0]
        """The options and shape of the job, or of the first component of a heterogeneous job."""
        self.launches, self.variables = find_launches(script, asked.programs)
        self.trainings = [launch for launch in self.launches if launch.trains and not is_server(launch)]
        """The launches whose processes may be the ranks of a run, without servers and monitors in the background."""
        self.steps = [launch for launch in self.launches if launch.layer("srun")]
        self.code = script.shell.code
        self.inner = [command for launch in self.launches for shell in launch.shells for command in shell.commands]
        """The commands of shells inside the launches."""
        self.set_names = {name for command in (*script.commands, *self.inner) for name, _ in command.assignments}
        """The variables that the script, or a shell in one of its steps, sets."""

    @property
    def has_whole_nodes(self) -> bool:
        """True if no other GPU job can use its nodes: whole nodes, 8 GPUs, or several nodes with 4 GPUs each."""
        whole = self.options.last("exclusive") is not None or self.options.value("mem") == "0"
        # NERSC's nodes have 4 GPUs. A job with --constraint=gpu gets whole nodes, except in the shared queue.
        nersc = "gpu" in (self.options.value("constraint") or "") and "shared" not in (self.options.value("qos") or "")
        shapes = (self.shape, *(shape for _, _, shape in self.known_steps))
        return whole or any((x.gpus_per_node or 0) >= (8 if x.nodes == 1 and not nersc else 4) for x in shapes)

    @property
    def known_steps(self) -> Iterator[tuple[Launch, Layer, JobShape]]:
        """Yield (launch, its srun, its shape) for each launch under srun whose shape is known."""
        for launch in self.steps:
            if (srun := launch.layer("srun")) and (shape := self.shape_at(launch)):
                yield launch, srun, shape

    def number(self, launch: Launch, layer: Layer, *names: str) -> int | None:
        """Return the value of the first of the named options that the layer has; None if it is not a known number."""
        return launch.variables.number(layer.option(*names), self.known)

    @cached_property
    def has_driver(self) -> bool:
        """True if the script names a program, other than ray, that starts programs on the other nodes."""
        return any(_DRIVERS.search(word.raw) for c in self.script.commands if c.name != "ray" for word in c.words)

    def shows_ddp(self, launch: Launch) -> bool:
        """Return whether the script proves that a launch's program is one of several PyTorch ranks."""
        started = launch.layer("per-node") or launch.layer("ranks")
        if started or launch.innermost.kind != "python":
            return started is not None
        if (source := self.script.neighbour(launch.innermost.name)) is not None:
            return _DDP.search(source) is not None and SPAWNS.search(source) is None
        named = any(_RANK_OPTION.match(word.text) for word in launch.innermost.words)
        return named or not self.set_names.isdisjoint(("WORLD_SIZE", "RANK", "LOCAL_RANK"))

    def shape_at(self, launch: Launch) -> JobShape | None:
        """Return the shape of a launch, in which srun's options override the job's; None if it cannot be known."""
        srun = launch.layer("srun")
        if srun is None:
            return self.shape
        groups = {str(index): shape for index, shape in enumerate(self.shapes)}
        job = groups.get(srun.option("het-group", "pack-group") or "0")
        words = srun.words[1 : len(srun.words) - len(srun.slurm.rest) + 1]  # srun's options, and one more word.
        of_this_job = re.fullmatch(r"\$\{?SLURM_JOB_?ID\}?", srun.option("jobid") or "$SLURM_JOB_ID")
        if job is None or not of_this_job or any("$" in word.raw and "@" in word.raw for word in words):
            return None
        names = ("nodes", "ntasks", "ntasks-per-node")
        of_step, tasks, each = (self.number(launch, srun, name) for name in names)
        of_step = (node_range(srun.option("nodes")) or (of_step,))[0]
        if any(srun.option(name) and not value for name, value in zip(names, (of_step, tasks, each), strict=True)):
            return None
        nodes = of_step or job.nodes
        each = each or (job.tasks_per_node if nodes != job.nodes else None)
        tasks = tasks or (each * nodes if each else job.tasks)
        shape = replace(job, nodes=min(nodes, tasks), tasks=tasks, nodes_known=job.nodes_known or bool(of_step))
        if (per_task := gpu_count(srun.option("gpus-per-task"))) is not None:
            return replace(shape, total_gpus=per_task * shape.tasks, gpus_per_node=per_task * ceil(shape.per_node))
        if (whole := gpu_count(srun.option("gpus"))) is not None:
            return replace(shape, total_gpus=whole, gpus_per_node=whole // shape.nodes)
        on_node = shape.gpus_per_node if (own := gpus_on_node(srun.slurm)) is None else own
        return shape if on_node is None else replace(shape, total_gpus=on_node * shape.nodes, gpus_per_node=on_node)

    @cached_property
    def known(self) -> Mapping[str, int | None]:
        """{variable that Slurm sets in the batch shell: its value, None if unknown}."""
        tasks = self.shape.tasks if self.options.last("ntasks", "ntasks-per-node") else None
        nodes = self.shape.nodes if self.shape.nodes_known else None
        return {
            "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": tasks,
            "SLURM_NPROCS": tasks, "SLURM_NTASKS_PER_NODE": count(self.options.value("ntasks-per-node")),
            "SLURM_GPUS_ON_NODE": self.shape.gpus_per_node, "SLURM_GPUS": gpu_count(self.options.value("gpus")),
            "SLURM_GPUS_PER_NODE": gpu_count(self.options.value("gpus-per-node")),
            "SLURM_CPUS_PER_TASK": count(self.options.value("cpus-per-task")),
        }  # fmt: skip


def is_server(launch: Launch) -> bool:
    """Return whether a launch is a server or a monitor in the background, which only supports the work."""
    names = (" ".join(word.text for word in layer.words[:2]).partition(" -")[0] for layer in launch.layers)
    starts = launch.command.in_background or launch.command.name.startswith("start-")
    return starts and any(map(_SERVER.search, names))
