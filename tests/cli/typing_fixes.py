"""Types a command line in this process, and then the fix of its refusal, as a user would."""

import re
import shlex
from collections.abc import Sequence

import pytest

from noether.checkpoints.own_settings import load_run_config
from noether.cli.binding import bind
from noether.cli.entry import dispatch
from noether.common.errors import RequestError
from noether.config.sweep import expand_sweep


def run_line(words: Sequence[str]) -> None:
    """Runs a command line; `train` as far as its plan, which refuses the same. RequestError: it is refused."""
    if "--help" in words or words[0] == "ls":
        return
    if words and words[0] in ("train", "submit"):
        command = bind(words)
        hp = command.flags.get("hp")
        if command.flags.get("multirun"):
            for run in expand_sweep(command.words):
                load_run_config(run, hp if isinstance(hp, str) else None)
            return
        flags = [word for name, value in command.flags.items() if name == "hp" for word in (f"--{name}", str(value))]
        words = ["plan", *flags, *command.words]
    dispatch(list(words))


def refused(words: Sequence[str]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        run_line(words)
    return caught.value


def shown_fix(error: RequestError) -> str:
    """Returns what is to be typed: the first fix, without the remark that follows six spaces."""
    return re.split(r" {6}|\n", error.fix)[0]


def with_fix(words: Sequence[str], error: RequestError) -> list[str]:
    """Returns the command line after a user did what the first fix says."""
    fix = shown_fix(error)
    leave = re.fullmatch(r"leave (.+) out", fix)
    if leave:
        gone = shlex.split(leave[1])
        return _without(words, lambda word: word in gone or _key(word) == gone[0].lstrip("~+"))
    typed = shlex.split(fix)
    if typed[0] == "noether":
        return typed[1:]
    named = error.summary.split(" is not a run")[0]
    if len(typed) == 1 and named in words:  # Another path in its place.
        return [typed[0] if word == named else word for word in words]
    if typed[0] == "ls":
        return typed
    if typed[0] == "--hp":  # Another settings file in the place of the one that stands first.
        words = [word for word in words if not word.endswith((".yaml", ".yml"))]
    seen = [error.seen.split(" (")[0], *shlex.split(error.seen.replace("'", "").split(" (")[0])]
    seen = [part for word in seen for part in (word, *word.split(", ")[:1], *word.split(" and "))]
    keys = {_key(word) for word in typed if not word.startswith("-")}
    keys |= {_key(word) for word in seen if "=" in word}
    kept = _without(words, lambda word: _key(word) in keys or word in seen or word == typed[0].split("=")[0])
    return [*kept, *typed]


def _without(words: Sequence[str], is_gone) -> list[str]:
    """The words but those; with a flag goes its value."""
    kept, queue = [], list(words[1:])
    while queue:
        word = queue.pop(0)
        if not is_gone(word):
            kept.append(word)
        elif word.startswith("--") and "=" not in word and queue and "=" not in queue[0] and queue[0][0] != "-":
            queue.pop(0)
    return [words[0], *kept]


def _key(word: str) -> str:
    key = word.lstrip("+~").partition("=")[0].partition(":")[0]
    return key.removeprefix("--").replace("-", "_") if key.startswith("--") else key
