"""The whole configuration of a run: every key with its type, default and meaning."""

import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from noether.common.errors import RequestError, SettingError
from noether.config.distributed import DistributedConfig
from noether.config.optimizer import AdamWConfig, CosineConfig, OptimizerConfig, ScheduleConfig
from noether.config.recipe import Recipe
from noether.config.section import Section
from noether.config.sections_by_kind import DatasetConfig, ModelConfig, TaskConfig
from noether.config.slurm import SlurmConfig
from noether.config.trainer import TrackerConfig, TrainerConfig
from noether.registry import settings_of

# Not checked for control characters: options of components, and shell lines, which the job script contains unchanged.
_FREE = ("model", "dataset", "task", "optimizer", "schedule", "slurm.slurm_setup")

SECTIONS_OF_A_TRAINED_MODEL = ("dataset", "model", "task")

SECTIONS_WITH_KIND = (*SECTIONS_OF_A_TRAINED_MODEL, "optimizer", "schedule")
"""The sections that have a `kind`: the name of a component of noether, or a dotted path to the user's own."""


class RunConfig(Section):
    """The whole configuration of a run."""

    accelerator: Literal["auto", "gpu", "cpu", "mps"] = Field("auto", description="Kind of device to train on.")
    devices: str | None = Field(
        None, description="Which visible devices to use: a number ('2': that many) or a list ('0,1', '2,'); null: all."
    )
    master_port: int | None = Field(
        None,
        ge=0,
        lt=65536,
        description="Port at which the ranks meet. null or 0: a free port on one machine, else the launcher's port.",
    )
    nodes: int | None = Field(
        None,
        ge=1,
        description="Number of machines in a run without a scheduler, each started by hand with its node_rank. 1: only "
        "this machine.",
    )
    node_rank: int | None = Field(None, ge=0, description="Index of this machine among the nodes, from 0.")
    master_addr: str | None = Field(
        None,
        description="Host at which the ranks meet; with nodes, set it here or in MASTER_ADDR, else the launcher does.",
    )
    dataset_root: Path | None = Field(
        None, description="Folder of the data; null: the data set's own cache, which is created if it is missing."
    )
    seed: int = Field(0, ge=0, description="Seed for weights, sample order and all other random numbers.")
    output_path: Path = Field(Path("runs"), description="Folder in which the run folder is created.")
    run_id: str | None = Field(None, description="Name of the run folder; null: the time at which the run starts.")
    resume: str | None = Field(
        None,
        description="auto: continue if run_id has a checkpoint; latest: the newest run; or the path of a run or "
        "checkpoint.",
    )
    initial_weights: str | None = Field(
        None,
        description="A run, checkpoint, export or safetensors file from which a new run takes its initial weights "
        "where names and shapes match; statistics are computed from the new data.",
    )
    accept_changes: tuple[str, ...] = Field(
        (),
        description="Settings that may differ from those of the resumed run, although that changes the run; [all]: all "
        "settings.",
    )
    num_workers: int = Field(
        0, ge=0, description="Loader processes per rank; memory-mapped data is read fastest with 0."
    )
    dataset: DatasetConfig
    model: ModelConfig = settings_of("model")["upt"]()
    task: TaskConfig
    optimizer: OptimizerConfig = AdamWConfig()
    schedule: ScheduleConfig = CosineConfig()
    trainer: TrainerConfig
    distributed: DistributedConfig = DistributedConfig()
    tracker: TrackerConfig = TrackerConfig()
    slurm: SlurmConfig = SlurmConfig()
    _recipe: Recipe | None = PrivateAttr(None)

    @property
    def recipe(self) -> Recipe | None:
        """The recipe that chose the batch or the length; None if both were set, or come from an existing run."""
        return self._recipe

    def chosen_by(self, recipe: Recipe | None) -> "RunConfig":
        """Record the recipe that chose some of these settings (None: no recipe); return this configuration."""
        self._recipe = recipe
        return self

    def own_code(self, *, trains: bool = True, submits: bool = False) -> dict[str, str]:
        """Return {user's own code: the setting that names it}: the dotted paths that a run with these settings imports.

        trains: whether to include the paths that only training imports.
        submits: whether to include what a Slurm job adds: shell lines, image, mounts and further options.
        """
        sections = SECTIONS_WITH_KIND if trains else SECTIONS_OF_A_TRAINED_MODEL
        named = {getattr(self, name).kind: f"{name}.kind" for name in sections}
        if trains:
            named |= dict.fromkeys(self.tracker.services, "tracker.services")
            named |= dict.fromkeys(self.trainer.callbacks, "trainer.callbacks")
        code = {path: setting for path, setting in named.items() if "." in path}
        names = ("slurm_setup", "container", "container_mounts", "slurm_additional_parameters") if submits else ()
        return code | {str(value): f"slurm.{name}" for name in names if (value := getattr(self.slurm, name))}

    @field_validator("devices", mode="before")
    @classmethod
    def _devices_as_text(cls, value: Any) -> Any:
        # YAML reads 2 as a number and [0, 1] as a list. Convert them to the texts 2 and 0,1.
        if isinstance(value, bool):
            raise SettingError("devices-not-a-list", "", "devices must be a number or a list such as 0,1")
        if isinstance(value, int):
            return str(value)
        if isinstance(value, (list, tuple)):
            return ",".join(str(item) for item in value) + ("," if len(value) == 1 else "")
        return value

    @field_validator("resume", mode="before")
    @classmethod
    def _resume_names_a_run(cls, value: Any) -> Any:
        if isinstance(value, bool):
            problem = "takes auto, latest, or the path of a run or checkpoint"
            raise SettingError("resume-not-a-run", "", problem, instead="latest" if value else "null")
        return value

    @field_validator("accept_changes", mode="before")
    @classmethod
    def _accept_changes_as_list(cls, value: Any) -> Any:
        return [word.strip() for word in value.split(",")] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _parts_of_one_problem(self) -> "RunConfig":
        parts = {name: getattr(self, name) for name in ("dataset", "model", "task")}
        problems = {part.problem for part in parts.values()} - {None}
        if len(problems) > 1:
            raise RequestError(
                "parts-do-not-fit",
                "the data set, the model and the task do not fit together",
                seen=", ".join(
                    f"{name}.kind={part.kind} ({part.problem or 'your own'})" for name, part in parts.items()
                ),
                expected="all three for fields at points, or all three for classes of images",
                fix="+experiment/mnist=convnet      (or leave all three out, to use those of the ellipsoid)",
            )
        return self

    @model_validator(mode="after")
    def _parts_go_together(self) -> "RunConfig":
        for name in SECTIONS_OF_A_TRAINED_MODEL:
            getattr(self, name).check_beside(self)
        return self

    @model_validator(mode="before")
    @classmethod
    def _texts_of_one_line(cls, settings: Any) -> Any:
        if isinstance(settings, dict):
            refuse_control_characters(settings)
        return settings

    @field_validator("run_id")
    @classmethod
    def _run_id_is_a_name(cls, value: str | None) -> str | None:
        if value is not None and (not value.strip() or "/" in value or value in (".", "..")):
            problem = " must be a plain folder name; output_path sets its parent folder"
            raise SettingError("run-id-not-a-name", "run_id", problem, value=repr(value))
        return value


def refuse_control_characters(settings: Mapping[str, Any]) -> None:
    """Refuse control characters and Unicode's line ends (U+0085, U+2028, U+2029) in settings.

    In a comment of the job script, the text after a line end would be executed. In a file with one row per line, a line
    end would split a row.

    RequestError: a setting contains such a character. The error's fix is the setting without it.
    """
    for name, value in _texts(settings, ""):
        bad = [letter for letter in value if unicodedata.category(letter) in ("Cc", "Zl", "Zp")]
        if bad:
            clean = "".join(letter for letter in value if letter not in bad)
            raise RequestError(
                "unprintable-character", f"{name} contains a character that cannot be printed",
                seen=f"{name}={value!r}, with {', '.join(f'U+{ord(letter):04X}' for letter in dict.fromkeys(bad))}",
                expected="text on one line", fix=f"{name}={clean}",
            )  # fmt: skip


def _texts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if name in _FREE:
        return
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield f"the name of a setting in {name or 'the configuration'}", str(key)
            yield from _texts(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part, name)
