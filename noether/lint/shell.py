"""Which commands does a shell script run, in which order, and with which words?

A reader for job scripts, not a shell: it knows quotes, continued lines, comments, here-documents, pipes, lists,
background jobs, assignments and simple expansion, and gives up on nothing: what it cannot read it takes as it stands.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_OPERATORS = ("&&", "||", ";;", "|&", "\n", ";", "|", "&", "(", ")")
_REDIRECTION = re.compile(r"\d*(?:<<<|>>|<>|>&|<&|>\||>|<)|&>>|&>")
_HEREDOC = re.compile(r"\d*<<-?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_LEADING_KEYWORDS = {"if", "then", "else", "elif", "while", "until", "do", "!", "{", "time"}
_OPENING = {"if", "for", "while", "until", "case", "select"}
_CLOSING = {"fi", "done", "esac", "}"}
_DECLARING = {"export", "declare", "typeset", "readonly", "local"}
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-=])([^{}$]*))?\})")
MAX_SPLICED_WORDS = 2_000
"""A script whose variables expand to more words than this is left unexpanded."""


@dataclass(frozen=True)
class Word:
    """A word as it is written, quotes included, and its line."""

    raw: str
    line: int

    @property
    def text(self) -> str:
        """The word without its quotes; expansions stand as they are written."""
        return unquote(self.raw)


@dataclass(frozen=True)
class Command:
    """A simple command: its words, the assignments before them, and what stands around it.

    before, after: the operator on either side: newline, `;`, `&&`, `||`, `|`, `|&`, `&`, or nothing at an end.
    depth: how many blocks (if, for, functions, parentheses) it stands in.
    """

    words: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...]
    line: int
    last_line: int
    before: str
    after: str
    depth: int

    @property
    def name(self) -> str:
        """The first word, without a folder."""
        return self.words[0].text.rsplit("/", 1)[-1] if self.words else ""

    def texts(self) -> list[str]:
        """Returns the words without quotes."""
        return [word.text for word in self.words]


@dataclass(frozen=True)
class _Token:
    kind: str
    """word, operator or redirection."""
    text: str
    line: int


def read_commands(text: str, first_line: int = 1) -> list[Command]:
    """Returns the commands of a script in the order they are written.

    Args:
        text: the script.
        first_line: the number of its first line.
    """
    commands: list[Command] = []
    words: list[Word] = []
    before, depth = "", 0
    last_line = first_line

    def finish(operator: str) -> None:
        nonlocal before, depth, words
        while words and words[0].raw in _LEADING_KEYWORDS:
            depth += words[0].raw in ("if", "while", "until", "{")
            words = words[1:]
        if words and words[0].raw == "function":
            opened = [word.raw for word in words[2:3]] == ["{"]
            depth += opened
            words = words[3:] if opened else []
        first = words[0].raw if words else ""
        if first in _CLOSING:
            depth = max(0, depth - 1)
        elif first in _OPENING:
            depth += 1
        elif words:
            commands.append(_command(words, last_line, before, operator, depth))
        words = []
        before = operator

    for token in _tokens(text, first_line):
        last_line = token.line
        if token.kind == "word":
            words.append(Word(token.text, token.line))
        elif token.kind == "operator" and token.text == "(":
            depth += 1
            words = []
        elif token.kind == "operator" and token.text == ")":
            finish(";")
            depth = max(0, depth - 1)
        elif token.kind == "operator":
            finish(token.text)
    finish("")
    return commands


def _command(words: Sequence[Word], last_line: int, before: str, after: str, depth: int) -> Command:
    assignments: list[tuple[str, Word]] = []
    rest = list(words)
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0].raw)):
        assignments.append((match[1], Word(match[2], rest[0].line)))
        rest = rest[1:]
    line = (rest or list(words))[0].line
    return Command(tuple(rest), tuple(assignments), line, last_line, before, after, depth)


def _tokens(text: str, first_line: int) -> Iterator[_Token]:
    position, line = 0, first_line
    waiting: list[tuple[str, bool]] = []
    skip_operand = False
    while position < len(text):
        character = text[position]
        if character in " \t\r":
            position += 1
        elif text.startswith("\\\n", position):
            position, line = position + 2, line + 1
        elif character == "#":
            position = _end_of_line(text, position)
        elif match := _HEREDOC.match(text, position):
            if text.startswith("<", match.end()):
                position, skip_operand = match.end() + 1, True
                continue
            start = re.compile(r"[ \t]*").match(text, match.end())
            end = _end_of_word(text, start.end() if start else match.end())
            waiting.append((unquote(text[start.end() if start else match.end() : end]), match[0].endswith("-")))
            position = max(end, match.end())
        elif match := _REDIRECTION.match(text, position):
            position, skip_operand = match.end(), True
            yield _Token("redirection", match[0], line)
        elif operator := next((sign for sign in _OPERATORS if text.startswith(sign, position)), None):
            skip_operand = False
            yield _Token("operator", operator, line)
            position += len(operator)
            if operator == "\n":
                line += 1
                for end_mark, dashed in waiting:
                    position, line = _skip_heredoc(text, position, line, end_mark, dashed)
                waiting = []
        else:
            end = max(_end_of_word(text, position), position + 1)
            raw = text[position:end]
            if not skip_operand:
                yield _Token("word", raw.replace("\\\n", ""), line)
            skip_operand = False
            line += raw.count("\n")
            position = end


def _end_of_line(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _skip_heredoc(text: str, position: int, line: int, end_mark: str, dashed: bool) -> tuple[int, int]:
    while position < len(text):
        end = _end_of_line(text, position)
        content = text[position:end]
        position, line = min(end + 1, len(text)), line + 1
        if (content.lstrip("\t") if dashed else content) == end_mark:
            break
    return position, line


def _end_of_word(text: str, position: int) -> int:
    while position < len(text):
        character = text[position]
        if character in " \t\r\n;|&()<>":
            if character == "(" and position and text[position - 1] == "=":
                position = _closing(text, position)  # An array: NAME=(…).
                continue
            return position
        position = _skip_piece(text, position)
    return len(text)


def _skip_piece(text: str, position: int) -> int:
    """Returns the end of a quoted, expanded or plain piece of a word."""
    character = text[position]
    if character == "\\":
        return min(position + 2, len(text))
    if character == "'":
        end = text.find("'", position + 1)
        return len(text) if end < 0 else end + 1
    if character == '"':
        position += 1
        while position < len(text) and text[position] != '"':
            position = _skip_piece(text, position) if text[position] in "\\$`" else position + 1
        return min(position + 1, len(text))
    if character == "`":
        end = text.find("`", position + 1)
        return len(text) if end < 0 else end + 1
    if character == "$" and text[position + 1 : position + 2] in ("(", "{"):
        return _closing(text, position + 1)
    return position + 1


def _closing(text: str, position: int) -> int:
    """Returns the place behind the bracket that closes the one at `position`."""
    stack = [")" if text[position] == "(" else "}"]
    position += 1
    while position < len(text) and stack:
        character = text[position]
        if character == stack[-1]:
            stack.pop()
        elif character in "({":
            stack.append(")" if character == "(" else "}")
        elif character in "'\"`\\":
            position = _plain_quote(text, position)
            continue
        position += 1
    return position


def _plain_quote(text: str, position: int) -> int:
    quote = text[position]
    if quote == "\\":
        return min(position + 2, len(text))
    position += 1
    while position < len(text) and text[position] != quote:
        position += 2 if text[position] == "\\" and quote != "'" else 1
    return min(position + 1, len(text))


def unquote(raw: str) -> str:
    """Returns a word as the command would see it, were nothing in it expanded."""
    result, position = [], 0
    while position < len(raw):
        character = raw[position]
        end = max(_skip_piece(raw, position), position + 1)
        piece = raw[position:end]
        if character == "\\":
            result.append(piece[1:].replace("\n", ""))
        elif character == "'":
            result.append(piece[1:-1] if piece.endswith("'") and len(piece) > 1 else piece[1:])
        elif character == '"':
            inner = piece[1:-1] if piece.endswith('"') and len(piece) > 1 else piece[1:]
            result.append(re.sub(r'\\([\\"`$])', r"\1", inner.replace("\\\n", "")))
        else:
            result.append(piece)
        position = end
    return "".join(result)


@dataclass
class Variables:
    """The variables that a script sets to what can be known without running it."""

    values: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, raw: str) -> None:
        """Takes note of an assignment."""
        if raw.startswith("("):
            self.values[name] = " ".join(word.raw for command in read_commands(raw[1:-1]) for word in command.words)
        elif not raw.startswith("'"):
            self.values[name] = self.expand(unquote(raw))
        else:
            self.values[name] = unquote(raw)

    def expand(self, text: str) -> str:
        """Replaces $NAME and ${NAME} by what is known of them; ${NAME:-default} by its default where nothing is."""

        def value(match: re.Match[str]) -> str:
            known = self.values.get(match[1] or match[2])
            if known is None:
                return match[4] if match[3] else match[0]
            return known if len(known) < 10_000 else match[0]

        return _VARIABLE.sub(value, text)

    def number(self, text: str, known: Mapping[str, int | None]) -> int | None:
        """Returns the number that a word stands for, with `known` for what Slurm sets, or None."""
        expanded = self.expand(text)
        for _ in range(3):

            def value(match: re.Match[str]) -> str:
                number = known.get(match[1] or match[2])
                return match[0] if number is None else str(number)

            expanded = _VARIABLE.sub(value, expanded)
        if arithmetic := re.fullmatch(r"\$\(\((.*)\)\)", expanded):
            names = re.sub(r"[A-Za-z_]\w*", lambda m: str(self.values.get(m[0], known.get(m[0], m[0]))), arithmetic[1])
            return _calculate(names)
        return int(expanded) if re.fullmatch(r"\d{1,9}", expanded) else None

    def splice(self, words: Sequence[Word]) -> list[Word]:
        """Replaces each word that is nothing but a known variable (or an array) by the words in it."""
        result: list[Word] = []
        for word in words:
            match = re.fullmatch(r'"?\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?\})"?', word.raw)
            known = self.values.get(match[1] or match[2]) if match else None
            if known is None or len(result) > MAX_SPLICED_WORDS:
                result.append(word)
                continue
            inner = [found for command in read_commands(known) for found in command.words] or [Word(known, word.line)]
            simple = " " in known.strip() and "\n" not in known
            result += [Word(found.raw, word.line) for found in inner] if simple else [Word(known, word.line)]
        return result


def _calculate(text: str) -> int | None:
    """Works out sums and products of plain numbers, left to right by precedence; None for anything else."""
    tokens = re.findall(r"\d{1,9}|[-+*/%]|\S", text)
    if not tokens or len(tokens) % 2 == 0:
        return None
    terms: list[int] = []
    sign, pending = 1, "+"
    for index, token in enumerate(tokens):
        if index % 2:
            pending = token
            continue
        if not token.isdigit():
            return None
        number = int(token)
        if pending in "+-":
            sign = -1 if pending == "-" else 1
            terms.append(sign * number)
        elif pending in "/%" and number == 0:
            return None
        elif pending == "*":
            terms[-1] *= number
        elif pending == "/":
            terms[-1] = int(terms[-1] / number)
        elif pending == "%":
            terms[-1] %= number
        else:
            return None
    return sum(terms)


def declared(command: Command) -> tuple[tuple[str, Word], ...]:
    """Returns what a command assigns: `A=1`, `export A=1`, `declare -x A=1`."""
    if command.words and command.name in _DECLARING:
        found = [(m[1], Word(m[2], w.line)) for w in command.words[1:] if (m := _ASSIGNMENT.fullmatch(w.raw))]
        return tuple(found)
    return command.assignments if not command.words else ()
