"""Settings of a Slurm job."""

from pydantic import Field, model_validator

from noether.config.sbatch_options import refuse_contradictions
from noether.config.section import Section
from noether.errors import RequestError


class SlurmConfig(Section):
    """What a job asks of Slurm. For keys that are not set, the cluster's defaults apply."""

    folder: str = Field(
        "slurm/%j",
        description="Folder for the job's own files; %u is the user, %j the job id. The runs are in output_path.",
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
        None, gt=0, description="Tasks per node; by default gpus_per_node. 1: one task that runs a rank per GPU."
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
        description="Seconds before the time limit at which the run is told to save; Slurm may be up to 30 s late.",
    )
    slurm_array_parallelism: int | None = Field(
        None, gt=0, description="How many runs of a sweep may run at the same time; null: all."
    )
    max_requeues: int = Field(50, ge=0, description="How many times a job that stopped and saved may be requeued.")
    slurm_additional_parameters: dict[str, str | int | bool] = Field(
        default_factory=dict, description="Additional #SBATCH options by name; true for one without a value."
    )

    @property
    def gpu_count(self) -> int | None:
        """GPUs per node as a number, or None if none are asked for."""
        if self.gpus_per_node is None or isinstance(self.gpus_per_node, int):
            return self.gpus_per_node
        return int(self.gpus_per_node.rpartition(":")[2])

    @property
    def ntasks_per_node(self) -> int:
        """Tasks per node: as asked for, else one for each GPU, else one."""
        return self.tasks_per_node or self.gpu_count or 1

    @model_validator(mode="after")
    def _one_rank_per_gpu(self) -> "SlurmConfig":
        try:
            gpus = self.gpu_count
        except ValueError:
            raise ValueError(f"gpus_per_node={self.gpus_per_node!r}: write 4, or with a type a100:4") from None
        if str(self.gpus_per_node).startswith("gpu:"):  # The form of --gres, which sbatch refuses here.
            raise ValueError(f"gpus_per_node={self.gpus_per_node!r}: write {gpus}, or with a type a100:{gpus}")
        if gpus is not None and gpus < 0:
            raise ValueError(f"gpus_per_node={self.gpus_per_node}: must not be negative")
        if gpus and self.tasks_per_node not in (None, 1, gpus):
            raise RequestError(
                "slurm.tasks_per_node contradicts slurm.gpus_per_node",
                seen=f"tasks_per_node={self.tasks_per_node}, gpus_per_node={self.gpus_per_node}",
                expected="one task per GPU, or one task per node, which starts a rank per GPU itself",
                fix=f"slurm.tasks_per_node={gpus}      (or leave it out)",
            )
        return self

    @model_validator(mode="after")
    def _time_to_save(self) -> "SlurmConfig":
        # A job that is signalled when it starts would be requeued for ever without making an update.
        if self.timeout_min is not None and self.timeout_min * 60 <= self.slurm_signal_delay_s:
            least = self.slurm_signal_delay_s // 60 + 1
            raise RequestError(
                "the job would be told to stop as soon as it starts",
                seen=f"slurm.timeout_min={self.timeout_min}, slurm.slurm_signal_delay_s={self.slurm_signal_delay_s}",
                expected="a time limit longer than slurm_signal_delay_s, the time for saving",
                fix=f"slurm.timeout_min={least}      (or more)",
            )
        return self

    @model_validator(mode="after")
    def _additional_parameters_are_others(self) -> "SlurmConfig":
        refuse_contradictions(self)
        return self
