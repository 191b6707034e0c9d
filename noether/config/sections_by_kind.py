"""The sections `dataset`, `model` and `task`, whose `kind` is in noether's registry or is a dotted path to a class."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import ConfigDict, Field, Tag

from noether.config.section import ComponentSection, DatasetSection, chosen_by_kind, dotted_path_or
from noether.registry import KINDS, settings_of


class CustomDatasetConfig(DatasetSection):
    """The user's own data set. Its constructor receives all keys except `kind`, and also `split` and `root`."""

    model_config = ConfigDict(extra="allow")
    kind: Annotated[str, dotted_path_or(*KINDS["dataset"])]


class CustomModelConfig(ComponentSection):
    """The user's own model. Its constructor receives all keys except `kind`."""

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
    """The user's own task. Its constructor receives all keys except `kind`."""

    model_config = ConfigDict(extra="allow")
    kind: Annotated[str, dotted_path_or(*KINDS["task"])]


def one_of(section: str, custom: type[ComponentSection]) -> Any:
    """Return the type of a section: a union of its registered kinds and, for a dotted path, `custom`."""
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
