"""Reads and writes Slurm's node lists (`rack[1-2]node[08-11]-ib,login`) and task counts.

They are parsed here rather than by `scontrol show hostnames`, because a container has no Slurm. The grammar is that
of Slurm's host lists (slurm.conf(5), "NodeName"; srun(1), "SLURM_TASKS_PER_NODE").
"""

import re
from collections.abc import Sequence
from itertools import groupby

from noether.errors import RequestError

MAX_NODES = 65_536
"""More nodes than any Slurm cluster has. A longer list is a mistake, and is refused before it is expanded."""
MAX_NAME = 255
"""The longest possible host name, in characters (RFC 1035)."""

_NAME = re.compile(r"[A-Za-z0-9._-]*")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)", re.DOTALL)


def parse_nodelist(text: str, source: str = "") -> tuple[str, ...]:
    """Return the node names that a Slurm node list stands for, in its order and including repeats.

    `a1,b[2-3,7],c` is a1 b2 b3 b7 c. `node[098-101]` keeps the width of the first number: node098 … node101.
    With several brackets the last one varies fastest. Text may follow a bracket (`node[1-2]-ib`).

    Args:
        text: the list, as in SLURM_STEP_NODELIST.
        source: what an error calls it; by default the list itself.

    Raises:
        RequestError: the text is not a node list, or names more than MAX_NODES nodes.
    """
    if not text:
        raise _nodelist_error("an empty node list", text, source)
    names: list[str] = []
    for item in _split(text, source):
        literals, choices = _parts(item, text, source)
        expanded = [literals[0]]
        for literal, ranges in zip(literals[1:], choices, strict=True):
            count = sum(last - first + 1 for first, last, _ in ranges)
            if len(names) + len(expanded) * count > MAX_NODES:
                raise _nodelist_error(f"a node list of more than {MAX_NODES} nodes", text, source)
            numbers = [f"{n:0{width}d}" for first, last, width in ranges for n in range(first, last + 1)]
            expanded = [f"{start}{number}{literal}" for start in expanded for number in numbers]
        names += expanded
        if len(names) > MAX_NODES:
            raise _nodelist_error(f"a node list of more than {MAX_NODES} nodes", text, source)
    return tuple(names)


def _split(text: str, source: str) -> list[str]:
    """Split at the commas outside brackets."""
    items, start, inside = [], 0, False
    for index, character in enumerate(text):
        if character in "[]":
            if inside == (character == "["):
                raise _nodelist_error("a node list whose brackets do not match", text, source)
            inside = not inside
        elif character == "," and not inside:
            items.append(text[start:index])
            start = index + 1
    if inside:
        raise _nodelist_error("a node list whose brackets do not match", text, source)
    return [*items, text[start:]]


def _parts(item: str, text: str, source: str) -> tuple[list[str], list[list[tuple[int, int, int]]]]:
    """Return the literal parts of one item, and the ranges between each two of them as (first, last, width)."""
    if not item:
        raise _nodelist_error("a node list with an empty name", text, source)
    literals: list[str] = []
    choices: list[list[tuple[int, int, int]]] = []
    for index, part in enumerate(re.split(r"[\[\]]", item)):
        if index % 2 == 0:
            if not _NAME.fullmatch(part):
                raise _nodelist_error(f"a node list with an invalid character in {part[:40]!r}", text, source)
            literals.append(part)
            continue
        ranges = []
        for word in part.split(","):
            match = _RANGE.fullmatch(word)
            if not match or int(match[2] or match[1]) < int(match[1]):
                raise _nodelist_error(f"a node list with an invalid range {word[:40]!r}", text, source)
            ranges.append((int(match[1]), int(match[2] or match[1]), len(match[1])))
        choices.append(ranges)
    # A very long name repeated MAX_NODES times would fill the memory before any later check.
    digits = [max(max(len(str(last)), width) for _, last, width in ranges) for ranges in choices]
    if sum(map(len, literals)) + sum(digits) > MAX_NAME:
        raise _nodelist_error(f"a node list with a name of more than {MAX_NAME} characters", text, source)
    return literals, choices


def compress_nodelist(names: Sequence[str]) -> str:
    """Return the names, in their order, as one Slurm node list, from which `parse_nodelist` returns the same names.

    Neighbouring names that differ only in their last number share a bracket. Nothing is sorted.
    """
    words = []
    for (start, end), group in groupby(map(_around_last_number, names), key=lambda parts: parts[:2]):
        numbers = _ranges([number for _, _, number in group])
        if end is None:
            words += [start] * len(numbers)
        elif len(numbers) == 1 and "-" not in numbers[0]:
            words.append(f"{start}{numbers[0]}{end}")
        else:
            words.append(f"{start}[{','.join(numbers)}]{end}")
    return ",".join(words)


def _around_last_number(name: str) -> tuple[str, str | None, str]:
    """Return the text before the last number of a name, the text after it, and the number.

    For a name without a number the text after it is None, so that the name shares no bracket.
    """
    match = _LAST_NUMBER.fullmatch(name)
    return (match[1], match[3], match[2]) if match else (name, None, "")


def _ranges(numbers: Sequence[str]) -> list[str]:
    """Join consecutive numbers of the same width into ranges."""
    runs: list[list[str]] = []
    for number in numbers:
        if number and runs and f"{int(runs[-1][-1]) + 1:0{len(runs[-1][0])}d}" == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


def parse_task_counts(text: str, source: str = "") -> tuple[int, ...]:
    """Return the number of tasks on each node: `2(x2),1` is (2, 2, 1).

    Args:
        text: the counts, as in SLURM_STEP_TASKS_PER_NODE.
        source: what an error calls them; by default the text itself.

    Raises:
        RequestError: the text is not a list of task counts, a node has no task, or there are more than MAX_NODES nodes.
    """
    counts: list[int] = []
    for word in text.split(","):
        match = _TASKS.fullmatch(word)
        if not match or int(match[1]) == 0 or (match[2] is not None and int(match[2]) == 0):
            raise _counts_error(f"{word[:40]!r} is not a number of tasks", text, source)
        repeats = int(match[2] or 1)
        if len(counts) + repeats > MAX_NODES:
            raise _counts_error(f"tasks on more than {MAX_NODES} nodes", text, source)
        counts += [int(match[1])] * repeats
    return tuple(counts)


def compress_task_counts(counts: Sequence[int]) -> str:
    """Return the counts as Slurm writes them: (2, 2, 1) is `2(x2),1`."""
    groups = [(count, len(list(group))) for count, group in groupby(counts)]
    return ",".join(f"{count}(x{repeats})" if repeats > 1 else str(count) for count, repeats in groups)


def _nodelist_error(summary: str, text: str, source: str) -> RequestError:
    return RequestError(
        summary,
        seen=_shown(text, source),
        expected="a list such as node[08-11],login1",
        fix="srun noether train …      (srun sets the list; do not write SLURM_* by hand)",
    )


def _counts_error(summary: str, text: str, source: str) -> RequestError:
    return RequestError(
        summary,
        seen=_shown(text, source),
        expected="task counts such as 2(x2),1",
        fix="srun noether train …      (srun sets the counts; do not write SLURM_* by hand)",
    )


def _shown(text: str, source: str) -> str:
    shown = text if len(text) <= 120 else f"{text[:100]}… ({len(text)} characters)"
    return f"{source}={shown}" if source else repr(shown)
