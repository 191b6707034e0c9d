"""A job script: its lines, its #SBATCH lines as sbatch reads them, and its commands."""

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
    """A job script as written. `components`: the requests of each component; only a heterogeneous job has several."""

    path: Path
    text: str
    complete: bool = True  # True for a whole script, False for a fragment in a README.
    first_line: int = 1
    expanded: bool = False  # True if a shell expands it before sbatch reads it (`sbatch <<EOF`).
    outer: tuple[str, ...] = ()  # For a here-document, the lines of the file above it.

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the script, without their line ends."""
        return [line.removesuffix("\r") for line in self.text.split("\n")]

    def source(self, line: int) -> str:
        """Return the line with this number in the file; "" if the script has no such line."""
        index = line - self.first_line
        return self.lines[index] if 0 <= index < len(self.lines) else ""

    @cached_property
    def shebang(self) -> tuple[int, str]:
        """The line number and the text of the #! line, which may by mistake not be the first line."""
        if self.text.startswith("#!"):
            return self.first_line, self.lines[0]
        for number, line in enumerate(self.lines, self.first_line):
            if found := re.match(r"\ufeff?\s*(?:#+\s*!\s*|!)(/.*)", line):
                return number, f"#!{found[1]}"
            if re.search(r"^[^#]*['\"<$]|^\s*\w+=", line):
                break  # A command, or the text of another file.
        return self.first_line - 1, ""

    @cached_property
    def first_command(self) -> int:
        """The number of the line where sbatch stops reading options: the first that is neither blank nor a comment.

        In a script that a shell expands, a line that begins with a variable does not count: it may become an option.
        """
        passed_over = re.compile(r"\ufeff?\s*($|#|[$`])" if self.expanded else r"\ufeff?\s*($|#)")
        lines = enumerate(self.lines, self.first_line)
        found = (number for number, line in lines if number > self.shebang[0] and not passed_over.match(line))
        return next(found, self.first_line + len(self.lines))

    @cached_property
    def body(self) -> str:
        """The script with the lines between its #! line and its first command made empty."""
        above = self.first_command - self.first_line
        return "\n".join([*[self.shebang[1], *[""] * above][:above], *self.lines[above:]])

    @cached_property
    def components(self) -> list[Options]:
        """The options of each component of the job, in the order of the components."""
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
        """True if a shell runs the script, or if the script has no #! line."""
        return re.match(r"(?!#!)|#!.*\b(ba|z|k|da)?sh\b", self.shebang[1]) is not None

    @cached_property
    def shell(self) -> ShellText:
        """The parsed script; empty if another interpreter runs it."""
        # Remove a backslash at the very end, as bash does, because the grammar cannot parse it.
        text = re.sub(r"\\\n*\Z", "", self.body)
        text = re.sub(r"\\([$`\\])", r"\1", text) if self.expanded else text  # As the job gets it.
        return ShellText(text + "\n" if self.is_shell else "", self.first_line)

    @property
    def commands(self) -> list[Command]:
        """The commands of the script; none if no shell runs it."""
        return self.shell.commands

    @cached_property
    def assignments(self) -> list[tuple[str, Word]]:
        """(variable, value) of each assignment in the script's commands."""
        return [assigned for command in self.commands for assigned in command.assignments]

    @cached_property
    def exported(self) -> set[str]:
        """The names of the variables that the script exports."""
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
            # If the text is printed or appended to a file, it need not be a script from its first line on.
            if re.search(r"^#SBATCH\s+-", text, re.MULTILINE) and (whole or begun or re.match(r"\s*#", text)):
                inner = replace(self, text=text.rstrip("\t"), first_line=line, expanded=expanded, outer=outer)
                yield replace(inner, complete=bool(self.complete and whole))

    def rewritten(self, first: int, pattern: str, new: str, last: int = 0) -> Edit | None:
        """Return the edit that rewrites a pattern's first match in lines `first` to `last`; None without a match."""
        changed = ((at, re.sub(pattern, new, self.source(at), count=1)) for at in range(first, max(first, last) + 1))
        return next((Edit(at, (line,)) for at, line in changed if line != self.source(at)), None)

    def with_option(self, name: str, value: object, line: int = 0) -> Edit:
        """Return the edit that sets an option of sbatch, on the option's line or on a new line after all options."""
        given = [option for options in self.components for option in options.given]
        if at := line or max((option.line for option in given if option.name == name), default=0):
            letter = next((letter for letter, known in SBATCH_SHORT.items() if known == name), "-")
            typed = rf"(?<!\S)(--{name[:-1]}\w*[= ]\s*|-{letter}\s*)(\"[^\"]*\"|\S+)"
            return self.rewritten(at, typed, rf"\g<1>{value}") or Edit(at, (self.source(at),))
        after = max((option.line for option in given), default=self.first_line)
        return Edit(after, (self.source(after), f"#SBATCH --{name}={value}"))

    def disabled(self, line: int = 0) -> set[str]:
        """Return the rules that a comment `# slurm-lint: disable=NTH308` turns off on a line or, for 0, in the file."""
        while self.source(line).endswith("\\"):
            line += 1  # The comment is on the last line, because no comment can follow a backslash.
        found = re.findall(_DISABLE, self.source(line)) if line else re.findall(rf"(?m)^\s*{_DISABLE}", self.text)
        return set(re.split(r"[\s,]+", ",".join(found)))

    def neighbour(self, path: str) -> str | None:
        """Return the text of a file beside the script or in the working directory; None if there is no such file."""
        if not path or "$" in path or "\0" in path or len(path) > 500:
            return None
        for file in (self.path.parent / path, Path.cwd() / path):
            with suppress(OSError):
                if file.is_file() and file.stat().st_size < 1_000_000:
                    return file.read_text(errors="replace")
        return None


def split_directive(text: str) -> list[str] | None:
    """Split the options of a line into words as sbatch does; return None if a quote is not closed.

    An unquoted `#` begins a comment even inside a word (`-n 2#two` is 2 tasks). A backslash escapes a character.
    """
    lexer = shlex.shlex(text.rstrip("\\"), posix=True, punctuation_chars=False)
    # Inside double quotes, a backslash is an ordinary character for sbatch.
    lexer.whitespace_split, lexer.commenters, lexer.escapedquotes = True, "#", ""
    try:
        return list(lexer)
    except ValueError:
        return None
