"""Where the exit status of a command goes: to the end of the script, or to something that drops it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tree_sitter import Node

from slurm_lint.shell import ShellText, ancestors, has_ampersand, text_of

_KEEPS = re.compile(r"\$\?|\$\{\?\}|PIPESTATUS|pipestatus|\bERR\b")
_TESTS = ("if_statement", "while_statement", "elif_clause", "command_substitution", "process_substitution",
          "negated_command", "test_command")  # fmt: skip
_SAYS = re.compile(r"(?:(?:/bin/)?true|:|echo|printf|date)(?:\s[^&|;]*)?")

Loss = tuple[str, Node]
"""How a status is lost (pipe, or, then, exit, wait), and what answers in its place."""


class StatusFlow:
    """Follow exit statuses through one script, by the rules of bash."""

    def __init__(self, shell: ShellText) -> None:
        self.shell = shell
        self.pipefail = re.search(r"\bset\b[^\n]*\bpipefail\b|-o\s*pipefail", shell.code) is not None
        self.tracked = re.search(r"\btrap\b[^\n]*\bERR\b", shell.code) is not None
        # The lines from which `set -e` holds, and from which it does not.
        self._switched = [(0, re.match(r"#!.*sh[ \t]+-\w*e", shell.text) is not None)]
        for command in (c for c in shell.commands if c.name == "set"):
            for word, following in pairwise([*command.texts[1:], ""]):
                if re.fullmatch(r"[-+]\w*e\w*", word) or (word in ("-o", "+o") and following == "errexit"):
                    self._switched.append((command.line, word[0] == "-"))

    def _errexit(self, line: int) -> bool:
        """Say whether `set -e` holds on a line."""
        return next(on for at, on in reversed(self._switched) if at <= line)

    def loss(self, node: Node, depth: int = 0) -> Loss | None:
        """Return how the status of a statement is lost, or None where it is kept or cannot be followed."""
        if self.tracked or depth > 5:
            return None
        tested = False  # In the left part of && set -e does not act.
        while (parent := node.parent) is not None:
            kind = parent.type
            if kind in _TESTS and (kind != "if_statement" or node in parent.children_by_field_name("condition")):
                return None
            if kind == "pipeline":
                last = parent.named_children[-1]
                if last != node and not self.pipefail:
                    return None if _kept_in(_outer_after(parent)) else ("pipe", last)
            elif kind == "list" and parent.named_children[0] == node:
                right = parent.named_children[-1]
                if any(child.type == "||" for child in parent.children):
                    return ("or", right) if _SAYS.fullmatch(text_of(right)) and not tested else None
                tested = True
            elif kind == "function_definition":
                return self._called(parent, depth)
            elif kind in ("program", "compound_statement", "subshell", "if_statement", "else_clause", "case_item",
                          "do_group"):  # fmt: skip
                if has_ampersand(node):
                    return self._waited(node)
                if following := list(_after(node)):
                    stops = self._errexit(self.shell.line_of(node)) and not tested
                    # What a loop or block keeps right away may be read after it.
                    wide = _outer_after(node) if _KEEPS.search(text_of(following[0])) else following
                    return None if stops or _kept_in(wide) else self._replaced(following)
                tested = False
            node = parent
        return None

    def _called(self, function: Node, depth: int) -> Loss | None:
        name = text_of(function.named_children[0])
        return next(filter(None, (self.loss(c.node, depth + 1) for c in self.shell.commands if c.name == name)), None)

    def _replaced(self, following: Sequence[Node]) -> Loss | None:
        """Return how a status is lost to the statements after it, none of which looks at it."""
        for at, after in enumerate(following):
            text = text_of(after)
            if ends := re.fullmatch(r"(?:exit|return)(?:\s+[\"']?(\S+?)[\"']?)?", text):
                plain = ("then", following[at - 1]) if at and not ends[1] else None  # With the last code.
                return ("exit", after) if ends[1] == "0" else plain
            if text[:1] in "~-" or re.search(r"\b(exit|return)\b", text):
                return None  # What is no command ends with an error of its own.
        return "then", following[-1]

    def _waited(self, node: Node) -> Loss | None:
        """Return how the status of a background job is lost: by a bare wait. Without any wait it is not at stake."""
        waits = [c for c in self.shell.commands if c.node.start_byte > node.end_byte and c.name == "wait"]
        if waits and len(waits[-1].words) > 1:
            return self.loss(waits[-1].node)
        reads = any(len(c.words) > 1 and not c.within("function_definition") for c in waits)
        if not waits or reads or _kept_in(_outer_after(node)):
            return None
        return "wait", waits[-1].node


def _kept_in(statements: Iterable[Node]) -> bool:
    """Say whether the statements do something with a status; one that is only kept and told is lost."""
    texts = [text for statement in statements if not _SAYS.fullmatch(text := text_of(statement))]
    names = [match[1] for text in texts if (match := re.fullmatch(r"(\w+)=\"?\$(?:\?|\{\?\})\"?", text))]
    kept = sum(_KEEPS.search(text) is not None for text in texts)
    return kept > len(names) or any(re.search(rf"\b{name}\b(?!=)", text) for name in names for text in texts)


def _after(node: Node) -> Iterator[Node]:
    """Yield the statements after a node, in its own block."""
    while (following := node.next_named_sibling) is not None:
        if following.type not in ("comment", "elif_clause", "else_clause", "heredoc_body", "file_redirect"):
            yield following
        node = following


def _outer_after(node: Node) -> Iterator[Node]:
    for outer in (node, *ancestors(node)):
        yield from _after(outer)
