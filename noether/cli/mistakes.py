"""Explain words that Fire could not bind: from Fire's trace, make an error that names what was probably meant."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noether.cli.commands import COMMANDS, Command, CommandGroup, flags_of, takes_settings, verbs, words_of
from noether.common.container import program_line
from noether.common.errors import RequestError
from noether.common.suggest import did_you_mean, nearest, plain_characters
from noether.config.groups import LAUNCH_SETTINGS

# Programs in the image. Users type their names after `docker run IMAGE`, where a command of noether is expected.
PROGRAMS = ("bash", "sh", "python", "python3", "ls", "cat", "env", "id", "pip", "nvidia-smi", "sleep")
MESH = r".*\.(stl|vtk|vtu|vtp|ply|obj|npy)"
MEANT_FOR = {
    "predict": ("mesh", MESH), "sensitivity": ("mesh", MESH), "evaluate": ("split", "test|validation|train"),
    "logs": ("rank", r"\d+"), "status": ("output_path", ".+"), "data inspect": ("out", r".*\.ya?ml"),
}  # fmt: skip
"""{command: (flag, pattern)}: an extra word that matches the pattern was probably meant as the value of the flag."""
# {other programs' name for a flag: ours}.
ALIASES = {"n": "dry_run"} | dict.fromkeys(
    ("config", "config_name", "config_path", "config_file", "cfg", "c", "cn", "cp", "cd", "config_dir"), "hp"
)
OF_FIRE = ("--interactive", "-i", "--separator", "--trace", "-t", "--verbose", "-v")
NO_VALUE = "\0"  # Marks a flag without a value, because no word of a command line can contain this character.


def is_flag(word: str) -> bool:
    """Return whether Fire treats a word as a flag. Negative numbers, such as -1, are not flags."""
    return re.match("--|-[a-zA-Z]", word) is not None


def flag_of(name: str) -> str:
    """Return the flag of a parameter as it is typed, such as --dry-run for dry_run."""
    return f"--{name.replace('_', '-')}"


def key_of(word: str) -> str:
    """Return the name of a typed flag's parameter, such as dry_run for --dry-run, as Fire derives it."""
    return word.partition("=")[0].lstrip("-").replace("-", "_")


def refusal(trace: Any, typed: Sequence[str], engine: str) -> RequestError:
    """Return the error for a line that Fire could not bind. The trace's last element holds the reason and the words."""
    found, reason, left = trace.GetResult(), trace.elements[-1].ErrorAsStr(), list(trace.elements[-1].args)
    if isinstance(found, CommandGroup):
        return _unknown_command(typed, sum(len(element.args or ()) for element in trace.elements[:-1]), engine)
    if callable(found):
        return _missing_words(found.verb, found.command, typed[len(found.verb.split()) :], reason)
    flags = [place for place, word in enumerate(left) if is_flag(word)]
    if not flags:
        return _surplus_words(found, left)
    _, equals, value = left[flags[0]].partition("=")
    return unknown_flag(found.verb, key_of(left[flags[0]]), value if equals else left[flags[0] + 1], typed)


def check_words(call: Any, line: Sequence[str]) -> None:
    """Refuse words that Fire would bind wrongly: repeated flags, missing values, a second command, a bare mesh."""
    verb, words = call.verb, list(call.words)
    if NO_VALUE in words:
        raise flag_without_value(words_of(call.function)[words.index(NO_VALUE)])
    keys = [key_of(word) for word in line if is_flag(word) and key_of(word) != "set"]
    if twice := next((key for key in keys if keys.count(key) > 1), ""):
        raise RequestError("flag-twice", f"{flag_of(twice)} is given twice", seen=_line(*line),
                           expected="one value", fix=f"leave one {flag_of(twice)} out")  # fmt: skip
    if words and words[0] in COMMANDS and takes_settings(call.function):
        rest = [*words[1:], *_flags_typed(call.flags)]
        raise RequestError("two-commands", f"{verb} and {words[0]} are two commands",
                           seen=_line(*verb.split(), words[0], *rest), expected="only one command",
                           fix=_line(*([words[0]] if verb == "train" else verb.split()), *rest))  # fmt: skip
    if verb == "predict" and (meshes := [word for word in words if re.fullmatch(MESH, word)]):
        raise _surplus_words(call, meshes)


def flag_without_value(name: str) -> RequestError:
    """Return the error for a flag without a value, which ends the line or precedes another flag."""
    flag = flag_of(name)
    return RequestError("flag-without-value", f"{flag} has no value", seen=flag,
                        expected=f"{flag} VALUE", fix=f"{flag} VALUE")  # fmt: skip


def not_fires(line: Sequence[str], after: Sequence[str]) -> RequestError:
    """Return the error for words after `--`, which Fire would ignore or take as its own flags."""
    return RequestError("words-after-two-hyphens", "the words after -- go to python-fire, not to the command",
                        seen=shlex.join(["--", *after]), expected="-- --help or -- --completion SHELL",
                        fix=_line(*line, *(word for word in after if word not in OF_FIRE)))  # fmt: skip


def unknown_flag(verb: str, name: str, value: str, typed: Sequence[str]) -> RequestError:
    """Return the error for a flag that the command does not have."""
    own, settings = flags_of(verbs()[verb]), ["a setting"] * takes_settings(verbs()[verb])
    near, line = _flag_meant(verb, name, value, own)
    flag = next(word.partition("=")[0] for word in typed if is_flag(word) and key_of(word) == name)
    if verb == "run" and re.split(r"[.= ]", line.lstrip("-"))[0] not in LAUNCH_SETTINGS and not near:
        line = f"noether run train.py {flag} …      (the script's own words follow it)"
    taken = "" if own.get(near) is bool else " VALUE" if value == NO_VALUE else f" {shlex.quote(value)}"
    said = re.match(r"(?!leave|noether)'?(--hp|\w[\w.]*)[= ]", line)
    shown, line = flag_of(near) if near else said[1] if said else "", re.sub("^leave .* out", f"leave {flag} out", line)
    return RequestError("unknown-flag",
                        f"noether {verb} has no flag {flag}" + (f", did you mean {shown}?" if shown else ""),
                        seen=flag if value == NO_VALUE else f"{flag} {value}",
                        expected=", ".join([*map(flag_of, own), *settings]) or "no flags",
                        fix=line or (flag_of(near) + taken if near else f"noether {verb} --help"))  # fmt: skip


def _flag_meant(verb: str, typed: str, value: str, own: Mapping[str, Any]) -> tuple[str, str]:
    """Return the flag that was meant, or else the line to type: (flag, "") or ("", line), or ("", "") if unknown."""
    from noether.config.explain import other_words, resolve_alias
    from noether.config.layers import file_meant
    from noether.config.schema import RunConfig

    own_word = f"{verb}.{typed}" in other_words()[0]
    if ALIASES.get(typed) in own and not own_word:
        is_name = ALIASES[typed] == "hp" and value != NO_VALUE and not value.endswith((".yaml", ".yml"))
        return ("", file_meant(value)) if is_name else (ALIASES[typed], "")
    if not own_word and (len(typed) == 1 or any(typed in flags_of(command) for command in verbs().values())):
        return "", ""  # The flag belongs to another command.
    if not takes_settings(verbs()[verb]) and not own_word:
        return nearest(typed, own) or "", ""
    given = value if value != NO_VALUE else "false" if typed.startswith("no_") else "VALUE"
    found = resolve_alias(typed, given, verb=verb)
    return ("", str(found)) if found else (nearest(typed, [*own, *RunConfig.model_fields]) or "", "")


def check_characters(words: Sequence[str]) -> None:
    """Refuse words with typographic hyphens or quotes, which are copied from PDFs and editors."""
    for word in words:
        plain = plain_characters(word)
        if (plain[:1] == "-" and not word.partition("=")[0].isascii()) or word.startswith(("“", "‘", "«", "„", "`")):
            odd = ", ".join(f"U+{ord(one):04X}" for one in dict.fromkeys(word) if not one.isascii()) or word[0]
            raise RequestError("typeset-characters", f"{word} has characters that only look like ASCII", expected=plain,
                               seen=f"{word}, with {odd}", fix=_line(*map(plain_characters, words)))  # fmt: skip


def _unknown_command(typed: Sequence[str], known: int, engine: str) -> RequestError:
    """Return the error for a line whose first `known` words name a group and whose next word is not a command."""
    path, rest = list(typed[: known + 1]), typed[known + 1 :]
    name, names = " ".join(path), [*verbs(), *COMMANDS]
    near = nearest(name, names) if path[-1].rpartition("/")[2] not in PROGRAMS and "=" not in name else None
    other = ["train", *typed] if "=" in name else [*path[:-1], "--help"]
    fix = _line(*near.split(), *rest) if near else _line(*other)
    if engine and not near:
        fix = program_line(engine, typed)
    elif engine in ("docker", "podman"):
        fix += f"      (another program of the image: {engine} run --entrypoint PROGRAM …)"
    return RequestError("unknown-command", f"no command {did_you_mean(name, names) if near else repr(name)}",
                        seen=f"noether {name}",
                        expected=", ".join(("--help", "--version") if name.startswith("-") else dict.fromkeys(names)),
                        fix=fix)  # fmt: skip


def _missing_words(verb: str, command: Command, rest: Sequence[str], reason: str) -> RequestError:
    """Return the error for a line that lacks a required word, or has a one-letter flag that Fire finds ambiguous."""
    path, needed = verb.split(), words_of(command)
    absent = needed[next((place for place, name in enumerate(needed) if reason.endswith(f" {name}")), len(needed)) :]
    if not absent:
        return unknown_flag(verb, key_of(reason.split("'")[1]), NO_VALUE, rest)
    meant = [{"run": "runs/NAME", "shell": "bash"}.get(name, name.upper()) for name in absent]
    line = (*meant, *rest) if absent == needed else (*rest, *meant)
    return RequestError("missing-words", f"noether {verb} needs {' '.join(absent).upper()}",
                        seen=_line(*path, *rest), expected=f"noether {verb} {' '.join(needed).upper()}",
                        fix=_line(*path, *line))  # fmt: skip


def _surplus_words(call: Any, extra: Sequence[str]) -> RequestError:
    """Return the error for extra words; its fix is the whole command that was probably meant."""
    own, path, (meant, like) = flags_of(call.function), call.verb.split(), MEANT_FOR.get(call.verb, ("", ""))
    words, given = [word for word in call.words if word not in extra], _flags_typed(call.flags)
    added = [flag_of(word) for word in dict.fromkeys(extra) if own.get(word) is bool and word not in call.flags]
    if meant and meant not in call.flags and len(extra) == 1 and re.fullmatch(like, extra[0]):
        # `status` takes the folder that contains runs, not a run's folder or a file in it.
        named = [Path(extra[0]), Path("runs", extra[0])] * (meant == "output_path")
        around = [one for place in named for one in (place, *place.parents) if os.path.isfile(one / "config.yaml")]
        added = [flag_of(meant), str(around[0].parent) if around else extra[0]]
    expected = " ".join(["noether", *path, *(name.upper() for name in words_of(call.function)), *map(flag_of, own)])
    fix = _line(*path, *(words or ["runs/NAME"] * len(words_of(call.function))), *given, *added)
    return RequestError("surplus-words", f"noether {call.verb} takes no word {shlex.join(extra)}",
                        seen=_line(*path, *words, *extra, *given), expected=expected, fix=fix)  # fmt: skip


def _flags_typed(flags: Mapping[str, str]) -> list[str]:
    return [flag_of(name) + f"={value}" * (value != "True") for name, value in flags.items()]


def _line(*words: str) -> str:
    return shlex.join(["noether", *(word.removesuffix(f"={NO_VALUE}") for word in words if word != NO_VALUE)])
