"""Settings of an output of a model: its unit, its weight, where it is given."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from noether.common.errors import SettingError
from noether.common.suggest import did_you_mean
from noether.config.section import Section

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
