"""What does a job script say: its lines, its #SBATCH lines as sbatch reads them, and the commands behind them."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from noether.lint.options import Options, Problem, read_options
from noether.lint.shell import Command, read_commands

_DIRECTIVE = re.compile(r"#SBATCH(?P<rest>.*)", re.DOTALL)
_ALMOST = re.compile(
    r"(?P<before>\s*)#(?P<middle>\s*#*\s*)(?P<word>SBATCH|sbatch|SBTACH|SBACTH|Sbatch)\s+(?P<rest>-.*)"
)
_HETEROGENEOUS = ("hetjob", "packjob")


@dataclass(frozen=True)
class Ignored:
    """A line that looks like a request and that sbatch passes over, and why."""

    line: int
    reason: str
    text: str
    """The options as they would be written."""
    options: Options
    kind: str
    """late (behind the first command), disabled (##SBATCH) or mistyped."""


@dataclass(frozen=True)
class Script:
    """A job script as it is written. `components` are the requests of a heterogeneous job; most scripts have one."""

    name: str
    text: str
    folder: Path
    complete: bool = True
    """Whether this is a whole file, and not a piece of one quoted in a README."""
    first_line: int = 1

    @cached_property
    def lines(self) -> list[str]:
        """The lines without their ends."""
        return [line.removesuffix("\r") for line in self.text.split("\n")]

    def source(self, line: int) -> str:
        """Returns a line by its number."""
        index = line - self.first_line
        return self.lines[index] if 0 <= index < len(self.lines) else ""

    @cached_property
    def end_of_options(self) -> int:
        """Index of the first line that is neither blank nor a comment: sbatch reads no option behind it."""
        for index, line in enumerate(self.lines):
            if line.strip() and not line.lstrip().startswith("#"):
                return index
        return len(self.lines)

    @cached_property
    def components(self) -> list[Options]:
        """The options of each component of the job, in order."""
        found = [Options()]
        for index, line in enumerate(self.lines[: self.end_of_options]):
            match = _DIRECTIVE.match(line)
            if not match:
                continue
            number = index + self.first_line
            words = split_directive(match["rest"])
            if words is None:
                message = "a quote is opened and not closed"
                found[-1].problems.append(Problem("stray-word", "", number, message))
            elif len(words) == 1 and words[0] in _HETEROGENEOUS:
                found.append(Options())
            else:
                options = read_options(words, number, "sbatch")
                found[-1].given += options.given
                found[-1].problems += options.problems
        return found

    @cached_property
    def ignored(self) -> list[Ignored]:
        """Lines that look like requests and are none for sbatch."""
        found = []
        for index, line in enumerate(self.lines):
            number, late = index + self.first_line, index > self.end_of_options
            match = _DIRECTIVE.match(line)
            if match and not late:
                continue
            almost = None if match else _ALMOST.fullmatch(line)
            rest = match["rest"] if match else almost["rest"] if almost else ""
            words = split_directive(rest) or []
            if not words or not words[0].startswith("-") or re.match(r"-+$|---", words[0]):
                continue
            options = read_options(words, number, "sbatch")
            if match:
                reason, kind = "it stands behind the first command", "late"
            elif almost and "#" in almost["middle"]:
                reason, kind = "a second # makes it a comment", "disabled"
            else:
                reason, kind = "sbatch reads only lines that begin with #SBATCH, letter by letter", "mistyped"
            found.append(Ignored(number, reason, rest.strip(), options, kind))
        return found

    @cached_property
    def is_shell(self) -> bool:
        """Whether the script is one that a shell runs (or a piece with no first line)."""
        return not self.text.startswith("#!") or bool(re.match(r"#!.*\b(ba|z|k|da)?sh\b", self.lines[0]))

    @cached_property
    def commands(self) -> list[Command]:
        """The commands of the script, if a shell runs it."""
        return read_commands("\n".join(self.lines), self.first_line) if self.is_shell else []

    def neighbour(self, path: str) -> str | None:
        """Returns the text of a file that the script names, looked for where it is submitted and beside it."""
        if not path or "$" in path or "\0" in path or len(path) > 500:
            return None
        for folder in (Path.cwd(), self.folder):
            try:
                file = folder / path
                if file.is_file() and file.stat().st_size < 1_000_000:
                    return file.read_text(errors="replace")
            except OSError:
                continue
        return None


def split_directive(text: str) -> list[str] | None:
    """Splits the options of a line as sbatch does, or returns None where a quote stays open.

    `#` begins a comment at any place that no quote protects (`-n 2#two` is 2 tasks); a backslash keeps a character.
    """
    words: list[str] = []
    current: str | None = None
    quote, index = "", 0
    while index < len(text):
        character = text[index]
        if quote:
            if character == quote:
                quote = ""
            else:
                current = (current or "") + character
        elif character in "\"'":
            quote, current = character, current or ""
        elif character == "\\" and index + 1 < len(text):
            index += 1
            current = (current or "") + text[index]
        elif character == "\\":
            pass
        elif character == "#":
            break
        elif character.isspace():
            if current is not None:
                words.append(current)
            current = None
        else:
            current = (current or "") + character
        index += 1
    if quote:
        return None
    return words if current is None else [*words, current]


def comment_of(line: str) -> str:
    """Returns what a line says to its reader: a comment, or what follows the options of an #SBATCH line."""
    if line.startswith("#!"):
        return ""
    if line.startswith("#SBATCH"):
        return line[7:].partition("#")[2]
    if line.lstrip().startswith("#"):
        return line.lstrip().lstrip("#")
    return ""
