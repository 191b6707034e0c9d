"""Where the exit status of a command goes: to the end of the script, or to something that drops it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from noether.lint.shell import STATEMENTS, ShellText, text_of, unquote

_KEEPS = re.compile(r"\$\?|\$\{\?\}|PIPESTATUS|pipestatus|\bERR\b")
_TESTS = ("if_statement", "while_statement", "elif_clause", "command_substitution", "process_substitution",
          "for_statement", "c_style_for_statement", "negated_command", "test_command")  # fmt: skip
_SAYING = {"true", ":", "echo", "printf", "date", "/bin/true"}


@dataclass(frozen=True)
class Loss:
    """How a status is lost: the kind, the command that answers in its place, and that command's line."""

    kind: str
    """pipe, or, then, exit, wait or background (nothing waits at all)."""
    by: str
    line: int


class StatusFlow:
    """Follows exit statuses through one script, by the rules of bash."""

    def __init__(self, shell: ShellText) -> None:
        self.shell = shell
        self.functions = shell.functions
        text = "\n".join(line for line in shell.text.split("\n") if not line.lstrip().startswith("#"))
        self.pipefail = re.search(r"\bset\b[^\n]*\bpipefail\b|-o\s*pipefail", text) is not None
        self.tracked = re.search(r"\btrap\b[^\n]*\bERR\b", text) is not None
        self._sets = [(c.line, c.texts[1:]) for c in shell.commands if c.name == "set"]
        first = shell.text.partition("\n")[0]
        self._always = re.match(r"#!.*sh\s+-\w*e", first) is not None

    def errexit(self, line: int) -> bool:
        """Says whether `set -e` holds on a line."""
        on = self._always
        for at, words in self._sets:
            if at > line:
                break
            for word, following in zip(words, [*words[1:], ""], strict=True):
                if re.fullmatch(r"[-+]\w*e\w*", word) or (word in ("-o", "+o") and following == "errexit"):
                    on = word[0] == "-"
        return on

    def loss(self, node: Node, depth: int = 0) -> Loss | None:
        """Returns how the status of a statement is lost, or None where it is kept or cannot be followed."""
        if self.tracked or depth > 5:
            return None
        tested = False  # In the left part of && set -e does not act.
        while (parent := node.parent) is not None:
            kind = parent.type
            if kind in _TESTS and not (kind == "if_statement" and _is_body(parent, node)):
                return None
            if kind == "pipeline":
                if parent.named_children[-1] != node and not self.pipefail:
                    last = parent.named_children[-1]
                    return None if self._kept_later(parent) else Loss("pipe", _name(last), self.shell.line_of(last))
            elif kind == "list" and parent.named_children[0] == node:
                right = parent.named_children[-1]
                if any(child.type == "||" for child in parent.children):
                    plain = right.type in STATEMENTS and _name(right) in _SAYING
                    return Loss("or", _name(right), self.shell.line_of(right)) if plain and not tested else None
                tested = True
            elif kind == "function_definition":
                return self._called(parent, depth)
            elif kind in ("program", "compound_statement", "subshell", "if_statement", "else_clause", "case_item",
                          "do_group"):  # fmt: skip
                found = self._followed(node, tested)
                if found is not None:
                    return found if found.kind else None
                tested = False
            node = parent
        return None

    def _called(self, function: Node, depth: int) -> Loss | None:
        name = text_of(function.named_children[0])
        losses = [self.loss(c.node, depth + 1) for c in self.shell.commands if c.name == name]
        return next((loss for loss in losses if loss), None)

    def _followed(self, node: Node, tested: bool) -> Loss | None:
        """Returns what the statements after this one make of its status; None: it is the last, so look further up.

        A loss of kind "" says that the status is kept.
        """
        kept = Loss("", "", 0)
        following = list(_after(node))
        if node.next_sibling is not None and node.next_sibling.type == "&":
            return self._waited(node) or kept
        if not following:
            return None
        first = following[0]
        line = self.shell.line_of(node)
        if (self.errexit(line) and not tested) or any(_KEEPS.search(text_of(after)) for after in following):
            return kept
        for after in following:
            name = _name(after)
            if name in ("exit", "return") and after.type in STATEMENTS:
                zero = [unquote(text_of(child)) for child in after.named_children[1:]] == ["0"]
                return (
                    Loss("exit", f"{name} 0", self.shell.line_of(after)) if zero and node.parent is not None else kept
                )
            if re.search(r"\b(exit|return)\b", text_of(after)):
                return kept
        if _name(first) == "wait" and background_before(node):
            return kept
        last = following[-1]
        return Loss("then", _name(last), self.shell.line_of(last))

    def _waited(self, node: Node) -> Loss | None:
        """Returns how the status of a background job is lost: without a wait, or with a bare one."""
        rest = [c for c in self.shell.commands if c.node.start_byte > node.end_byte]
        waits = [c for c in rest if c.name == "wait"]
        if not waits or _KEEPS.search("\n".join(text_of(after) for after in _outer_after(node))):
            return None
        if any(len(c.words) > 1 for c in waits):
            return None
        return Loss("wait", "wait", waits[-1].line)

    def _kept_later(self, node: Node) -> bool:
        return any(_KEEPS.search(text_of(after)) for after in _outer_after(node))


def _is_body(parent: Node, node: Node) -> bool:
    """Says whether a statement is in the body of an `if`, not in its condition."""
    seen = False
    for child in parent.children:
        if child.type == "then":
            seen = True
        if child == node:
            return seen
    return False


def background_before(node: Node) -> bool:
    """Says whether `&` ends a statement."""
    return node.next_sibling is not None and node.next_sibling.type == "&"


def _after(node: Node) -> Iterator[Node]:
    """Yields the statements after a node, in its own block."""
    following = node.next_named_sibling
    while following is not None:
        if following.type not in ("comment", "elif_clause", "else_clause", "heredoc_body", "file_redirect"):
            yield following
        following = following.next_named_sibling


def _outer_after(node: Node) -> Iterator[Node]:
    current: Node | None = node
    while current is not None:
        yield from _after(current)
        current = current.parent


def _name(node: Node) -> str:
    """Returns what a statement is called in a message: its command, or the word it begins with."""
    while node.type in ("redirected_statement", "list", "pipeline") and node.named_children:
        node = node.named_children[0 if node.type == "redirected_statement" else -1]
    if node.type == "command":
        names = [child for child in node.named_children if child.type == "command_name"]
        return unquote(text_of(names[0])).rsplit("/", 1)[-1][:40] if names else "an assignment"
    return re.split(r"[\s=(;]", text_of(node), maxsplit=1)[0][:40] or node.type
