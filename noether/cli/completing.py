"""Complete a command line for the shells: commands, flags, settings, groups and their options, runs and files.

Imports only the standard library, because the shell waits for the answer. Commands and flags are read from the commands
themselves, the groups from their folder, and the settings from completion.txt, which `make docs` writes.
"""

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from glob import escape, glob
from inspect import signature
from pathlib import Path

from noether.cli.commands import COMMANDS, Command, CommandGroup, command_named, flags_of, programs
from noether.cli.mistakes import flag_of, key_of
from noether.common.errors import ExitCode, RequestError
from noether.config.groups import LAUNCH_SETTINGS, our_groups

SHELLS = ("bash", "zsh", "fish")
CHOICES: dict[str, tuple[str, ...]] = {
    "split": ("test", "validation", "train"), "weights": ("ema", "raw"), "checkpoint": ("best", "latest"),
    "format": ("text", "json", "github", "sarif"), "shell": SHELLS,
}  # fmt: skip
"""The possible values of each word or flag that has a fixed set of values."""
ANY = dict.fromkeys(("scripts", "paths", "folder", "cases", "map", "out", "mesh", "volume", "truth"), ("",))
FILES: dict[str, tuple[str, ...]] = {"hp": (".yaml",), "dataset_root": (), "output_path": (), **ANY}
"""{word, flag or setting: the allowed file name endings}. An empty tuple means that the value is a folder."""
RUNS = ("run", "runs", "resume", "initial_weights")
"""The words, flags and settings whose value is a run folder."""


def shell_script(shell: str) -> str:
    """Return the script that makes a shell complete noether's command lines."""
    if shell not in SHELLS:
        raise RequestError("unknown-shell", f"no completion for {shell}", seen=f"noether completion {shell}",
                           expected=", ".join(SHELLS), fix="noether completion bash")  # fmt: skip
    return (Path(__file__).parent / "shells" / f"noether.{shell}").read_text()


def complete_here(arguments: Sequence[str]) -> int:
    """Print the completions of the last word, one per line; return the exit code.

    `arguments` are the shell's name and the line up to the cursor: from bash as one text, from other shells as words.
    """
    shell, *rest = arguments
    words = split_line(rest[0]) if shell == "bash" else list(rest)
    found = complete(words)
    if shell == "bash":
        # bash also ends a word at = or :, and replaces only the text after the last such character.
        kept = max(words[-1].rfind(mark) for mark in "=:") + 1
        found = [re.sub(r"([\s\"'\\$`&;|<>()*?\[\]!])", r"\\\1", candidate[kept:]) for candidate in found]
    print("\n".join(found))
    return ExitCode.DONE


def split_line(line: str) -> list[str]:
    """Split a line up to the cursor into words. The last word is incomplete or empty; its quote may still be open."""
    for closing in ("", '"', "'"):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue  # A quote is open.
        return [*words, ""] if not closing and (not words or line[-1].isspace()) else words
    return [*line.split(), ""]


def complete(words: Sequence[str]) -> list[str]:
    """Return the completions of the last word; the first word is the program. After =, / or ., more can be typed."""
    program, *typed = words
    *before, word = [*filter(None, [programs().get(Path(program).name)]), *typed] or [""]
    before = before[before[1:2] == ["run"] and before[0] in ("plan", "submit") :]
    path, command = command_named(before)
    if isinstance(command, CommandGroup):
        return _starting(word, [*command, *([] if path else ["--help", "--version"])])
    if before == ["help"]:
        sections = {name.partition(".")[0] for name in _settings() if "." in name}
        return _starting(word, [*COMMANDS, "top-level", *sorted(sections)])
    return _of_command(command, before[len(path) :], word) if command else []


def _of_command(command: Command, before: Sequence[str], word: str) -> list[str]:
    own = flags_of(command)
    words = [name for name in signature(command).parameters if name not in own]
    settings_too, last = "overrides" in words, before[-1] if before else ""
    if last.startswith("--") and "=" not in last and own.get(key_of(last), None if settings_too else bool) is not bool:
        return _values(key_of(last), word)
    if word.startswith("--") and "=" in word:
        flag, _, value = word.partition("=")
        return [f"{flag}={found}" for found in _values(key_of(flag), value)]
    is_run = command is COMMANDS["run"]
    if is_run and (any(map(os.path.isfile, before)) or {"-m", "--module"} & {one.partition("=")[0] for one in before}):
        return _files(word, ("",))  # These words belong to the script.
    known = [name for name in _settings() if not is_run or name.partition(".")[0] in LAUNCH_SETTINGS]
    if word.startswith("-"):
        settings = _stepwise(word[2:], known) if settings_too else []
        return _starting(word, [*map(flag_of, own), "--help", *(f"--{name}" for name in settings)])
    if is_run and "=" not in word:
        return [*_starting(word, [f"{name}=" for name in known if "." not in name]), *_files(word, (".py",))]
    if settings_too:
        return _overrides(word) + (_files(word, (".yaml",)) if not before and word and "=" not in word else [])
    return _values(words[0], word) if words and words[0] != "name" else []


def _overrides(word: str) -> list[str]:
    sign = word[: len(word) - len(word.lstrip("+~"))]
    bare, groups = word[len(sign) :], our_groups()
    key, has_value, value = bare.partition("=")
    if has_value:
        return [f"{sign}{key}={found}" for found in groups.get(key) or _values(key, value) if found.startswith(value)]
    found = [f"{name}=" for name in groups if name.startswith(bare) and ("/" not in name or sign == "+")]
    found += [name if name.endswith(".") else f"{name}=" for name in _stepwise(bare, _settings())]
    return [f"{sign}{name}" for name in dict.fromkeys(found)] + ([] if sign else _starting(word, ["+experiment/"]))


def _stepwise(typed: str, names: Iterable[str]) -> list[str]:
    """Return the names that start with `typed`, each cut after its next dot, so that sections are completed first."""
    rests = (name[len(typed) :].partition(".") for name in names if name.startswith(typed))
    return list(dict.fromkeys(typed + rest + dot for rest, dot, _ in rests))


def _values(name: str, typed: str) -> list[str]:
    """Return the possible values, starting with `typed`, of the flag, word or setting `name`."""
    if name in RUNS:
        return [*(_starting(typed, ("auto", "latest")) if name == "resume" else []), *_runs(typed)]
    if choices := CHOICES.get(name) or _settings().get(name):
        return _starting(typed, choices)
    return _files(typed, FILES[name]) if name in FILES else []


def _runs(typed: str) -> list[str]:
    """Return the run folders in the typed folder and in `runs`; if there are none, return all matching folders."""
    places = {typed.rpartition("/")[0] or ("" if typed.startswith("/") else "."), "runs"}
    found = (str(config.parent) for place in sorted(places) for config in sorted(Path(place).glob("*/config.yaml")))
    return _starting(typed, dict.fromkeys(found)) or _files(typed, ())


def _files(typed: str, endings: tuple[str, ...]) -> list[str]:
    """Return the matching folders, and the matching files with one of the endings; hidden names only after a dot."""
    head, slash, start = typed.rpartition("/")
    place = os.path.expanduser(head + slash) or "."
    found = sorted(glob(f"{escape(start)}*", root_dir=place))
    names = {name: os.path.isdir(os.path.join(place, name)) for name in found}
    return [f"{head}{slash}{name}{'/' * folder}" for name, folder in names.items() if folder or name.endswith(endings)]


def _starting(typed: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(typed)]


def _settings() -> dict[str, list[str]]:
    """Return {setting: its choices}, from the words `name` and `name=choice|choice` of completion.txt."""
    words = (word.partition("=") for word in (Path(__file__).parent / "completion.txt").read_text().split())
    return {name: choices.split("|") if choices else [] for name, _, choices in words}
