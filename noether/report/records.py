"""The shapes that the records of a run must have to be shown, as far as the page reads them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, field_validator

Count = Annotated[int, Field(ge=0, lt=2**63)]
Figure = float | None
"""A figure that was not finite is written as null."""
Direction = Annotated[list[float], Field(min_length=3, max_length=3)]
Parts = dict[str, Any] | None


class RecordShape(BaseModel):
    """A record, or an object inside one. What it does not name may hold anything."""

    model_config = ConfigDict(strict=True)


class FieldRow(RecordShape):
    """The figures of a field, and of each of its components."""

    components: dict[str, dict[str, Any]] | None = None


class ScalarScore(RecordShape):
    """How a scalar was predicted, and what it was made with."""

    r2: Figure = None
    spearman: Figure = None
    mae: Figure = None
    max: Figure = None
    floor_r2: Figure = None
    dynamic_pressure: Figure = None
    density: Figure = None
    speed: Figure = None
    speed_of: str | None = None
    reference_area: str | None = None
    reference_length: float = 0.0


class ClassCounts(RecordShape):
    """A confusion matrix and the names of its classes."""

    names: list[Any] = []
    confusion: list[list[Count]] = []

    @field_validator("confusion")
    @classmethod
    def _rows_of_one_length(cls, rows: list[list[int]]) -> list[list[int]]:
        if len({len(row) for row in rows}) > 1:
            raise ValueError("rows of different lengths")
        return rows


class TimeShares(RecordShape):
    """Seconds by part of the time, and the slowest rank."""

    parts: dict[str, float] | None = None
    slowest: Parts = None


class ResultRecord(RecordShape):
    """result.json."""

    fields: dict[str, FieldRow] | None = None
    figures: Parts = None
    scalars: dict[str, ScalarScore] | None = None
    baselines: dict[str, dict[str, Parts]] | None = None
    classes: ClassCounts | None = None
    time_use: TimeShares | None = None
    arithmetic: Parts = None
    report_parts: list[str] | None = None
    updates: Count | None = None
    seconds: FiniteFloat | None = None


class PlanRecord(RecordShape):
    """plan.json."""

    model: Parts = None
    data: Parts = None
    length: dict[str, FiniteFloat | None] | None = None
    endpoint: Parts = None
    batch: dict[str, Count] | None = None
    world_size: Count | None = None
    nodes: list[Any] | None = None
    node_rank: Count | None = None
    workers: list[dict[str, Any]] | None = None
    reasons: Parts = None
    warnings: list[Any] | None = None


class DrawnSpace(RecordShape):
    """How the axes of the data lie."""

    wind: Direction | None = None
    up: Direction | None = None


class KeptCase(RecordShape):
    """A sample whose fields were kept."""

    index: Count = 0
    relative_l2: dict[str, Figure] | None = None


class EvaluationMeta(RecordShape):
    """The "meta" of an evaluation's npz."""

    fields: dict[str, Parts] | None = None
    cases: list[KeptCase] | None = None
    names: list[Any] | None = None
    scalars: list[str] | None = None
    space: DrawnSpace | None = None


def checked(content: Any, shape: type[RecordShape]) -> dict[str, Any]:
    """Returns a record as it was read. Raises ValueError, which names the place, where it has another shape."""
    try:
        shape.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}") from None
    found: dict[str, Any] = content
    return found
