"""Parse the node lists and task counts that Slurm writes into its variables."""

import re
from itertools import product
from math import prod

from noether.common.errors import RequestError
from noether.common.sanitize import shortened

MAX_NODES = 65_536
"""The maximum number of nodes: no Slurm cluster is larger. A longer list is refused before it is expanded."""
MAX_NAME = 255
"""The longest possible host name, in characters (RFC 1035)."""
LIST, COUNTS = "a list such as node[08-11],login1", "task counts such as 2(x2),1"

_ITEM = re.compile(r"(?!,)([A-Za-z0-9._-]*+(?:\[[0-9,-]*+\][A-Za-z0-9._-]*+)*+),")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def parse_nodelist(text: str, source: str = "") -> tuple[str, ...]:
    """Return the node names in a Slurm node list, in the list's order, including repeated names.

    `a1,b[2-3,7],c` means a1 b2 b3 b7 c. `node[098-101]` keeps the width of the first number: node098 … node101.
    If a name has several brackets, the last one varies fastest. Text can follow a bracket (`node[1-2]-ib`).

    `source`: the name of the list in error messages; by default, the list itself.
    RequestError: the text is not a node list, or names more than MAX_NODES nodes.
    """
    names: list[str] = []
    position, rest = 0, f"{text},"
    try:
        if text.count(",") >= MAX_NODES:  # Each comma, inside or outside brackets, separates two names.
            raise ValueError(f"names more than {MAX_NODES} nodes")
        while position < len(rest):
            if (item := _ITEM.match(rest, position)) is None:
                raise ValueError(f"cannot be read at {rest[position : position + 40]!r}")
            names += _names_of(item[1], MAX_NODES - len(names))
            position = item.end()
    except ValueError as error:
        raise _refusal("node-list-invalid", f"a node list that {error}", LIST, text, source) from None
    return tuple(names)


def _names_of(item: str, most: int) -> list[str]:
    """Return the names in one item of a list, such as `rack[1-2]node[08-11]-ib`. ValueError: the item is invalid."""
    literals, brackets = re.split(r"\[.*?\]", item), re.findall(r"\[(.*?)\]", item)
    ranges = [[_range(word) for word in bracket.split(",")] for bracket in brackets]
    # A very long name, repeated MAX_NODES times, would fill the memory.
    digits = [max(max(len(str(last)), width) for _, last, width in group) for group in ranges]
    if sum(map(len, literals)) + sum(digits) > MAX_NAME:
        raise ValueError(f"has a name of more than {MAX_NAME} characters")
    if prod(sum(last - first + 1 for first, last, _ in group) for group in ranges) > most:
        raise ValueError(f"names more than {MAX_NODES} nodes")
    numbers = [[f"{n:0{width}d}" for first, last, width in group for n in range(first, last + 1)] for group in ranges]
    return ["{}".join(literals).format(*chosen) for chosen in product(*numbers)]


def _range(word: str) -> tuple[int, int, int]:
    """Return the first and last number of `08-11` or `7`, and the width in digits of the first."""
    match = _RANGE.fullmatch(word)
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(f"has an invalid range {word[:40]!r}")
    return int(match[1]), int(match[2] or match[1]), len(match[1])


def parse_task_counts(text: str, source: str = "") -> tuple[int, ...]:
    """Return the task count of each node: `2(x2),1` means (2, 2, 1). `source`: see `parse_nodelist`.

    RequestError: the text is not a list of task counts, a node has no task, or there are more than MAX_NODES nodes.
    """
    counts: list[int] = []
    for word in text.split(","):
        match = _TASKS.fullmatch(word)
        tasks, repeats = (int(match[1]), int(match[2] or 1)) if match else (0, 0)
        if tasks == 0 or repeats == 0:
            raise _refusal("task-counts-invalid", f"{word[:40]!r} is not a number of tasks", COUNTS, text, source)
        if len(counts) + repeats > MAX_NODES:
            raise _refusal("too-many-nodes", f"tasks on more than {MAX_NODES} nodes", COUNTS, text, source)
        counts += [tasks] * repeats
    return tuple(counts)


def _refusal(code: str, summary: str, expected: str, text: str, source: str) -> RequestError:
    shown = shortened(text, 120)
    return RequestError(code, summary, seen=f"{source}={shown}" if source else repr(shown), expected=expected,
                        fix="srun noether train …      (srun sets it; do not write SLURM_* by hand)")  # fmt: skip
