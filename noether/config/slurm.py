"""What a job asks of Slurm."""

from pydantic import Field, model_validator

from noether.config.section import Section
from noether.errors import RequestError


class SlurmConfig(Section):
    """What a job asks of Slurm; unset keys are left to the cluster's defaults."""

    folder: str = Field("slurm/%j", description="Folder of the job's files; %u is the user, %j the job id.")
    slurm_partition: str | None = Field(None, description="Partition.")
    nodes: int = Field(1, gt=0, description="Nodes.")
    nodelist: str | None = Field(None, description="Nodes by name, as Slurm writes them: n[1-2].")
    gpus_per_node: int | str | None = Field(None, description="GPUs of each node: 4, or with a type a100:4.")
    tasks_per_node: int | None = Field(None, gt=0, description="Ranks of each node; by default gpus_per_node.")
    cpus_per_task: int | None = Field(None, gt=0, description="CPUs of each rank.")
    mem_gb: float | None = Field(None, gt=0, description="Memory of each node, in GB.")
    timeout_min: int | None = Field(None, gt=0, description="Time limit, in minutes.")
    slurm_setup: tuple[str, ...] = Field((), description="Shell lines run before the program (module load …).")
    slurm_additional_parameters: dict[str, str | int | bool] = Field(
        default_factory=dict, description="Further #SBATCH options by name."
    )

    @property
    def gpu_count(self) -> int | None:
        """GPUs of each node as a number, or None where none are asked for."""
        if self.gpus_per_node is None or isinstance(self.gpus_per_node, int):
            return self.gpus_per_node
        return int(self.gpus_per_node.rpartition(":")[2])

    @model_validator(mode="after")
    def _one_rank_per_gpu(self) -> "SlurmConfig":
        try:
            gpus = self.gpu_count
        except ValueError:
            raise ValueError(f"gpus_per_node={self.gpus_per_node!r}: write 4, or with a type a100:4") from None
        if gpus is not None and self.tasks_per_node not in (None, 1, gpus):
            raise RequestError(
                "slurm.tasks_per_node contradicts slurm.gpus_per_node",
                seen=f"tasks_per_node={self.tasks_per_node}, gpus_per_node={self.gpus_per_node}",
                expected="one task per GPU, or one task per node, which starts a rank per GPU itself",
                fix=f"slurm.tasks_per_node={gpus}      (or leave it out)",
            )
        return self
