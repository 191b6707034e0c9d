"""Settings of the task: fields or classes to predict, their units, weights and derived figures."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, Tag, model_validator

from noether.config.section import ComponentSection, Section, chosen_by_kind, dotted_path_or


class FieldConfig(Section):
    """One output field of the model, by the key it has in the samples."""

    unit: str = Field("", description="Physical unit, shown in tables and pictures.")
    weight: float = Field(1.0, ge=0, description="Weight of this field's standardised squared error in the loss.")
    points: str = Field(description="Key of the points at which the field is given.")


class ForceCoefficientConfig(Section):
    """A force or moment coefficient: the integral of pressure over the surface, per dynamic pressure and area."""

    pressure: str = Field("surface_pressure", description="Field that is integrated, in Pa.")
    points: str = Field("surface_points", description="Key of the points, in m: arms of a moment.")
    normals: str = Field("surface_normals", description="Key of the outward unit normals.")
    areas: str = Field("surface_area", description="Key of the area in m² that each point stands for.")
    direction: tuple[float, float, float] = Field(description="Direction of the force, or axis of the moment.")
    moment: bool = Field(False, description="The moment about the origin in place of the force.")
    dynamic_pressure: float = Field(gt=0, description="0.5 · density · speed², in Pa.")
    density: float | None = Field(
        None, gt=0, description="Density of the air in kg/m³ that it is made with, stated beside the coefficient."
    )
    reference_area: str = Field("reference_area", description="Key of the reference area in m².")
    reference_length: float = Field(1.0, gt=0, description="Reference length of a moment, in m.")
    truth: str | None = Field(
        None,
        description="Key of the true value: the coefficient, or the force (3,) in N or moment (3,) in N·m; "
        "null: the integral of the true field.",
    )

    @property
    def speed(self) -> float | None:
        """The speed in m/s at which air of this density has this dynamic pressure; None where no density is given."""
        return (2 * self.dynamic_pressure / self.density) ** 0.5 if self.density else None

    def needed_keys(self) -> tuple[str, ...]:
        """Returns the keys that samples must have for it."""
        return (self.points, self.normals, self.areas, self.reference_area, *([self.truth] if self.truth else []))


class FieldsTaskConfig(ComponentSection):
    """Regression of fields at points; statistics are computed once over the training split."""

    problem = "fields"
    kind: Literal["fields"] = "fields"
    fields: dict[str, FieldConfig] = Field(description="The output fields, by their key in the samples.")
    inputs: tuple[str, ...] = Field((), description="Keys standardised as further inputs of the model.")
    domain_low: float = Field(-4.5, description="Lower corner of the domain on every axis, in m.")
    domain_length: float = Field(10.5, gt=0, description="Length of the domain, in m; scaled to 1000.")
    scalars: dict[str, ForceCoefficientConfig] = Field(
        default_factory=dict, description="Figures derived from the fields, by name."
    )

    @model_validator(mode="after")
    def _consistent(self) -> "FieldsTaskConfig":
        if not self.fields:
            raise ValueError("fields: at least one output field is needed")
        if not any(field.weight for field in self.fields.values()):
            raise ValueError("fields: every weight is 0, so nothing would be learned")
        for name, scalar in self.scalars.items():
            if scalar.pressure not in self.fields:
                raise ValueError(
                    f"scalars.{name}.pressure={scalar.pressure} is not among fields ({', '.join(self.fields)})"
                )
        return self


class ClassificationTaskConfig(ComponentSection):
    """One class of several: cross-entropy, and the share of samples whose likeliest class is right."""

    problem = "classes"
    kind: Literal["classification"] = "classification"
    classes: int = Field(10, gt=1, description="Number of classes.")
    label: str = Field("label", description="Key of the true class in the samples, an integer scalar.")
    names: tuple[str, ...] = Field((), description="What the classes are called; their numbers if not given.")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="Share of the target spread over all classes.")

    @model_validator(mode="after")
    def _a_name_each(self) -> "ClassificationTaskConfig":
        if self.names and len(self.names) != self.classes:
            raise ValueError(f"names: {len(self.names)} names for {self.classes} classes")
        return self


class CustomTaskConfig(ComponentSection):
    """The user's own task: every other key is passed to its constructor."""

    model_config = ConfigDict(extra="allow")
    kind: Annotated[str, dotted_path_or("fields", "classification")]


TaskConfig = Annotated[
    Annotated[FieldsTaskConfig, Tag("fields")]
    | Annotated[ClassificationTaskConfig, Tag("classification")]
    | Annotated[CustomTaskConfig, Tag("custom")],
    chosen_by_kind("fields", "classification"),
]
