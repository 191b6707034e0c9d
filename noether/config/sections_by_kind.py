"""The sections whose `kind` is in noether's registry or is a dotted path to the user's own class."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import ConfigDict, Field, Tag

from noether.config.section import ComponentSection, DatasetSection, chosen_by_kind, dotted_path_or
from noether.registry import KINDS, settings_of


class CustomDatasetConfig(DatasetSection):
    """The user's own data set: all other keys are passed to its constructor, together with `split` and `root`."""

    model_config = ConfigDict(extra="allow")
    kind: Annotated[str, dotted_path_or(*KINDS["dataset"])]


class CustomModelConfig(ComponentSection):
    """The user's own model: all other keys are passed to its constructor."""

    model_config = ConfigDict(extra="allow")
    kind: Annotated[str, dotted_path_or(*KINDS["model"])]
    input: str | tuple[str, ...] | None = Field(
        None,
        description="Key or keys of the batch that are passed to the model as tensors; null: the whole batch, a dict.",
    )
    output: str | None = Field(
        None, description="Name for the tensor that the model returns (logits, a field); null: a dict is returned."
    )

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments for the model's constructor, including `input` and `output` if they are set."""
        unset = {name for name in ("input", "output") if getattr(self, name) is None}
        return self.model_dump(exclude={"kind", *unset})


class CustomTaskConfig(ComponentSection):
    """The user's own task: all other keys are passed to its constructor."""

    model_config = ConfigDict(extra="allow")
    kind: Annotated[str, dotted_path_or(*KINDS["task"])]


def one_of(section: str, custom: type[ComponentSection]) -> Any:
    """Return the union of a section's kinds and `custom`, for a dotted path, chosen by `kind`."""
    tagged = [Annotated[kind, Tag(name)] for name, kind in {**settings_of(section), "custom": custom}.items()]
    return Annotated[reduce(or_, tagged), chosen_by_kind(*KINDS[section])]


if TYPE_CHECKING:
    DatasetConfig: TypeAlias = DatasetSection
    ModelConfig: TypeAlias = ComponentSection
    TaskConfig: TypeAlias = ComponentSection
else:
    DatasetConfig = one_of("dataset", CustomDatasetConfig)
    ModelConfig = one_of("model", CustomModelConfig)
    TaskConfig = one_of("task", CustomTaskConfig)
