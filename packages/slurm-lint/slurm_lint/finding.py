"""Findings in a script, and edits that fix them. An edit is tested before it is shown."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from subprocess import DEVNULL, PIPE, CompletedProcess, SubprocessError, run
from typing import Any

from slurm_lint.rules import BY_NAME, Level, Rule

_OURS = re.compile(r"(?<!\\)\$(?=[(?!]|SLURM|MASTER_|code\b)")  # Each $ of a fix that the job's own shell must expand.


@dataclass(frozen=True)
class Edit:
    """A change of one line: `instead` replaces it (no lines: delete it); `above`: text to insert above another line.

    `line`: the line's number; 0: change all line ends. `safe`: the edit cannot be wrong, so `--fix` makes it.
    """

    line: int
    instead: tuple[str, ...]
    above: tuple[int, str] | None = None
    safe: bool = False


@dataclass(frozen=True)
class Finding:
    """One fault in a script. `line`: its line, or 1 if the whole script lacks something. `fix`: the text to write.

    With an `edit`, the fix is tested before it is shown (`checked`). Without an edit, the fix is a hint in words.
    `certain` overrides the rule's level: True makes the finding an error, False a warning. `taught` is the rule of the
    finding if a taught program defines the rule. `cause` is the common end of the messages of findings with the same
    cause; only the first of these findings is reported, with the line numbers of the other findings.
    """

    line: int
    rule: str
    message: str
    fix: str = ""
    edit: Edit | None = None
    certain: bool | None = None
    taught: Rule | None = None
    cause: str = ""
    also: tuple[int, ...] = ()

    @property
    def of(self) -> Rule:
        """The finding's rule."""
        return self.taught or BY_NAME[self.rule]

    @property
    def level(self) -> Level:
        """The level of the finding: that of its rule, unless `certain` overrides it."""
        return self.of.level if self.certain is None else "error" if self.certain else "warning"

    def concerns(self, slurm: float | None) -> bool:
        """Return whether the finding applies to a version of Slurm (None: an unknown version)."""
        return self.of.versions is None or (slurm is not None and self.of.versions[0] <= slurm < self.of.versions[1])

    @property
    def code(self) -> str:
        """The code of the finding's rule."""
        return self.of.code

    def escaped(self) -> "Finding":
        """Return the finding for a here-document, where each $ in the fix needs a backslash against the outer shell."""
        fix, *instead = (_OURS.sub(r"\\\g<0>", line) for line in (self.fix, *(self.edit.instead if self.edit else ())))
        return replace(self, fix=fix, edit=self.edit and replace(self.edit, instead=tuple(instead)))

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as values for JSON."""
        named = {name: getattr(self, name) for name in ("line", "level", "code", "rule", "message")}
        return named | {"fix": self.fix if self.edit else "", "hint": "" if self.edit else self.fix}


def apply(text: str, edit: Edit) -> str:
    """Make an edit; return the new script. Every line keeps its line end, and unchanged lines keep their bytes."""
    if edit.line == 0:
        return text.replace("\r\n", "\n")
    lines, index = text.split("\n"), edit.line - 1
    if not 0 <= index < len(lines):
        return text
    original = lines[index].removesuffix("\r")
    end = lines[index][len(original) :]
    # A line that the edit does not change keeps its bytes, even those that could not be decoded.
    shown = original.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    lines[index : index + 1] = [(original if line == shown else line) + end for line in edit.instead]
    if edit.above:
        lines.insert(edit.above[0] - 1, edit.above[1] + end)
    return "\n".join(lines)


def joined(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings, but of several findings with the same cause only the first, which names the other lines."""
    groups: dict[object, list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: finding.line):
        groups.setdefault((finding.rule, finding.cause or finding), []).append(finding)
    for first, *others in groups.values():
        if also := sorted({other.line for other in others} - {first.line}):
            lines = re.sub(r", (\d+)$", r" and \1", ", ".join(map(str, also)))
            certain = max((each.certain for each in (first, *others)), key=bool)
            message = first.message.removesuffix(first.cause)
            message += f" (and on line{'s' * (len(also) > 1)} {lines}){first.cause}"
            first = replace(first, message=message, certain=certain, also=tuple(also))
        yield first


def checked(text: str, findings: Sequence[Finding], lint: Callable[[str], Sequence[Finding]]) -> Iterator[Finding]:
    """Yield all findings, but without each fix that changes nothing, does not help, or leads to a new finding."""
    before, lines = _times(findings), text.split("\n")
    for finding in findings:
        edit, line = finding.edit, lines[finding.line - 1].strip() if finding.line <= len(lines) else ""
        if edit is None:
            yield replace(finding, fix="") if finding.fix == line else finding
            continue
        changed = apply(text, edit)
        after = _times(lint(changed)) if changed != text else before
        wrong = after - before or after[finding.rule] >= before[finding.rule]
        moved = [f"{edit.above[1]}      (above line {edit.above[0]})"] if edit.above else []
        new = [each.strip() for each in (*moved, *edit.instead) if each not in lines]
        shown = "\n".join(new) or finding.fix or "leave the line out"
        yield replace(finding, fix="", edit=None) if wrong else replace(finding, fix=shown)


def _times(findings: Sequence[Finding]) -> Counter[str]:
    return Counter(finding.rule for finding in findings for _ in (finding.line, *finding.also))


@cache
def asked(command: tuple[str, ...], text: str) -> CompletedProcess[bytes] | None:
    """Run a program that only parses the script `text`; return its output, None if it is missing or too slow."""
    try:
        return run(command, input=text.encode("utf-8", "replace"), stdout=DEVNULL, stderr=PIPE, timeout=10, check=False)
    except (OSError, SubprocessError):
        return None
