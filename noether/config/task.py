"""Settings of the task: the fields or classes to predict, with units and weights, and numbers derived from them."""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, Tag, field_validator, model_validator

from noether.common.suggest import did_you_mean
from noether.config.section import ComponentSection, Section, chosen_by_kind, dotted_path_or
from noether.config.setting_error import SettingError

# "%" is of metrics, whose values are shares of 1; "1", that of a pure number, is not written.
Unit = Annotated[str, AfterValidator(lambda unit: {"%": "percent", "1": ""}.get(unit, unit))]


class FieldConfig(Section):
    """One output of the model, under its key in the samples."""

    unit: Unit = Field("", description="Physical unit, shown in tables and pictures.")
    weight: float = Field(1.0, ge=0, description="Weight in the loss of this field's standardised squared error.")
    points: str = Field(
        "",
        description="Key of the points at which the field is given (surface_points, volume_points, or another set's "
        "name); case: an output of the whole case, such as drag; empty: this entry changes what the data set says of "
        "this output, beside all others that it names.",
    )
    components: int | None = Field(None, gt=0, description="Components at each point; null: as many as in the samples.")
    component_names: list[str] = Field([], description="Of the components; empty: x, y, z of three, else 0, 1 …")
    scaling: Literal["standardised", "symmetric_log"] | None = Field(
        None,
        description="How it is scaled for the model: standardised; or symmetric_log, for values that span decades: "
        "sign(x)·log(1 + abs(x)/s), then standardised; s is ten times the mean over training samples of the median of "
        "abs(x); null: as the data set says, else standardised.",
    )
    period: tuple[float, float] | None = Field(
        None,
        description="Of an angle that samples have as cosine and sine: the range in `unit` in which it is given back, "
        "[-180, 180]; errors are taken modulo its length.",
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


class ParameterConfig(Section):
    """One input of a whole case, such as the wind speed, under its key in the samples."""

    unit: Unit = Field("", description="Physical unit, shown with its range.")


class ForceCoefficientConfig(Section):
    """A force or moment coefficient: the surface integral of pressure, and of wall shear stress if given, divided
    by dynamic pressure and area."""

    pressure: str = Field("surface_pressure", description="Field to integrate, in Pa.")
    shear: str | None = Field(
        None, description="Field of the wall shear stress in Pa, as the air pulls on the wall; null: only pressure."
    )
    points: str = Field("surface_points", description="Key of the points, in m, for the lever arms of a moment.")
    normals: str = Field("surface_normals", description="Key of the outward unit normals.")
    areas: str = Field("surface_area", description="Key of the area of each point, in m².")
    direction: tuple[float, float, float] = Field(description="Direction of the force, or axis of the moment.")
    moment: bool = Field(False, description="Use the moment about the origin instead of the force.")
    dynamic_pressure: float | str = Field(
        description="0.5 · density · speed² in Pa; or the key of each case's speed in m/s, which also needs `density`."
    )
    density: float | None = Field(
        None, gt=0, description="Density of the air in kg/m³ in `dynamic_pressure`; shown beside the coefficient."
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
        """The speed in m/s at which air of this density has this dynamic pressure; None if no density is given."""
        if self.density is None or isinstance(self.dynamic_pressure, str):
            return None
        return float((2 * self.dynamic_pressure / self.density) ** 0.5)

    @model_validator(mode="after")
    def _pressure_is_known(self) -> "ForceCoefficientConfig":
        if isinstance(self.dynamic_pressure, str):
            if self.density is None:
                problem = " is the key of a speed: density is needed"
                raise SettingError("speed-without-density", "dynamic_pressure", problem, value=self.dynamic_pressure)
        elif self.dynamic_pressure <= 0:
            raise SettingError("pressure-not-positive", "", "dynamic_pressure must be above 0")
        return self

    @property
    def numbers(self) -> tuple[str, ...]:
        """The keys of the numbers of a case that it is divided by: reference area, and the speed where it varies."""
        speed = [self.dynamic_pressure] if isinstance(self.dynamic_pressure, str) else []
        return (self.reference_area, *speed)

    def needed_keys(self) -> tuple[str, ...]:
        """Returns the keys that samples must have to compute it."""
        truth = [self.truth] if self.truth else []
        return (self.points, self.normals, self.areas, *self.numbers, *truth)


class FieldsTaskConfig(ComponentSection):
    """Regression of fields at points. Statistics are computed once over the training split."""

    problem = "fields"
    kind: Literal["fields"] = "fields"
    fields: dict[str, FieldConfig] | None = Field(
        None, description="The outputs, by their key in the samples; null: all that the data set names."
    )
    inputs: tuple[str, ...] = Field((), description="Keys of additional model inputs at each point, standardised.")
    parameters: dict[str, ParameterConfig] | None = Field(
        None,
        description="Inputs of a whole case, by their key in the samples; null: all that the data set names.",
    )
    domain_low: float | None = Field(
        None, description="Lowest coordinate of the domain on every axis, in m; null: from the training split's box."
    )
    domain_length: float | None = Field(
        None, gt=0, description="Length of the domain in m, scaled to 1000; null: from the training split's box."
    )
    scalars: dict[str, ForceCoefficientConfig] = Field(
        default_factory=dict, description="Coefficients derived from the fields, by name."
    )

    force_weight: float = Field(
        0.0,
        ge=0,
        description="Weight in the loss of each of `scalars`: the squared error of the force over the drawn points, "
        "per area and dynamic pressure, standardised over the training split. 0: none.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "FieldsTaskConfig":
        if (self.domain_low is None) != (self.domain_length is None):
            problem = "domain_low and domain_length belong together: give both, or neither"
            raise SettingError("half-a-domain", "", problem)
        if self.fields is None:
            return self
        if not self.fields:
            raise SettingError("no-output-field", "fields", ": at least one output field is needed")
        if not any(field.weight for field in self.fields.values()):
            raise SettingError("weights-all-zero", "fields", ": every weight is 0, so nothing would be learned")
        of_the_data = not all(field.points for field in self.fields.values())
        for name, scalar in () if of_the_data else self.scalars.items():
            for part, wanted in (("pressure", scalar.pressure), ("shear", scalar.shear)):
                if wanted is not None and wanted not in self.fields:
                    problem = f" is not among fields ({', '.join(self.fields)})"
                    raise SettingError("not-an-output-field", f"scalars.{name}.{part}", problem, value=wanted)
        return self


class ClassificationTaskConfig(ComponentSection):
    """Classification: trained by cross-entropy, scored by the share of samples whose most likely class is right."""

    problem = "classes"
    kind: Literal["classification"] = "classification"
    classes: int = Field(10, gt=1, description="Number of classes.")
    label: str = Field("label", description="Key of the true class in the samples, an integer scalar.")
    names: tuple[str, ...] = Field((), description="Names of the classes; if empty, their numbers.")
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="Share of the target that is spread over all classes in training."
    )

    @model_validator(mode="after")
    def _a_name_each(self) -> "ClassificationTaskConfig":
        if self.names and len(self.names) != self.classes:
            raise SettingError(
                "names-against-classes", "names", f": {len(self.names)} names for {self.classes} classes"
            )
        return self


class CustomTaskConfig(ComponentSection):
    """The user's own task: all other keys are passed to its constructor."""

    model_config = ConfigDict(extra="allow")
    kind: Annotated[str, dotted_path_or("fields", "classification")]


TaskConfig = Annotated[
    Annotated[FieldsTaskConfig, Tag("fields")]
    | Annotated[ClassificationTaskConfig, Tag("classification")]
    | Annotated[CustomTaskConfig, Tag("custom")],
    chosen_by_kind("fields", "classification"),
]
