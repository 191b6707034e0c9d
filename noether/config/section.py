"""Base classes for the sections of the configuration, and value types that several sections use."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, GetCoreSchemaHandler, field_validator
from pydantic_core import CoreSchema, core_schema

from noether.common.errors import SettingError
from noether.common.numbers import finite
from noether.common.suggest import did_you_mean, nearest, number_meant


class Section(BaseModel):
    """A frozen group of settings; unknown keys and numbers that are not finite are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


class ComponentSection(Section):
    """The settings of a component. `kind` chooses it, by a name in noether or by a dotted path to the user's own class.

    All settings are passed to the component's constructor, except `kind` and those that noether itself reads.
    """

    problem: ClassVar[str | None] = None
    """The problem that the data set, model or task is for: "fields" or "classes"; None for the user's own component.
    Sections for different problems cannot be combined in a run."""

    kind: str

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments for the component's constructor."""
        return self.model_dump(exclude={"kind"})

    def check_beside(self, config: Any) -> None:
        """Raise SettingError if this section contradicts another section of a RunConfig. By default, do nothing."""

    def reasons(self) -> dict[str, str]:
        """Return the reasons for values that `plan` prints, by the names that it prints. By default, return none."""
        return {}


class DatasetSection(ComponentSection):
    """The settings of a data set: the samples to train on, and the number of points to use of each sample."""

    validation_fraction: float = Field(
        0.1, ge=0, lt=1, description="Share of the training split that is held out for choosing the best weights."
    )
    points_per_update: dict[str, Annotated[int, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Number of points drawn anew for every update, by the prefix of their keys (surface, volume); "
        "sets of points that are not listed use all points. Evaluation uses all points.",
    )
    geometry_points: int | None = Field(
        None, gt=0, description="Number of surface points that show the model the shape; null: all, or 512 for mlp."
    )

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments for the data set's constructor."""
        return self.model_dump(exclude={"kind", "validation_fraction", "points_per_update", "geometry_points"})


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of each setting in nested sections; an empty section counts as a value."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def nested(name: str, content: Any) -> Any:
    """Nest the content in the sections of a dotted name: "trainer.max_epochs", 3 → {"trainer": {"max_epochs": 3}}."""
    for part in reversed(name.split(".") if name else []):
        content = {part: content}
    return content


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested settings; where both set a value, that of `above` is used."""
    both = dict(below)
    for name, value in above.items():
        old = both.get(name)
        both[name] = merged(old if isinstance(old, dict) else {}, value) if isinstance(value, dict) else value
    return both


def take(settings: dict[str, Any], key: str) -> bool:
    """Delete a setting by its full name; return whether it existed."""
    name, dot, rest = key.partition(".")
    part = settings.get(name)
    if dot:
        return isinstance(part, dict) and take(part, rest)
    return settings.pop(name, part) is not None


def kind_of(section: type[BaseModel]) -> str | None:
    """Return the `kind` that chooses a section: "" if it is a dotted path, None if the section has no `kind`."""
    field = section.model_fields.get("kind")
    return None if field is None else str(next(iter(get_args(field.annotation)), ""))


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the section classes in an annotation, including those inside unions and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for argument in get_args(annotation) for section in sections_in(argument)]


def chosen_by_kind(*known: str) -> Discriminator:
    """Return a discriminator that maps a section's `kind` to a tag: the `kind` itself if `known`, else "custom"."""

    def tag(value: Any) -> str:
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        return kind if kind in known else "custom"

    return Discriminator(tag)


def dotted_path_or(*known: str, others: str = "") -> AfterValidator:
    """Return a validator of `kind` that accepts a dotted path to the user's own class (my_package.MyModel).

    The class can be imported from the working directory. `others`: a module whose classes the error suggests if only
    the name of a class was given (OneCycleLR).
    """

    def check(path: str) -> str:
        parts = path.split(".")
        if len(parts) < 2 or not all(part.isidentifier() for part in parts):
            problem = f"unknown kind: {did_you_mean(path, known)} (your own: my_package.MyClass)"
            dotted = re.sub(r"\.py(?=:|$)", "", path).replace("/", ".").replace(":", ".")  # my_package/own.py:MyClass
            instead = dotted if "." in dotted and dotted != path else nearest(path, known) or ""
            if others and path[:1].isupper() and path.isidentifier() and path.lower() not in known:
                instead = f"{others}.{path}"
            raise SettingError("unknown-kind-of-component", "", problem, instead=instead)
        return path

    return AfterValidator(check)


_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(updates?|epochs?|samples?|%)\s*")
_OTHERS = {"ep": "epoch", "sa": "sample", "%": "%"} | dict.fromkeys(("up", "st", "it", "ba"), "update")
"""{the first letters of a unit of length: our unit}; steps, iterations and batches are other names for updates."""


@dataclass(frozen=True)
class Interval:
    """A length of training: a count and its unit (`updates`, `epochs`, `samples`, or `%` of the run)."""

    count: float
    unit: str

    @classmethod
    def parse(cls, value: Any) -> "Interval":
        """Parse a text such as `10 updates`; return an Interval unchanged. SettingError: the value is not a length."""
        if isinstance(value, cls):
            return value
        instead = cls.meant(str(value)) or "10 updates"
        if finite(value) is not None:
            written = dict.fromkeys((f"'{instead}'", f"'{instead.replace('update', 'epoch')}'"))
            problem = f"{value!r} has no unit; write {' or '.join(written)}"
            raise SettingError("length-without-unit", "", problem, instead=instead)
        match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
        if not match:
            shown = "null" if value is None else repr(value)
            problem = f"{shown} is not a length; write '10 updates', '1 epoch', '5000 samples' or '5 %'"
            raise SettingError("not-a-length", "", problem, instead=instead)
        count, unit = float(match[1]), match[2]
        unit = unit if unit == "%" else unit.rstrip("s") + "s"
        if unit != "%" and (count != int(count) or count < 1):
            problem = f"{value!r}: the number of {unit} must be a whole number of at least 1"
            raise SettingError("length-not-whole", "", problem)
        if unit == "%" and count > 100:
            raise SettingError("length-over-the-run", "", f"{value!r} is more than the whole run", instead="10 %")
        return cls(count, unit)

    @classmethod
    def meant(cls, text: str) -> str | None:
        """Return the length that a text such as "10 steps", "1k it" or "epoch" means; None if it means no length."""
        found = re.fullmatch(r"\s*([\d._]*\s*(?:[km]\b)?)\s*([a-z]*|%)\s*", text.lower())
        unit = _OTHERS.get(found[2][:2], None if found[2] else "update") if found else None
        count = float(number_meant(found[1] or "1") or 0) if found and unit else 0
        if 0 < count < 1 and unit == "update":  # Other programs write a share of the run like this.
            count, unit = 100 * count, "%"
        return str(cls(count if unit == "%" else round(count), unit if unit == "%" else f"{unit}s")) if count else None

    def __str__(self) -> str:
        number = int(self.count) if self.count == int(self.count) else self.count
        unit = self.unit[:-1] if number == 1 and self.unit != "%" else self.unit
        return f"{number} {unit}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )


# "%" becomes "percent", because "%" is for metrics whose values are fractions of 1. "1" becomes "", for no unit.
Unit = Annotated[str, AfterValidator(lambda unit: {"%": "percent", "1": ""}.get(unit, unit))]


class FieldConfig(Section):
    """The settings of one output of the model; the output's name is its key in the samples."""

    unit: Unit = Field("", description="Physical unit, shown in tables and pictures.")
    weight: float = Field(1.0, ge=0, description="Weight of this field's standardised squared error in the loss.")
    points: str = Field(
        "",
        description="Key of the points at which the field is given (surface_points, volume_points, or another set's "
        "name); case: an output of the whole case, such as drag. Empty: this entry changes the data set's own entry "
        "for this output, and the data set's other outputs remain.",
    )
    components: int | None = Field(None, gt=0, description="Components at each point; null: as many as in the samples.")
    component_names: list[str] = Field([], description="Component names; empty: x, y, z for three, else 0, 1 …")
    scaling: Literal["standardised", "symmetric_log"] | None = Field(
        None,
        description="Scaling for the model: standardised; or symmetric_log, for values that span decades: "
        "sign(x)·log(1 + abs(x)/s), then standardised; s is ten times the mean over training samples of the median of "
        "abs(x); null: the data set's choice, else standardised.",
    )
    period: tuple[float, float] | None = Field(
        None,
        description="For an angle stored as cosine and sine: the range in which to return it, in `unit`, such as "
        "[-180, 180]; errors are taken modulo the length of the range.",
    )
    measure: str | None = Field(
        None,
        description="Key of the area or volume of each point, by which errors are weighted; null: SET_area or "
        "SET_cell_volume, if the samples have it.",
    )

    @field_validator("points")
    @classmethod
    def _names_a_set(cls, points: str) -> str:
        if points not in ("", "case") and (not points.endswith("_points") or points == "_points"):
            known = ("surface_points", "volume_points", "case")
            problem = f" does not name a set of points: {did_you_mean(points, known)}"
            raise SettingError("not-a-set-of-points", "points", problem, value=points)
        return points
