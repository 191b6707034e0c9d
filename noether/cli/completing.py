"""Completes a command line for the shells: verbs, flags, settings, groups and their options, runs and files.

Only the standard library: a shell waits for the answer. What the schema knows was written into completion.json by
`make docs`; verbs and flags are read from the commands themselves.
"""

import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from glob import escape, glob
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from noether.cli.arguments import flag_of
from noether.cli.commands import FIRST_WORDS, GROUPS, VERBS, programs
from noether.errors import ExitCode, RequestError

SHELLS = ("bash", "zsh", "fish")
CHOICES = {
    "split": ("test", "validation", "train"),
    "weights": ("ema", "raw"),
    "checkpoint": ("best", "latest"),
    "format": ("text", "json", "github", "sarif"),
}
"""Values of the commands' own flags."""
FILES: dict[str, tuple[str, ...]] = {
    "hp": (".yaml",),
    **dict.fromkeys(("scripts", "paths", "folder", "cases", "map", "out", "mesh", "volume", "truth"), ("",)),
    **dict.fromkeys(("dataset_root", "output_path"), ()),
}
"""Words, flags and settings that name a file, with the endings that it may have; without any: a folder."""
RUNS = ("run", "runs", "resume", "initial_weights")
"""Words, flags and settings that name a run folder."""


def shell_script(shell: str) -> str:
    """Returns the script that makes a shell complete noether's command lines."""
    if shell not in SHELLS:
        raise RequestError(
            "unknown-shell",
            f"no completion for {shell}",
            seen=f"noether completion {shell}",
            expected=", ".join(SHELLS),
            fix="noether completion bash",
        )
    return (Path(__file__).parent / "shells" / f"noether.{shell}").read_text()


def complete_here(arguments: Sequence[str]) -> int:
    """Prints the candidates for the last word, one a line; returns the exit code.

    `arguments` are the shell, then for bash the line up to the cursor, for the others its words, the program first.
    """
    shell, *rest = arguments
    words = split_line(rest[0]) if shell == "bash" else list(rest)
    found = complete(words)
    if shell == "bash":
        # bash takes = and : for the ends of words, and replaces what comes after the last.
        kept = max(words[-1].rfind(mark) for mark in "=:") + 1
        found = [re.sub(r"([\s\"'\\$`&;|<>()*?\[\]!])", r"\\\1", candidate[kept:]) for candidate in found]
    print("\n".join(found))
    return ExitCode.DONE


def split_line(line: str) -> list[str]:
    """Returns the words of a line up to the cursor, the last one begun or empty; an open quote ends with the line."""
    for closing in ("", '"', "'"):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue  # A quote is open.
        return [*words, ""] if not closing and (not words or line[-1].isspace()) else words
    return [*line.split(), ""]


def complete(words: Sequence[str]) -> list[str]:
    """Returns what the last word may become, the program being the first; what ends in =, / or . goes on."""
    program, *typed = words
    verb = programs().get(Path(program).name)
    typed = [verb, *typed] if verb else typed
    if not typed:
        return []
    *before, word = typed
    if not before:
        return _starting(word, ["help", "--help", "--version", *FIRST_WORDS])
    if before == ["help"]:
        sections = {name.partition(".")[0] for name in _table()["settings"] if "." in name}
        return _starting(word, [*FIRST_WORDS, *sorted(sections)])
    if before[0] in GROUPS:
        if len(before) == 1:
            return _starting(word, [v.partition(" ")[2] for v in VERBS if v.startswith(f"{before[0]} ")])
        before = [" ".join(before[:2]), *before[2:]]
    return _of_verb(before[0], before[1:], word) if before[0] in VERBS else []


def _of_verb(verb: str, before: Sequence[str], word: str) -> list[str]:
    parameters = signature(VERBS[verb]).parameters
    own = {name: each for name, each in parameters.items() if each.kind is Parameter.KEYWORD_ONLY}
    takes_settings = "overrides" in parameters
    last = before[-1] if before else ""
    if last.startswith("--") and "=" not in last:
        name = last[2:].replace("-", "_")
        if own[name].annotation is not bool if name in own else takes_settings:
            return _values(name, word)
    if word.startswith("--") and "=" in word:
        flag, _, value = word.partition("=")
        return [f"{flag}={found}" for found in _values(flag[2:].replace("-", "_"), value)]
    if word.startswith("-"):
        settings = _stepwise(word[2:], _table()["settings"]) if takes_settings else []
        return _starting(word, [*map(flag_of, own), "--help", *(f"--{name}" for name in settings)])
    words = [name for name, each in parameters.items() if each.kind is not Parameter.KEYWORD_ONLY]
    if takes_settings:
        return _overrides(word) + (_files(word, (".yaml",)) if not before and word and "=" not in word else [])
    if verb == "completion":
        return _starting(word, SHELLS) if not before else []
    return _values(words[0], word) if words and words[0] != "name" else []


def _overrides(word: str) -> list[str]:
    sign = word[: len(word) - len(word.lstrip("+~"))]
    bare, table = word[len(sign) :], _table()
    key, has_value, value = bare.partition("=")
    if has_value:
        return [f"{sign}{key}={found}" for found in table["groups"].get(key) or _values(key, value)
                if found.startswith(value)]  # fmt: skip
    found = [f"{name}=" for name in table["groups"] if name.startswith(bare) and ("/" not in name or sign == "+")]
    found += [name if name.endswith(".") else f"{name}=" for name in _stepwise(bare, table["settings"])]
    return [f"{sign}{name}" for name in dict.fromkeys(found)] + ([] if sign else _starting(word, ["+experiment/"]))


def _stepwise(typed: str, names: Iterable[str]) -> list[str]:
    """Returns the names that begin so, each up to its next dot: sections first, then what is in them."""
    found: dict[str, None] = {}
    for name in names:
        if name.startswith(typed):
            rest, dot, _ = name[len(typed) :].partition(".")
            found[typed + rest + dot] = None
    return list(found)


def _values(name: str, typed: str) -> list[str]:
    """Returns the values that a flag, a word or a setting of this name may have."""
    if name in RUNS:
        return [*(_starting(typed, ("auto", "latest")) if name == "resume" else []), *_runs(typed)]
    choices = CHOICES.get(name) or _table()["settings"].get(name) or ()
    if choices:
        return _starting(typed, choices)
    return _files(typed, FILES[name]) if name in FILES else []


def _runs(typed: str) -> list[str]:
    """Returns run folders, and folders on the way to them; those of `runs` from the beginning on."""
    places = {typed.rpartition("/")[0] or ("" if typed.startswith("/") else "."), "runs"}
    found = (str(config.parent) for place in sorted(places) for config in sorted(Path(place).glob("*/config.yaml")))
    return _starting(typed, dict.fromkeys(found)) or _files(typed, ())


def _files(typed: str, endings: tuple[str, ...]) -> list[str]:
    """Returns folders, and files with one of the endings; hidden ones where a dot was typed."""
    head, slash, start = typed.rpartition("/")
    place = os.path.expanduser(head + slash) or "."
    found = []
    for name in sorted(glob(f"{escape(start)}*", root_dir=place)):
        if os.path.isdir(os.path.join(place, name)):
            found.append(f"{head}{slash}{name}/")
        elif name.endswith(endings):
            found.append(f"{head}{slash}{name}")
    return found


def _starting(typed: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(typed)]


def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((Path(__file__).parent / "completion.json").read_text())
    return table
