"""One thing that is wrong with a script, and the change that puts it right."""

import re
from dataclasses import dataclass, replace
from typing import Any

from noether.lint.rules import BY_NAME, Level

_OURS = re.compile(r"(?<!\\)\$(?=[(?!]|SLURM|MASTER_|code\b)")  # What fixes write for the job's own shell.


@dataclass(frozen=True)
class Edit:
    """Lines to write in the place of one line of the file, above another and at its end. No lines: it is deleted.

    `safe`: it cannot be wrong, so `--fix` makes it; else the reader is to decide. Line 0: all ends of lines.
    """

    line: int
    instead: tuple[str, ...]
    at_end: tuple[str, ...] = ()
    above: tuple[int, str] | None = None
    safe: bool = False


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `line` is 1 for what a whole script lacks; `fix` is what to write.

    With `edit` the fix is a change of the file, which was tried before it is shown (trial.py); without, it is a hint
    in words. `certain` is set where the finding's level is not its rule's: an error is certain, a warning is not.
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

    def concerns(self, slurm: float | None) -> bool:
        """Says whether it may be true of a version of Slurm; None: one of which nothing is known."""
        versions = BY_NAME[self.rule].versions
        return versions is None or (slurm is not None and versions[0] <= slurm < versions[1])

    @property
    def code(self) -> str:
        """The code of its rule."""
        return BY_NAME[self.rule].code

    def escaped(self) -> "Finding":
        """Returns it for a script in a here-document: what it writes for the job, the outer shell is to leave alone."""
        instead = tuple(_OURS.sub(r"\\\g<0>", line) for line in self.edit.instead) if self.edit else ()
        edit = replace(self.edit, instead=instead) if self.edit else None
        return replace(self, fix=_OURS.sub(r"\\\g<0>", self.fix), edit=edit)

    def as_dict(self) -> dict[str, Any]:
        """Returns the finding for JSON."""
        named = {name: getattr(self, name) for name in ("line", "level", "code", "rule", "message")}
        return named | {"fix": self.fix if self.edit else "", "hint": "" if self.edit else self.fix}
