"""Settings of a Slurm job, and the options of sbatch that are refused because they would contradict these settings."""

import re
from collections.abc import Mapping

from pydantic import Field, model_validator

from noether.common.errors import SettingError
from noether.config.section import Section

OWN_OPTIONS: Mapping[str, str] = {
    **{name: name.replace("-", "_") for name in ("nodes", "nodelist", "cpus-per-task", "tasks-per-node")},
    **{name: f"slurm_{name}" for name in ("partition", "account", "qos", "constraint", "exclude")},
    **dict.fromkeys(("gpus-per-node", "gpus", "gpus-per-task", "gpus-per-socket"), "gpus_per_node"),
    **dict.fromkeys(("ntasks-per-node", "ntasks-per-gpu", "ntasks-per-tres", "ntasks"), "tasks_per_node"),
    **{"nodefile": "nodelist", "output": "folder", "error": "folder", "mem": "mem_gb", "time": "timeout_min"},
    "signal": "slurm_signal_delay_s",
}
"""{option of sbatch: the key of this section to use instead}. If the names are equal, both accept the same values."""
FIXED_OPTIONS: Mapping[str, str] = {
    "open-mode": "leave {name} out",
    "requeue": "slurm.max_requeues=VALUE",
    "no-requeue": "slurm.max_requeues=0",
    "array": "noether submit -m KEY=VALUE,VALUE      (and slurm.slurm_array_parallelism=VALUE)",
    "job-name": "run_id=NAME",
    "wrap": "slurm.slurm_setup='[COMMAND]'",
    "chdir": "cd FOLDER      (before noether submit)",
    "wait": "noether logs RUN -f      (after noether submit)",
    "test-only": "noether submit --dry-run …",
}
"""{option that `noether submit` sets itself, to requeue the job or find it again: what to use instead}."""
EXCLUSIVE_OPTIONS = {"mem-per-cpu": "mem_gb", "mem-per-gpu": "mem_gb", "cpus-per-gpu": "cpus_per_task"}
"""{option of sbatch: the key of this section that must not be set beside it}."""


class SlurmConfig(Section):
    """What a job requests from Slurm. Where a key is not set, the cluster's default applies."""

    folder: str = Field(
        "slurm", description="Folder for the job's output, JOB.out; %u is the user. The runs are in output_path."
    )
    container: str | None = Field(
        None, description="Image to run in: a .sif file (Apptainer), or anything that --container-image takes (pyxis)."
    )
    container_mounts: tuple[str, ...] = Field(
        (), description="Folders to mount in the container besides the working directory: /data or /data:/mnt."
    )
    slurm_partition: str | None = Field(None, description="Partition.")
    nodes: int = Field(1, gt=0, description="Number of nodes.")
    nodelist: str | None = Field(None, description="Nodes by name, as Slurm writes them: n[1-2].")
    slurm_exclude: str | None = Field(None, description="Nodes not to use, by name.")
    gpus_per_node: int | str | None = Field(None, description="GPUs per node: 4, or with a type a100:4.")
    tasks_per_node: int | None = Field(
        None, gt=0, description="Tasks per node; by default gpus_per_node. 1: one task, which starts a rank per GPU."
    )
    cpus_per_task: int | None = Field(None, gt=0, description="CPUs per task.")
    mem_gb: float | None = Field(None, gt=0, description="Memory per node, in GB.")
    timeout_min: int | None = Field(None, gt=0, description="Time limit in minutes.")
    slurm_account: str | None = Field(None, description="Account to charge.")
    slurm_qos: str | None = Field(None, description="Quality of service.")
    slurm_constraint: str | None = Field(None, description="Features that the nodes must have.")
    slurm_setup: tuple[str, ...] = Field((), description="Shell lines run before the program (module load …).")
    slurm_signal_delay_s: int = Field(
        90,
        ge=60,
        description="Seconds before the time limit at which Slurm tells the run to save, which may be 30 s late.",
    )
    slurm_array_parallelism: int | None = Field(
        None, gt=0, description="How many runs of a sweep may run at the same time; null: all."
    )
    max_requeues: int = Field(50, ge=0, description="How many times a job may be requeued after it saved and stopped.")
    slurm_additional_parameters: dict[str, str | int | bool] = Field(
        default_factory=dict, description="Additional #SBATCH options by name; true for an option without a value."
    )

    @property
    def gpu_count(self) -> int | None:
        """The number of GPUs per node, without their type; None if no GPUs are requested."""
        if self.gpus_per_node is None or isinstance(self.gpus_per_node, int):
            return self.gpus_per_node
        return int(self.gpus_per_node.rpartition(":")[2])

    @property
    def ntasks_per_node(self) -> int:
        """The number of tasks per node: as requested, or else one for each GPU, or else 1."""
        return self.tasks_per_node or self.gpu_count or 1

    @model_validator(mode="after")
    def _one_rank_per_gpu(self) -> "SlurmConfig":
        try:
            gpus = self.gpu_count
        except ValueError:
            raise SettingError(
                "gpus-not-a-number", "gpus_per_node", ": write 4, or with a type a100:4", value=repr(self.gpus_per_node)
            ) from None
        if str(self.gpus_per_node).startswith("gpu:"):  # This form is only for --gres.
            problem = f": write {gpus}, or with a type a100:{gpus}"
            raise SettingError("gpus-as-gres", "gpus_per_node", problem, value=repr(self.gpus_per_node))
        if gpus is not None and gpus < 0:
            raise SettingError("gpus-negative", "gpus_per_node", ": must not be negative", value=self.gpus_per_node)
        if gpus and self.tasks_per_node not in (None, 1, gpus):
            raise SettingError("tasks-against-gpus", "tasks_per_node",
                               f" contradicts slurm.gpus_per_node={self.gpus_per_node}", value=self.tasks_per_node,
                               expected="one task per GPU, or one task per node, which starts a rank per GPU itself",
                               fix=f"slurm.tasks_per_node={gpus}      (or leave it out)")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _time_to_save(self) -> "SlurmConfig":
        # A job that is told to save as soon as it starts would be requeued for ever without making an update.
        if self.timeout_min is not None and self.timeout_min * 60 <= self.slurm_signal_delay_s:
            least = self.slurm_signal_delay_s // 60 + 1
            raise SettingError(
                "stop-signal-at-start", "timeout_min", ": the job would be told to stop as soon as it starts",
                value=self.timeout_min,
                expected=f"more than the time for saving, slurm.slurm_signal_delay_s={self.slurm_signal_delay_s}",
                fix=f"slurm.timeout_min={least}      (or more)",
            )  # fmt: skip
        return self

    @model_validator(mode="after")
    def _additional_parameters_are_others(self) -> "SlurmConfig":
        """Refuse options that contradict this section, because the job's plan is made from this section alone."""
        for name, value in self.slurm_additional_parameters.items():
            option = name.replace("_", "-")
            if not re.fullmatch(r"[a-z][a-z0-9-]+", option) or "\n" in str(value):
                problem = f": {name!r} is not a long option of sbatch, such as `mail-type: END`"
                raise SettingError("not-an-sbatch-option", "slurm_additional_parameters", problem)
            setting, option = f"slurm_additional_parameters.{name}", _in_full(option)
            if option in ("gres", "tres-per-task") and "gpu" in re.split(r"[,:=/]", str(value)):
                count = str(value).removeprefix("gpu:") if re.fullmatch(r"gpu(:\w+)?:\d+", str(value)) else "VALUE"
                raise SettingError(
                    "gpu-option-has-a-setting", setting, " asks for GPUs, for which there is a setting", value=value,
                    expected="slurm.gpus_per_node, which determines the tasks per node and the plan of the job",
                    fix=f"slurm.gpus_per_node={count}      (in place of slurm.{setting})",
                )  # fmt: skip
            if key := OWN_OPTIONS.get(option):
                same = option.replace("-", "_") == key.removeprefix("slurm_")
                raise SettingError(
                    "option-has-a-setting", setting, f": --{option} has its own setting", value=value,
                    expected=f"slurm.{key}, which the plan of the job uses",
                    fix=f"slurm.{key}={value if same else 'VALUE'}      (in place of slurm.{setting})",
                )  # fmt: skip
            if option in FIXED_OPTIONS and name != "array":
                raise SettingError("option-is-ours", setting, f": --{option} is set by noether submit", value=value,
                                   expected="other options: noether submit needs this one to requeue and find the run",
                                   fix=FIXED_OPTIONS[option].format(name=f"slurm.{setting}"))  # fmt: skip
            beside = EXCLUSIVE_OPTIONS.get(option)
            if beside and getattr(self, beside) is not None:
                raise SettingError("option-contradicts-setting", setting,
                                   f" contradicts slurm.{beside}={getattr(self, beside)}", value=value,
                                   expected="only one of the two options: sbatch refuses both together",
                                   fix=f"slurm.{beside}=null      (or leave slurm.{setting} out)")  # fmt: skip
        return self


def _in_full(option: str) -> str:
    """Return the full name of an abbreviated option of sbatch (getopt_long). Unknown options stay unchanged."""
    known = [*OWN_OPTIONS, *FIXED_OPTIONS, *EXCLUSIVE_OPTIONS]
    return option if option in known else next((name for name in known if name.startswith(option)), option)
