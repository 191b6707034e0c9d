"""Base classes for the sections of the configuration."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field

from noether.common.errors import SettingError
from noether.common.suggest import did_you_mean, nearest


class Section(BaseModel):
    """A frozen group of settings; an unknown key is an error, and so is a number that is not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


class ComponentSection(Section):
    """Settings of a component that `kind` chooses: one of ours, or a dotted path to the user's own class.

    All settings are passed to the component's constructor, except `kind` and those that noether itself reads.
    """

    problem: ClassVar[str | None] = None
    """The kind of problem that the data set, model or task is for: "fields" or "classes"; None for the user's own.
    Sections for different problems cannot be combined in a run."""

    kind: str

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments for the component's constructor."""
        return self.model_dump(exclude={"kind"})

    def check_beside(self, config: Any) -> None:
        """Refuse what does not go together with other sections of a RunConfig. SettingError; default: nothing."""

    def reasons(self) -> dict[str, str]:
        """Return why settings are as they are, by what `plan` calls them. Default: nothing is said."""
        return {}


class DatasetSection(ComponentSection):
    """Settings of a data set: which samples to train on, and how many points of each."""

    validation_fraction: float = Field(
        0.1, ge=0, lt=1, description="Share of the training split that is held out for choosing the best weights."
    )
    points_per_update: dict[str, Annotated[int, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Number of points drawn anew for every update, by the prefix of their keys (surface, volume); "
        "prefixes not listed use all their points. Evaluation uses all points.",
    )
    geometry_points: int | None = Field(
        None, gt=0, description="Number of surface points that the model sees as the shape; null: all, or 512 for mlp."
    )

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments for the data set's constructor."""
        return self.model_dump(exclude={"kind", "validation_fraction", "points_per_update", "geometry_points"})


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields settings by their dotted names; an empty section is a value."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def kind_of(section: type[BaseModel]) -> str | None:
    """Returns the `kind` that chooses a section: "" for the user's own by dotted path, None where nothing chooses."""
    field = section.model_fields.get("kind")
    return None if field is None else str(next(iter(get_args(field.annotation)), ""))


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Returns the sections that an annotation allows, including those inside unions and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for argument in get_args(annotation) for section in sections_in(argument)]


def chosen_by_kind(*known: str) -> Discriminator:
    """Returns a discriminator that chooses the section by `kind`: one of `known`, or "custom" for a dotted path."""

    def tag(value: Any) -> str:
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        return kind if kind in known else "custom"

    return Discriminator(tag)


def dotted_path_or(*known: str) -> AfterValidator:
    """Returns a validator of `kind` that accepts a dotted path to the user's own class (my_package.MyModel).

    The working directory is on the path from which the class is imported.
    """

    def check(path: str) -> str:
        parts = path.split(".")
        if len(parts) < 2 or not all(part.isidentifier() for part in parts):
            problem = f"unknown kind: {did_you_mean(path, known)} (your own: my_package.MyClass)"
            raise SettingError("unknown-kind-of-component", "", problem, instead=nearest(path, known) or "")
        return path

    return AfterValidator(check)
