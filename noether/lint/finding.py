"""What is a finding, and what is a rule?"""

from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Edit:
    """Lines to write in the place of one line; none: the line is to go."""

    line: int
    instead: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `line` is 1 for what a whole script lacks; `fix` is the line to write."""

    line: int
    level: Level
    rule: str
    message: str
    fix: str = ""
    edit: Edit | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the finding for JSON."""
        names = ("line", "level", "rule", "message", "fix")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Rule:
    """A rule's name, its usual level, why it is one, and a script that breaks it beside one that does not."""

    name: str
    level: Level
    why: str
    bad: str
    good: str
