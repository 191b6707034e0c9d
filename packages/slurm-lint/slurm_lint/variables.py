"""Track the variables of a script whose values are known without running the script."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, floordiv, mod, mul, sub
from shlex import quote

from slurm_lint.shell import CONDITIONAL, Command, Word, split_words, unquote

_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-=])([^{}$]*))?\})")
_WHOLE = re.compile(r'"?\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?"?')
PER_TASK_VARIABLES = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_TASK_PID")
"""The variables that have another value in each task. In the batch shell, they have the values of task 0."""
_PER_TASK = "|".join(PER_TASK_VARIABLES)
_EARLY = re.compile(
    rf"(?<!\\)(?:\$\(\((?:[^()]|\([^()]*\))*?\b({_PER_TASK})\b(?:[^()]|\([^()]*\))*\)\)"
    rf"|\$\{{?({_PER_TASK}|HOSTNAME|SLURMD_NODENAME|RANDOM)\b(?::?[-=?][^{{}}]*\}}|\}}?)"
    r"|\$\(\s*(?:hostname|shuf)\b[^()]*\)|`hostname[^`]*`)"
)
_QUOTED_OR_NOT = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|[^'"]+""", re.DOTALL)
_WHICH = re.compile(r'\A"?(?:\$\(|`)(?:which|command -v|type -[pP])\s+([\w./-]+)[)`]"?\Z')
_COUNTED = re.compile(r"(?:\$\(|`)\s*scontrol show hostnames?\b[^|`]*\|\s*wc -l\s*[)`]")
_MAX_LENGTH = 10_000
_OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: floordiv, ast.Mod: mod}


def mark_early(raw: str) -> str:
    """Replace each per-task variable that the current shell would expand by @early:NAME@ (not in single quotes)."""
    return _QUOTED_OR_NOT.sub(lambda x: x[0] if x[0][0] == "'" else _EARLY.sub(r"@early:\1\2@", x[0]), raw)


def pieces(raw: str, quoted: bool) -> str:
    """Return the parts of a word that are in single quotes (`quoted=True`), or all other parts."""
    return "".join(piece for piece in _QUOTED_OR_NOT.findall(raw) if (piece[0] == "'") == quoted)


@dataclass
class Variables:
    """The known values of the variables that a script sets. If a variable may have several values, it is unknown."""

    values: dict[str, str] = field(default_factory=dict)

    def assign(self, command: Command, *, per_task: bool = False) -> None:
        """Record the assignments of a command in the batch shell or, with `per_task=True`, in each task's shell."""
        for name, word in command.declared:
            known, before = word.raw if per_task else mark_early(word.raw), self.values.get(name)
            raw = _COUNTED.sub("${SLURM_NNODES}", known)
            if array := re.fullmatch(rf"(\$\{{{name}\}})?\((.*)\)", raw, re.DOTALL):
                value = f"{before} {array[2]}" if array[1] and before else array[2]
            else:
                # Keep the quotes inside $(…), because they belong to the command in it.
                value = unquote(raw) if raw[:1] == "'" else self.expand(raw if raw[:2] == "$(" else unquote(raw))
            grows = before and value.startswith(before)  # An appended option keeps the program.
            if command.within(*CONDITIONAL) and before not in (None, value) and not grows:
                value = f"${name}"  # Only the running job can know the branch.
            self.values[name] = value

    def expand(self, text: str, slurm: Mapping[str, int | None] | None = None) -> str:
        """Replace the variables in a text by their known values or defaults, and Slurm's by the values in `slurm`."""

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            number = slurm.get(name) if slurm is not None else None
            known = self.values.get(name, None if number is None else str(number))
            if known is None:
                return match[4] if match[3] and (slurm is not None or not name.startswith("SLURM_")) else match[0]
            return known if len(known) < _MAX_LENGTH else match[0]

        return _VARIABLE.sub(value, text)

    def number(self, text: str | None, known: Mapping[str, int | None]) -> int | None:
        """Return the number to which a word expands, or None. `known`: the values of Slurm's variables."""
        expanded = self.expand(self.expand(unquote(text or "")), known).strip()
        if arithmetic := re.fullmatch(r"\$(?:\(\(|\[)(.*)(?:\)\)|\])", expanded):
            values = {**known, **self.values}
            return _calculate(re.sub(r"[A-Za-z_]\w*", lambda m: str(values.get(m[0])), arithmetic[1]))
        return int(expanded) if re.fullmatch(r"\d{1,9}", expanded) else None

    def splice(self, words: Sequence[Word]) -> list[Word]:
        """Replace each word that is a single known variable or array by the words of the variable's value."""
        result: list[Word] = []
        for word in (Word(_WHICH.sub(r"\1", word.raw), word.line) for word in words):
            match = _WHOLE.fullmatch(word.raw)
            known = self.values.get(match[1]) if match else None
            if match is None or known is None or known == f"${match[1]}" or len(known) > _MAX_LENGTH:
                result.append(word)
            elif " " in known.strip() and (not word.raw.startswith('"') or "[" in word.raw):
                result += split_words(known.replace("\n", " "), word.line)
            else:
                result.append(Word(quote(known), word.line))  # Quoted, so that it is not expanded again.
        return result


def _calculate(text: str) -> int | None:
    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**9:
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return int(_OPERATORS[type(node.op)](value(node.left), value(node.right)))
        raise ValueError

    try:
        return value(ast.parse(text.strip(), mode="eval").body) if len(text) < 200 else None
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
