"""Generate docs/errors.md, the list of all messages and their codes, from the source (`make docs`)."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

RAISED = (
    "RequestError", "SettingError", "DamagedCheckpoint", "DiskRefusal", "JoinError", "EndedByAnother", "MidRunError",
    "RunEnded",
)  # fmt: skip
PACKAGE = Path(__file__).parents[1] / "noether"

HEAD = """\
# Errors

A refused request is reported in three parts. The first line ends with a code in brackets, which stays the same when the
message is reworded:

```
noether: an effective batch of 63 cannot be shared equally by 2 ranks [batch-not-divisible]
  seen      trainer.effective_batch_size=63
  expected  a multiple of 2
  fix       trainer.effective_batch_size=64
```

In the table, `{name}` stands for a value and `…` for a part that varies.

| code | message | expected | fix |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Message:
    """One error message of the source code: its code, and its parts, in which `{name}` and `…` stand for values."""

    code: str
    summary: str
    expected: str = ""
    fix: str = ""

    @property
    def meaning(self) -> str:
        """Return the summary with "…" in place of each `{name}`."""
        return re.sub(r"{\w+}", "…", self.summary)


def messages() -> list[Message]:
    """Return every message that has a code, sorted by code."""
    found = [message for path in sorted(PACKAGE.rglob("*.py")) for message in _in_file(path)]
    return sorted(found, key=lambda message: (message.code, message.summary))


def errors_reference() -> str:
    rows = {f"| `{m.code}` | {_cell(m.summary)} | {_cell(m.expected)} | {_cell(m.fix)} |" for m in messages()}
    return HEAD + "\n".join(sorted(rows)) + "\n"


def _in_file(path: Path) -> Iterator[Message]:
    module = ast.parse(path.read_text(encoding="utf-8"))
    constants = {ast.unparse(node.targets[0]): node.value for node in module.body if isinstance(node, ast.Assign)}
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef):
            nodes = sorted(
                (node for node in ast.walk(function) if hasattr(node, "lineno")), key=lambda node: node.lineno
            )
            texts: dict[str, ast.AST] = {**constants}
            for node in nodes:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    texts[node.targets[0].id] = node.value
                if (message := _message(node, texts)) is not None:
                    yield message


def _message(node: ast.AST, texts: Mapping[str, ast.AST]) -> Message | None:
    """Return the message that a call raises or a (code, summary) pair contains; `texts`: the variables set above."""
    expected = fix = ""
    if isinstance(node, ast.Call) and len(node.args) > 1 and _raises(node.func):
        code, text, *more = node.args
        if more and ast.unparse(node.func) == "SettingError":  # The name of the setting and the problem form one line.
            text = ast.BinOp(text, ast.Add(), texts.get(ast.unparse(more[0]), more[0]))
        given = {word.arg: texts.get(ast.unparse(word.value), word.value) for word in node.keywords}
        expected, fix = (_template(given[name]) if name in given else "" for name in ("expected", "fix"))
    elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "(code, summary)":
        code, text = node.value.elts  # type: ignore[attr-defined]  # A tuple of two.
    else:
        return None
    text = texts.get(ast.unparse(text), text)
    return Message(str(code.value), _template(text), expected, fix) if isinstance(code, ast.Constant) else None


def _raises(function: ast.expr) -> bool:
    name = ast.unparse(function)
    return name.endswith(RAISED) or name in ("refuse", "_choice_error", "_refusal", "wrong")


def _template(node: ast.AST) -> str:
    """Return the text that an expression makes, with `{name}` and `…` for its values."""
    match node:
        case ast.Constant():
            return str(node.value)
        case ast.JoinedStr():
            return "".join(map(_template, node.values))
        case ast.FormattedValue(value=ast.Name() | ast.Attribute() as value):
            return "{" + ast.unparse(value).rpartition(".")[2].strip("_") + "}"
        case ast.BinOp(op=ast.Add()):
            return _template(node.left) + _template(node.right)
        case ast.IfExp():
            return " / ".join(filter(None, map(_template, (node.body, node.orelse))))
        case _:
            return "…"


def _cell(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("`", "'")
    return "" if not text.strip("… /") else f"`{text}`"


if __name__ == "__main__":
    print(errors_reference(), end="")
