"""One thing that is wrong with a script, and the change that cannot be wrong."""

from dataclasses import dataclass
from typing import Any

from noether.lint.rules import BY_NAME, Level


def counted(number: int, word: str) -> str:
    """Returns a number and its noun: 1 node, 2 nodes."""
    return f"{number} {word}{'s' * (number != 1)}"


@dataclass(frozen=True)
class Edit:
    """Lines to write in the place of one line of the file, and at its end. No lines: the line is deleted."""

    line: int
    instead: tuple[str, ...]
    at_end: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `line` is 1 for what a whole script lacks; `fix` is what to write.

    `edit` is set only where the change cannot be wrong: `--fix` makes it. `certain` is set where the finding's level is
    not its rule's: an error is certain, a warning is not.
    """

    line: int
    rule: str
    message: str
    fix: str = ""
    edit: Edit | None = None
    certain: bool | None = None

    @property
    def level(self) -> Level:
        """Whether it is an error or a warning."""
        if self.certain is None:
            return BY_NAME[self.rule].level
        return "error" if self.certain else "warning"

    @property
    def code(self) -> str:
        """The code of its rule."""
        return BY_NAME[self.rule].code

    def as_dict(self) -> dict[str, Any]:
        """Returns the finding for JSON."""
        return {name: getattr(self, name) for name in ("line", "level", "code", "rule", "message", "fix")}
