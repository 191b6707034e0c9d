"""A job script: its lines, its #SBATCH lines as sbatch reads them, and the commands after them."""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from slurm_lint.finding import Edit
from slurm_lint.options import SBATCH_SHORT, OptionProblem, Options, read_options
from slurm_lint.shell import Command, ShellText, Word

DIRECTIVE = re.compile(r"#SBATCH(?=\s|$)(?P<rest>.*)", re.DOTALL)
_DISABLE = r"#\s*slurm-lint:\s*disable=([\w, -]+)"


@dataclass(frozen=True)
class Script:
    """A job script as written. `components` are the requests of a heterogeneous job; most scripts have one."""

    path: Path
    text: str
    complete: bool = True  # The whole script that sbatch receives, not a fragment quoted in a README.
    first_line: int = 1
    expanded: bool = False  # A shell replaces its variables before sbatch reads it (`sbatch <<EOF`).
    outer: tuple[str, ...] = ()  # The file's lines before this here-document; empty if it is not in one.

    @cached_property
    def lines(self) -> list[str]:
        """The lines without line ends."""
        return [line.removesuffix("\r") for line in self.text.split("\n")]

    def source(self, line: int) -> str:
        """Return a line by its number."""
        index = line - self.first_line
        return self.lines[index] if 0 <= index < len(self.lines) else ""

    @cached_property
    def shebang(self) -> tuple[int, str]:
        """The number and the text of the #! line, which by mistake may not be the first."""
        if self.text.startswith("#!"):
            return self.first_line, self.lines[0]
        for number, line in enumerate(self.lines, self.first_line):
            if found := re.match(r"\ufeff?\s*(?:#+\s*!\s*|!)(/.*)", line):
                return number, f"#!{found[1]}"
            if re.search(r"^[^#]*['\"<$]|^\s*\w+=", line):
                break  # A command, or the start of another file's text.
        return self.first_line - 1, ""

    @cached_property
    def first_command(self) -> int:
        """The line where sbatch stops reading options: the first that is neither blank nor a comment.

        In a script that a shell expands, a line that is a variable may turn out to be anything.
        """
        passed_over = re.compile(r"\ufeff?\s*($|#|[$`])" if self.expanded else r"\ufeff?\s*($|#)")
        lines = enumerate(self.lines, self.first_line)
        found = (number for number, line in lines if number > self.shebang[0] and not passed_over.match(line))
        return next(found, self.first_line + len(self.lines))

    @cached_property
    def body(self) -> str:
        """The script without the lines between its interpreter and its first command."""
        above = self.first_command - self.first_line
        return "\n".join([*[self.shebang[1], *[""] * above][:above], *self.lines[above:]])

    @cached_property
    def components(self) -> list[Options]:
        """The options of each component of the job, in order."""
        found = [Options()]
        for number, line in enumerate(self.lines, self.first_line):
            if not (match := DIRECTIVE.match(line)) or number > self.first_command:
                continue
            words = split_directive(match["rest"])
            if words is None:
                found[-1].problems.append(OptionProblem("malformed-option", "", number, "a quote is not closed"))
            elif words in (["hetjob"], ["packjob"]):
                found.append(Options())
            else:
                options = read_options(words, number, "sbatch")
                found[-1].given += options.given
                found[-1].problems += options.problems
        return found

    @cached_property
    def is_shell(self) -> bool:
        """True if bash or sh runs the script (or it is a fragment without a first line)."""
        return re.match(r"(?!#!)|#!.*\b(ba|z|k|da)?sh\b", self.shebang[1]) is not None

    @cached_property
    def shell(self) -> ShellText:
        """The parsed script; empty if another interpreter runs it."""
        # bash drops a backslash at the very end; the grammar cannot continue after it.
        text = re.sub(r"\\\n*\Z", "", self.body)
        text = re.sub(r"\\([$`\\])", r"\1", text) if self.expanded else text  # As the job will receive it.
        return ShellText(text + "\n" if self.is_shell else "", self.first_line)

    @property
    def commands(self) -> list[Command]:
        """The commands of the script, if a shell runs it."""
        return self.shell.commands

    @cached_property
    def assignments(self) -> list[tuple[str, Word]]:
        """The variables that its commands set, with their values."""
        return [assigned for command in self.commands for assigned in command.assignments]

    @cached_property
    def exported(self) -> set[str]:
        """The names of variables that its commands export."""
        names, automatic = set[str](), False
        for command in self.commands:
            automatic |= command.name == "set" and bool({"-a", "allexport"} & set(command.texts))
            if command.name == "export" or (command.name == "declare" and "-x" in command.texts) or automatic:
                names |= {*(name for name, _ in command.declared), *command.texts[1:]}
        return names | set(re.findall(r"(?m)^\s*export ([A-Za-z_]\w*)=", self.shell.code))

    @property
    def inner(self) -> Iterator["Script"]:
        """Yield the job scripts in this script's here-documents, except templates that sed fills in."""
        for text, line, expanded in () if re.search(r"\bsed\b.*\bs.([<{@%]|__)\w", self.text) else self.shell.heredocs:
            outer = tuple(self.lines[: line - self.first_line])
            begun = re.match(r"\s*[$`]", text) if expanded else None
            whole = text.startswith("#!") or (not begun and re.search(r"\bsbatch\b|[^>&]>[^>&]", outer[-1]))
            # Text appended to another file, or printed, may begin with anything.
            if re.search(r"^#SBATCH\s+-", text, re.MULTILINE) and (whole or begun or re.match(r"\s*#", text)):
                inner = replace(self, text=text.rstrip("\t"), first_line=line, expanded=expanded, outer=outer)
                yield replace(inner, complete=bool(self.complete and whole))

    def rewritten(self, first: int, pattern: str, new: str, last: int = 0) -> Edit | None:
        """Return the edit that rewrites the first match of a pattern in the lines; None if there is none."""
        changed = ((at, re.sub(pattern, new, self.source(at), count=1)) for at in range(first, max(first, last) + 1))
        return next((Edit(at, (line,)) for at, line in changed if line != self.source(at)), None)

    def with_option(self, name: str, value: object, line: int = 0) -> Edit:
        """Return the edit that sets an option of sbatch: on its line, or on a new line after the other options."""
        given = [option for options in self.components for option in options.given]
        if at := line or max((option.line for option in given if option.name == name), default=0):
            letter = next((letter for letter, known in SBATCH_SHORT.items() if known == name), "-")
            typed = rf"(?<!\S)(--{name[:-1]}\w*[= ]\s*|-{letter}\s*)(\"[^\"]*\"|\S+)"
            return self.rewritten(at, typed, rf"\g<1>{value}") or Edit(at, (self.source(at),))
        after = max((option.line for option in given), default=self.first_line)
        return Edit(after, (self.source(after), f"#SBATCH --{name}={value}"))

    def disabled(self, line: int = 0) -> set[str]:
        """Return the rules that `# slurm-lint: disable=NTH308` turns off on a line, or (0) in the whole file."""
        while self.source(line).endswith("\\"):
            line += 1  # No comment can follow a backslash, so use the one on the command's last line.
        found = re.findall(_DISABLE, self.source(line)) if line else re.findall(rf"(?m)^\s*{_DISABLE}", self.text)
        return set(re.split(r"[\s,]+", ",".join(found)))

    def neighbour(self, path: str) -> str | None:
        """Read a file that the script names, searched for beside it and in the folder of submission; None if absent."""
        if not path or "$" in path or "\0" in path or len(path) > 500:
            return None
        for file in (self.path.parent / path, Path.cwd() / path):
            with suppress(OSError):
                if file.is_file() and file.stat().st_size < 1_000_000:
                    return file.read_text(errors="replace")
        return None


def split_directive(text: str) -> list[str] | None:
    """Split the options of a line as sbatch does; return None if a quote is not closed.

    An unquoted `#` begins a comment anywhere (`-n 2#two` is 2 tasks); a backslash escapes a character.
    """
    lexer = shlex.shlex(text.rstrip("\\"), posix=True, punctuation_chars=False)
    # In double quotes, sbatch takes a backslash literally.
    lexer.whitespace_split, lexer.commenters, lexer.escapedquotes = True, "#", ""
    try:
        return list(lexer)
    except ValueError:
        return None
