"""Describe a job on the login node: its runs, its options, and the plan of its ranks. Does not import torch."""

import getpass
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from noether.checkpoints.named import named_weights
from noether.checkpoints.resume import ResumeTarget, find_target
from noether.checkpoints.run_settings import rebase_on_run
from noether.common.errors import RequestError
from noether.common.numbers import counted
from noether.common.processes import JOB_STOP_SIGNAL
from noether.config.compose import load_config, load_sweep
from noether.config.layers import SettingsLayer
from noether.config.schema import RunConfig
from noether.config.slurm import FIXED_OPTIONS, SlurmConfig
from noether.config.sweep import varied
from noether.launch.batches import BatchPlan
from noether.launch.detect.placement import Placement
from noether.launch.detect.process_facts import NOTHING_KNOWN
from noether.launch.detect.slurm.node_list import parse_nodelist
from noether.launch.detect.slurm.queue import RUN_COMMENT
from noether.launch.plan import place, share_batch
from noether.launch.script import read_words
from noether.runs.folder import named_run, new_run_id

_OWN_WORDS = re.compile(r"[+~]*(run_id|resume|output_path)(=|$)")
"""Matches the settings that the job script sets, so that a requeued job continues the same run."""


@dataclass(frozen=True)
class JobRun:
    """One run of a job: its folder, and the overrides in which it differs from the other runs."""

    folder: Path
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class TrainingJob:
    """A job for Slurm: one run, an array with the runs of a sweep, or a user's script (then `runs` is empty).

    name: the run's id; for an array, the common beginning of the ids of its runs.
    shared: the overrides that all runs have in common, in the order given. `runs` contains the other overrides.
    hp: the path of the settings file, as typed.
    folders: the folders of the runs and of their data, which the job's container must mount.
    configs: the settings of each run. script: the words of `noether run` from the script on.
    placement, batch: where the ranks of a run are, and how they divide the batch; equal for all runs of an array.
    """

    name: str
    shared: tuple[str, ...]
    folders: tuple[Path, ...]
    slurm: SlurmConfig
    placement: Placement
    hp: str | None = None
    runs: tuple[JobRun, ...] = ()
    configs: tuple[RunConfig, ...] = ()
    output_path: Path = Path()
    batch: BatchPlan | None = None
    script: tuple[str, ...] = ()

    @property
    def is_array(self) -> bool:
        """True if the job is an array, whose elements are the runs of a sweep or all run the same script."""
        return len(self.runs) > 1 or "array" in self.slurm.slurm_additional_parameters

    @property
    def folder(self) -> Path:
        """The folder for the job's output that `submit` must create: the path up to Slurm's first placeholder."""
        folder = self.slurm.folder
        if "%u" in folder:  # Only then look up the user's name, which may not exist in a container.
            folder = folder.replace("%u", getpass.getuser())
        return Path(*takewhile(lambda part: "%" not in part, Path(folder).expanduser().parts))

    @property
    def output(self) -> str:
        """The path of the job's output file, with Slurm's placeholder %j, or for an array %A_%a."""
        return str(self.folder / ("%A_%a.out" if self.is_array else "%j.out"))


def describe_job(overrides: Sequence[str], hp: str | None, *, multirun: bool = False) -> TrainingJob:
    """Compose and check every run of a job, as `train` would on the job's nodes.

    With `multirun`, an override can have several values, as in Hydra, for several runs. `hp` is a YAML file.

    RequestError: a setting is wrong; the batch, devices and tasks do not fit together; a run already exists or cannot
    be resumed; or the runs of one array need different resources.
    """
    if multirun:
        expanded, configs = load_sweep(overrides, hp, "submit")
    else:
        words, settings = rebase_on_run(overrides, hp, submits=True)
        expanded, configs = [words], [load_config(words, settings)]
        hp = str(settings.file) if isinstance(settings, SettingsLayer) else settings
    _refuse_nodes_of_no_scheduler(configs[0])
    if array := configs[0].slurm.slurm_additional_parameters.get("array"):
        raise RequestError("array-of-one-training", "every element of this array would be the same run",
                           seen=f"slurm.slurm_additional_parameters.array={array}",
                           expected="a sweep, or a script that reads SLURM_ARRAY_TASK_ID (noether submit run)",
                           fix=FIXED_OPTIONS["array"])  # fmt: skip
    base = configs[0].run_id or new_run_id()
    if len({config.run_id for config in configs}) > 1:
        raise RequestError("array-run-ids", "the runs of a job array share one run_id, to which an index is added",
                           seen="run_id=" + ",".join(str(config.run_id) for config in configs),
                           expected=f"a single run_id; the runs are {base}-0, {base}-1, …",
                           fix=f"run_id={base}")  # fmt: skip
    plans = {_resources(config): plan_job(config) for config in configs}
    if len(plans) > 1:
        raise RequestError("array-resources-differ", "the runs of one job array ask Slurm for different resources",
                           seen="a sweep over slurm.…, devices, accelerator or a batch size",
                           expected="the same nodes, tasks and devices for each run",
                           fix="submit these runs one by one")  # fmt: skip
    ((placement, batch),) = plans.values()
    alike = [text for text, *others in zip(*expanded, strict=True) if others.count(text) == len(others)]
    shared = tuple(text for text in alike if not _OWN_WORDS.match(text))
    ids = [base if len(configs) == 1 else f"{base}-{index}" for index in range(len(configs))]
    targets = [_target(config, run_id) for config, run_id in zip(configs, ids, strict=True)]
    runs = [JobRun(target.folder.path, tuple(own)) for target, own in zip(targets, varied(expanded), strict=True)]
    if len({run.folder.parent for run in runs}) > 1:
        raise RequestError("array-folders-differ", "the runs of one job array write to different folders",
                           seen="a sweep over output_path")  # fmt: skip
    # Read each file of initial weights only once, because it can be gigabytes large.
    begins = (config for config, target in zip(configs, targets, strict=True) if target.checkpoint is None)
    for weights in dict.fromkeys(config.initial_weights for config in begins if config.initial_weights is not None):
        named_weights(weights)
    first, name = runs[0].folder, runs[0].folder.name if len(runs) == 1 else base
    roots = (config.dataset_root for config in configs if config.dataset_root)
    folders = dict.fromkeys([first.parent, *roots, *([Path(hp).parent] if hp else [])])
    return TrainingJob(
        name, shared, tuple(folders), configs[0].slurm, placement, hp, tuple(runs), tuple(configs), first.parent, batch
    )


def describe_script(words: Sequence[str], module: str | None) -> TrainingJob:
    """Check a script or module and the settings of its launch, as `noether run` would on the job's nodes.

    RequestError: there is no such script, a setting is not one of a launch, or devices and tasks do not fit together.
    """
    overrides, script = read_words(words, module)
    config = load_config(overrides, None)
    _refuse_nodes_of_no_scheduler(config)
    placement, _ = plan_job(config, trains=False)
    file = Path(script.name).resolve()
    name, folders = re.sub(r"[^\w.-]", "_", file.name), () if script.is_module else (file.parent,)
    typed = ("-m",) * script.is_module + (script.name, *script.words)
    return TrainingJob(name, tuple(overrides), folders, config.slurm, placement, script=typed)


def _refuse_nodes_of_no_scheduler(config: RunConfig) -> None:
    for name in ("nodes", "node_rank", "master_addr"):
        if (value := getattr(config, name)) is not None:
            raise RequestError("nodes-of-no-scheduler", f"{name} is for machines without a scheduler",
                               seen=f"{name}={value}", expected="slurm.nodes, because Slurm chooses the machines",
                               fix=f"slurm.nodes={value}" if name == "nodes" else f"leave {name} out")  # fmt: skip


def plan_job(config: RunConfig, *, trains: bool = True) -> tuple[Placement, BatchPlan | None]:
    """Plan a run as rank 0 would on the job's nodes, with placeholders for ids and unknown node names.

    With `trains=True`, also divide the batch over the ranks. RequestError: `train` or `run` would raise it on a node.
    """
    slurm, gpus = config.slurm, config.slurm.gpu_count
    if gpus is None and config.accelerator == "gpu":
        gpus = slurm.ntasks_per_node  # A cluster that allocates whole nodes needs no request for GPUs.
    mask = ",".join(map(str, range(gpus or 0)))
    placement = place(config, stand_in_environment(slurm), mask, NOTHING_KNOWN)
    return placement, share_batch(config, placement) if trains else None


def stand_in_environment(slurm: SlurmConfig) -> dict[str, str]:
    """Return the variables that srun would set for rank 0 of the job.

    RequestError: the node list cannot be read, or names more nodes than are requested.
    """
    named = parse_nodelist(slurm.nodelist, "slurm.nodelist") if slurm.nodelist else ()
    if len(named) > slurm.nodes:
        raise RequestError("nodelist-longer-than-nodes", "slurm.nodelist names more nodes than slurm.nodes",
                           seen=f"slurm.nodelist={slurm.nodelist} ({len(named)} nodes), slurm.nodes={slurm.nodes}",
                           expected="slurm.nodes must be at least the count of listed nodes",
                           fix=f"slurm.nodes={len(named)}")  # fmt: skip
    unnamed = [f"node[{len(named) + 1}-{slurm.nodes}]"] if len(named) < slurm.nodes else []
    nodes = ",".join([*([slurm.nodelist] if slurm.nodelist else []), *unnamed])
    tasks = str(slurm.nodes * slurm.ntasks_per_node)
    counts = f"{slurm.ntasks_per_node}(x{slurm.nodes})"
    of_job = {"JOB_ID": "1", "JOB_NODELIST": nodes, "NTASKS": tasks, "TASKS_PER_NODE": counts}
    of_step = {"STEP_ID": "0", "STEP_NODELIST": nodes, "STEP_NUM_TASKS": tasks, "STEP_TASKS_PER_NODE": counts}
    of_task = dict.fromkeys(("PROCID", "LOCALID", "NODEID"), "0")
    return {f"SLURM_{name}": value for name, value in {**of_job, **of_step, **of_task}.items()}


def job_options(job: TrainingJob) -> dict[str, str | int | bool]:
    """Return {option of sbatch: value} in the order of the script; True is for an option without a value."""
    slurm = job.slurm
    memory = slurm.mem_gb
    mebibytes = max(1, int((memory or 0) * 1024))  # Not 0, because --mem=0 requests all memory of a node.
    asked: dict[str, str | int | bool | None] = {
        "job-name": job.name,
        "partition": slurm.slurm_partition,
        "account": slurm.slurm_account,
        "qos": slurm.slurm_qos,
        "constraint": slurm.slurm_constraint,
        "nodes": slurm.nodes,
        "nodelist": slurm.nodelist,
        "exclude": slurm.slurm_exclude,
        "ntasks-per-node": slurm.ntasks_per_node,
        "gpus-per-node": slurm.gpus_per_node or None,
        "cpus-per-task": slurm.cpus_per_task,
        "mem": None if memory is None else f"{int(memory)}G" if memory == int(memory) else f"{mebibytes}M",
        "time": slurm.timeout_min,
        # Slurm sends this signal to the ranks, not to the script. The ranks save and exit with 75.
        "signal": f"{JOB_STOP_SIGNAL}@{slurm.slurm_signal_delay_s}",
        # Otherwise, a requeued job would truncate its output file.
        "open-mode": "append",
        "requeue": True,
    }
    if job.runs:  # By this comment, `noether status` finds a waiting job, even one that was submitted by hand.
        asked["comment"] = f"{RUN_COMMENT}{job.output_path / job.name}" + ("-%a" if job.is_array else "")
    additional = {name.replace("_", "-"): value for name, value in slurm.slurm_additional_parameters.items()}
    if job.is_array:
        at_once = f"%{slurm.slurm_array_parallelism}" if slurm.slurm_array_parallelism else ""
        asked["array"] = f"{additional.pop('array', f'0-{len(job.runs) - 1}')}{at_once}"
    return {name: value for name, value in {**asked, **additional}.items() if value not in (None, False)}


def describe_plan(job: TrainingJob) -> list[str]:
    """Describe the job in lines to print: its ranks, its batch and its runs."""
    slurm, placement = job.slurm, job.placement
    shape = f"{counted(slurm.nodes, 'node')} × {counted(slurm.ntasks_per_node, 'task')}"
    ranks = f"{counted(placement.world_size, 'rank')} on {placement.workers[0].device.kind}"
    limit = f"{slurm.timeout_min} min at most" if slurm.timeout_min else "the cluster's time limit"
    each = f"   for each of {job_options(job)['array']}" if job.is_array else ""
    lines = [f"job    {shape}: {ranks}, {limit}"]
    lines += [f"batch  {job.batch.describe(placement.world_size)}"] if job.batch else []
    lines += [f"script {shlex.join(job.script)}{each}"] if job.script else []
    lines += [f"run    {run.folder}{'   ' + ' '.join(run.overrides) if run.overrides else ''}" for run in job.runs]
    lines += [f"warning: {warning}" for warning in placement.warnings]
    return lines


def _resources(config: RunConfig) -> tuple[object, ...]:
    slurm, trainer = config.slurm.model_dump_json(), config.trainer
    return config.accelerator, config.devices, slurm, trainer.effective_batch_size, trainer.max_batch_size


def _target(config: RunConfig, run_id: str) -> ResumeTarget:
    """Return the target of a run: its folder, which all attempts of the job use."""
    resume = config.resume
    target = find_target(config.model_copy(update={"run_id": run_id}), whole=False)
    if resume not in (None, "auto", "latest") and named_run(resume)[1] is not None:
        raise RequestError(
            "job-resumes-checkpoint", "a job cannot resume from a particular checkpoint", seen=f"resume={resume}",
            expected="a run: with a checkpoint, a requeued job would return to it instead of using its newest one",
            fix=f"resume={target.folder.path}",
        )  # fmt: skip
    target.check_writable("submit")
    return target
