"""Lengths of training: `10 updates`, `1 epoch`, `5000 samples`, `5 %`."""

import re
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from noether.common.errors import SettingError
from noether.common.numbers import finite

_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(updates?|epochs?|samples?|%)\s*")


@dataclass(frozen=True)
class Interval:
    """A length of training: a count and its unit (`updates`, `epochs`, `samples`, or `%` of the run)."""

    count: float
    unit: str

    @classmethod
    def parse(cls, value: Any) -> "Interval":
        """Reads a text such as `10 updates`; an interval stays one. Raises ValueError, which says what is accepted."""
        if isinstance(value, cls):
            return value
        if (count := finite(value)) is not None:
            updates, epochs = (cls(max(1, int(count)), unit) for unit in ("updates", "epochs"))
            problem = f"{value!r} has no unit; write '{updates}' or '{epochs}'"
            raise SettingError("length-without-unit", "", problem, instead=str(updates))
        match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
        if not match:
            shown = "null" if value is None else repr(value)
            problem = f"{shown} is not a length; write '10 updates', '1 epoch', '5000 samples' or '5 %'"
            raise SettingError("not-a-length", "", problem, instead="10 updates")
        count, unit = float(match[1]), match[2]
        unit = unit if unit == "%" else unit.rstrip("s") + "s"
        if unit != "%" and (count != int(count) or count < 1):
            problem = f"{value!r}: the number of {unit} must be a whole number of at least 1"
            raise SettingError("length-not-whole", "", problem)
        if unit == "%" and count > 100:
            raise SettingError("length-over-the-run", "", f"{value!r} is more than the whole run", instead="10 %")
        return cls(count, unit)

    def __str__(self) -> str:
        number = int(self.count) if self.count == int(self.count) else self.count
        unit = self.unit[:-1] if number == 1 and self.unit != "%" else self.unit
        return f"{number} {unit}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )
