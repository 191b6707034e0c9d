"""Parse shell scripts with tree-sitter's bash grammar into commands and their words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from multiprocessing import get_context

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

STATEMENTS = ("command", "declaration_command", "variable_assignment", "variable_assignments", "unset_command",
              "test_command")  # fmt: skip
REPEATED = ("for_statement", "c_style_for_statement", "while_statement", "function_definition")
"""The types of nodes whose commands may run several times."""
CONDITIONAL = ("if_statement", "elif_clause", "else_clause", "case_item", "list", *REPEATED)
_WRAPPING = ("list", "pipeline", "redirected_statement", "negated_command", "subshell", "compound_statement")
_INSIDE = ("comment", "heredoc_body", "command_substitution", "process_substitution", "array")  # Not searched.
_NO_WORD = ("file_redirect", "heredoc_redirect", "herestring_redirect", "comment")
_QUOTED = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)|(["'])""", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?(\+?)=(.*)", re.DOTALL)
PARSE_LIMIT_S = 60
_BASH = Language(tree_sitter_bash.language())
# tree-sitter-bash calls C's isalpha() for any character after `{`. Above U+00FF, isalpha() reads outside libc's table,
# and the process crashes. So the parser gets each non-ASCII byte as two letters between U+00C0 and U+00CF.
_LETTERS = {byte: chr(0xC0 + byte // 16) + chr(0xC0 + byte % 16) for byte in range(0x80, 0x100)}
_BYTES = {letters: chr(byte) for byte, letters in _LETTERS.items()}


def _shown(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass").decode("latin-1").translate(_LETTERS).encode()


def _written(shown: bytes) -> str:
    # If the grammar could not parse a node, the node may end inside a character.
    text = re.sub("[\xc8-\xcf][\xc0-\xcf]", lambda found: _BYTES[found[0]], shown.decode("utf-8", "replace"))
    return text.encode("latin-1", "replace").decode("utf-8", "replace")


def unquote(raw: str) -> str:
    """Remove a word's quotes as the shell does; return it without expanding variables or commands."""

    def plain(match: re.Match[str]) -> str:
        doubled = re.sub(r'\\([\\"`$\n])', lambda m: m[1].strip("\n"), match[2] or "")
        return doubled or match[1] or (match[3] or "").strip("\n")

    return _QUOTED.sub(plain, raw)


@dataclass(frozen=True)
class Word:
    """A word as written, with its quotes, and the number of its line."""

    raw: str
    line: int

    @property
    def text(self) -> str:
        """The word without its quotes. Variables and commands in it are not expanded."""
        return unquote(self.raw)


@dataclass(frozen=True, eq=False)
class Command:
    """A simple command: its words, the assignments in front of them, and its node in the syntax tree."""

    words: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...]
    line: int
    last_line: int
    node: Node

    @property
    def name(self) -> str:
        """The first word without its folder; "" if the command has no words."""
        return self.words[0].text.rsplit("/", 1)[-1] if self.words else ""

    @cached_property
    def texts(self) -> list[str]:
        """The words without quotes."""
        return [word.text for word in self.words]

    @property
    def declared(self) -> list[tuple[str, Word]]:
        """The assignments to shell variables (`A=1`, `export A=1`, `declare -x A=1`), but not that in `A=1 program`."""
        return [] if self.words and self.node.type == "command" else list(self.assignments)

    @property
    def parent_type(self) -> str:
        """The type of the node around the command; "program" at the top level of the script."""
        return self.node.parent.type if self.node.parent is not None else ""

    def within(self, *kinds: str) -> bool:
        """Return whether the command is inside a node of one of these kinds."""
        return any(node.type in kinds for node in ancestors(self.node))

    @property
    def in_background(self) -> bool:
        """True if `&` follows the command, or the list, pipeline or block that contains it."""
        wrapped = takewhile(lambda node: node.type in _WRAPPING, ancestors(self.node))
        return any(has_ampersand(node) for node in (self.node, *wrapped))


def ancestors(node: Node) -> Iterator[Node]:
    """Yield the nodes that contain a node, from the innermost to the outermost."""
    while (above := node.parent) is not None:
        yield above
        node = above


def has_ampersand(node: Node) -> bool:
    """Return whether `&` follows a statement."""
    return node.next_sibling is not None and node.next_sibling.type == "&"


def text_of(node: Node) -> str:
    """Return the source of a node."""
    return _written(node.text or b"")


class ShellText:
    """A parsed script. `first_line`: the line number of its first line in the file.

    With `on_one_line=True`, the text is from elsewhere, and all its findings are reported on the line `first_line`.
    """

    def __init__(self, text: str, first_line: int = 1, on_one_line: bool = False) -> None:
        self.text, self.first_line, self.on_one_line = text, first_line, on_one_line
        self.root = Parser(_BASH).parse(_shown(text)).root_node

    @cached_property
    def code(self) -> str:
        """The text without comments. Text after a # in quotes is removed too."""
        return re.sub(r"(?m)(?<!\S)#.*", "", self.text)

    def line_of(self, node: Node, *, end: bool = False) -> int:
        """Return the number of the line on which a node begins or, with `end=True`, ends."""
        return self.first_line + (0 if self.on_one_line else (node.end_point if end else node.start_point).row)

    def _nodes(self, leaves: tuple[str, ...] = ()) -> Iterator[Node]:
        """Yield the nodes in the order of the text, but no nodes inside those whose type is in `leaves`."""
        stack = [self.root]
        while stack:
            yield (node := stack.pop())
            stack += [] if node.type in leaves else reversed(node.children)

    @cached_property
    def commands(self) -> list[Command]:
        """The commands in the order of the text, up to an `exit` at the top level."""
        nodes = self._nodes((*STATEMENTS, *_INSIDE))
        found = [self._command(node) for node in nodes if node.type in STATEMENTS]
        ends = (at for at, each in enumerate(found, 1) if each.name == "exit" and each.parent_type == "program")
        return found[: next(ends, None)]

    @cached_property
    def heredocs(self) -> list[tuple[str, int, bool]]:
        """The here-documents in order: each one's text, its first line, and whether the shell expands it."""
        found = []
        for node in self._nodes():
            parts = {child.type: child for child in node.children if node.type == "heredoc_redirect"}
            if "heredoc_body" in parts and "heredoc_start" in parts:
                body, quoted = parts["heredoc_body"], re.search(r"['\"\\]", text_of(parts["heredoc_start"]))
                text = re.sub(r"(?m)^\t+", "", text_of(body)) if "<<-" in parts else text_of(body)
                found.append((text, self.line_of(body), not quoted))
        return found

    @cached_property
    def quoted_lines(self) -> set[int]:
        """The numbers of the lines that begin inside quotes or inside a here-document."""
        kinds = {"string": 1, "raw_string": 1, "ansi_c_string": 1, "heredoc_body": 0}  # Offset of the first line.
        spans = ((self.line_of(x) + kinds[x.type], self.line_of(x, end=True)) for x in self._nodes() if x.type in kinds)
        return {line for first, last in spans for line in range(first, last + 1)}

    def _command(self, node: Node) -> Command:
        words, assignments = list[Word](), list[tuple[str, Word]]()
        for child in [node] if node.type == "variable_assignment" else node.children:
            raw, line = text_of(child).replace("\\\n", ""), self.line_of(child)
            if child.type == "variable_assignment" and (assigned := _ASSIGNMENT.fullmatch(raw)):
                name, before = assigned[1], f"${{{assigned[1]}}}" * bool(assigned[2])
                assignments.append((name, Word(before + assigned[3], line)))
            elif raw.strip() and child.type not in _NO_WORD:
                glued = (left := child.prev_sibling) is not None and left.end_byte == child.start_byte
                new = Word(words[-1].raw + raw, words[-1].line) if glued and words else Word(raw, line)
                # The grammar ends a word at the second $ of $A:$B,$C. What remains of the word is not a command.
                words = [*words[: len(words) - glued], new] if words or not glued else []
        return Command(tuple(words), tuple(assignments), self.line_of(node), self.line_of(node, end=True), node)


def ends_parser(text: str) -> bool:
    """Return whether the parser crashes on a text or takes longer than PARSE_LIMIT_S; a child process tries this."""
    child = get_context("fork").Process(target=Parser(_BASH).parse, args=(_shown(text),))
    child.start()
    child.join(PARSE_LIMIT_S)
    child.kill()
    child.join()
    return (child.exitcode or 0) < 0


def split_words(text: str, line: int) -> list[Word]:
    """Split the value of an unquoted variable into words, but keep quoted parts together."""
    commands = ShellText(text, line, on_one_line=True).commands
    # Assignments at the beginning (`A=1 python …`) are words too.
    leading = [Word(f"{name}={word.raw}", line) for command in commands for name, word in command.assignments]
    return leading + [word for command in commands for word in command.words]
