"""What every section of the configuration has in common."""

from typing import Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator

from noether.common.suggest import did_you_mean


class Section(BaseModel):
    """A frozen group of settings; a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ComponentSection(Section):
    """Settings of a component that is chosen by `kind`: one of ours, or a dotted path to the user's own.

    Everything but `kind` and what the room itself reads is passed to the component's constructor.
    """

    problem: ClassVar[str | None] = None
    """What its data set gives, its model reads or its task scores: "fields" or "classes"; None where only its
    author knows. Sections that differ in it cannot make one run."""

    kind: str

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments for the component's constructor."""
        return self.model_dump(exclude={"kind"})


def chosen_by_kind(*known: str) -> Discriminator:
    """Tells sections apart by `kind`: the tag is one of `known`, or "custom" for a dotted path."""

    def tag(value: Any) -> str:
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        return kind if kind in known else "custom"

    return Discriminator(tag)


def dotted_path_or(*known: str) -> AfterValidator:
    """Accepts where the user's own class is found (my_package.MyModel), the working directory on the path."""

    def check(path: str) -> str:
        parts = path.split(".")
        if len(parts) < 2 or not all(part.isidentifier() for part in parts):
            raise ValueError(f"unknown kind: {did_you_mean(path, known)} (your own: my_package.MyClass)")
        return path

    return AfterValidator(check)
