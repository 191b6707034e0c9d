"""A finding, a rule, and what a rule's check yields."""

from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Edit:
    """Lines to write in the place of one line of the file, and at its end. No lines: the line is deleted."""

    line: int
    instead: tuple[str, ...]
    at_end: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `line` is 1 for what a whole script lacks; `fix` is what to write.

    `edit` is set only where the change cannot be wrong: `--fix` makes it.
    """

    line: int
    level: Level
    rule: str
    message: str
    fix: str = ""
    edit: Edit | None = None
    code: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns the finding for JSON."""
        names = ("line", "level", "code", "rule", "message", "fix")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Rule:
    """A rule: its code, its name, its highest level, why it is one, and a wrong script beside a right one."""

    code: str
    name: str
    level: Level
    why: str
    wrong: str
    right: str
