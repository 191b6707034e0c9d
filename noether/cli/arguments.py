"""Reads a command line: a verb, its flags and Hydra overrides, in any order."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from noether.common.suggest import did_you_mean, nearest
from noether.errors import RequestError

# Words that are programs of an image, typed where its entrypoint takes a command of noether.
PROGRAMS = ("bash", "sh", "python", "python3", "ls", "cat", "env", "id", "pip", "nvidia-smi", "sleep")
# The flag that a word too many was probably meant for.
MEANT_FOR = {"predict": "mesh", "evaluate": "split", "logs": "rank", "status": "output_path"}
MESHES = (".stl", ".vtk", ".vtu", ".vtp", ".ply", ".obj", ".npy")
# What other programs call a flag.
OTHER_FLAGS = dict.fromkeys(("config", "config_name", "config_path", "config_file", "cfg", "c"), "hp") | {
    "n": "dry_run"
}
SHORT_FLAGS = {"-m": "--multirun", "-f": "--follow"}


@dataclass(frozen=True)
class CommandLine:
    """One command, ready to be called: every flag has its value, every override its place."""

    verb: str
    positional: tuple[str, ...]
    flags: Mapping[str, str | bool]


def parse_arguments(
    arguments: Sequence[str], verbs: Mapping[str, Callable[..., Any]], settings: Sequence[str], engine: str = ""
) -> CommandLine:
    """Reads a command line: `arguments` are those of the program, `settings` the top-level keys of the configuration.

    `--flag value`, `--flag=value` and bare `--flag` for a switch are the verb's own parameters; a flag that
    names a setting (`--devices 0,1`, `--trainer.max_epochs 3`) becomes the override `devices="0,1"`; everything
    else is positional (overrides, folders). A leading `FILE.yaml` is `--hp FILE.yaml`.

    Raises:
        RequestError: for an unknown verb or flag, with the nearest known one, and for a flag without its value;
            `engine` is whose container this is in, for the messages.
    """
    verb, *queue = arguments
    if verb not in verbs:
        raise _unknown_verb(verb, queue, verbs, engine)
    _refuse_two_commands(verb, queue, verbs)
    parameters = signature(verbs[verb]).parameters
    own = {name: p for name, p in parameters.items() if p.kind is Parameter.KEYWORD_ONLY}
    takes_overrides = "overrides" in parameters
    positional: list[str] = []
    flags: dict[str, str | bool] = {}
    while queue:
        word = queue.pop(0)
        long = SHORT_FLAGS.get(word, word)
        word = long if long[2:] in own else word
        if not word.startswith("--"):
            if word.startswith("-") and not word[1:2].isdigit():
                raise _unknown_flag(verb, word, queue, own, settings)
            positional.append(word)
            continue
        name, has_value, value = word[2:].partition("=")
        key = name.replace("-", "_")
        if key not in own and not (key.split(".")[0] in settings and takes_overrides):
            raise _unknown_flag(verb, word, queue, own, settings if takes_overrides else ())
        if key in own and own[key].annotation is bool:
            flags[key] = _switch(word, value) if has_value else True
            continue
        if not has_value:
            if not queue or queue[0].startswith("--"):
                asked = f"--{name} VALUE"
                raise RequestError("flag-without-value", f"--{name} has no value", seen=word, expected=asked, fix=asked)
            value = queue.pop(0)
        if key in own:
            # Parameters of a case may each be given by a flag of their own.
            flags[key] = f"{flags[key]},{value}" if key == "set" and key in flags else value
        else:
            positional.append(_as_override(key, value))
    _check_words(verb, positional, flags, parameters)
    if takes_overrides and "hp" in own and positional and re.fullmatch(r"[^=]+\.ya?ml", positional[0]):
        flags.setdefault("hp", positional.pop(0))
    return CommandLine(verb, tuple(positional), flags)


def _check_words(
    verb: str, typed: Sequence[str], flags: Mapping[str, str | bool], parameters: Mapping[str, Parameter]
) -> None:
    words = [p for p in parameters.values() if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    needed = [p.name for p in words if p.default is Parameter.empty]
    own = [name for name, p in parameters.items() if p.kind is Parameter.KEYWORD_ONLY]
    if any(p.kind is Parameter.VAR_POSITIONAL for p in parameters.values()):
        meshes = [word for word in typed if MEANT_FOR.get(verb) == "mesh" and word.endswith(MESHES)]
        runs = [word for word in typed if word not in meshes]
        if len(typed) < len(needed) or meshes:
            raise _wrong_words(verb, [*runs, *meshes], flags, needed * max(1, len(runs)), own)
    elif not len(needed) <= len(typed) <= len(words):
        raise _wrong_words(verb, typed, flags, needed, own)


def flag_of(name: str) -> str:
    """Returns the flag of a parameter, as it is typed."""
    return f"--{name.replace('_', '-')}"


def _refuse_two_commands(verb: str, rest: Sequence[str], verbs: Mapping[str, Callable[..., Any]]) -> None:
    if rest and rest[0] in verbs and "overrides" in signature(verbs[verb]).parameters:
        raise RequestError(
            "two-commands",
            f"{verb} and {rest[0]} are two commands",
            seen=shlex.join(["noether", verb, *rest]),
            expected="one command",
            fix=shlex.join(["noether", *rest]),
        )


def _unknown_verb(verb: str, rest: Sequence[str], verbs: Mapping[str, Any], engine: str) -> RequestError:
    near = nearest(verb, verbs)
    if verb.rpartition("/")[2] in PROGRAMS:
        near = None
    fix = shlex.join(["noether", *near.split(), *rest]) if near else "noether --help"
    if engine in ("docker", "podman") and not near:
        fix = f"{engine} run --entrypoint {verb} … IMAGE {shlex.join(rest)}".rstrip()
    elif engine == "apptainer" and not near:
        fix = f"apptainer exec IMAGE.sif {shlex.join([verb, *rest])}"
    elif engine in ("docker", "podman"):
        fix += f"      (another program of the image: {engine} run --entrypoint PROGRAM …)"
    return RequestError(
        "unknown-command",
        f"no command {did_you_mean(verb, verbs) if near else repr(verb)}",
        seen=f"noether {verb}",
        expected=", ".join(("--help", "--version") if verb.startswith("-") else verbs),
        fix=fix,
    )


def _wrong_words(
    verb: str, words: Sequence[str], flags: Mapping[str, str | bool], needed: Sequence[str], own: Iterable[str]
) -> RequestError:
    """Too many words, or too few: the whole command as it was probably meant."""
    missing = [{"run": "runs/NAME", "shell": "bash"}.get(name, name.upper()) for name in needed[len(words) :]]
    example, extra = [*words, *missing][: len(needed)], list(words[len(needed) :])
    given = [flag_of(name) + ("" if value is True else f"={value}") for name, value in flags.items()]
    meant = MEANT_FOR.get(verb)
    if meant is not None and meant not in flags and len(extra) == 1:
        is_run = verb == "status" and (Path(extra[0]) / "config.yaml").is_file()  # The flag takes the folder of runs.
        given += [flag_of(meant), str(Path(extra[0]).parent) if is_run else extra[0]]
    named, fix = " ".join(needed).upper(), shlex.join(["noether", *verb.split(), *example, *given])
    seen, expected = " ".join(["noether", verb, *words]), f"noether {verb} {named}"
    if missing:
        absent = " ".join(needed[len(words) :]).upper()
        return RequestError("missing-words", f"noether {verb} needs {absent}", seen=seen, expected=expected, fix=fix)
    return RequestError(
        "surplus-words",
        f"noether {verb} takes {named} and nothing else" if needed else f"noether {verb} takes flags only",
        seen=seen,
        expected=expected if needed else ", ".join(map(flag_of, own)),
        fix=fix,
    )


def _switch(word: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        switch = word.split("=")[0]
        raise RequestError(
            "unreadable-word", f"cannot read {word!r}", seen=word, expected=f"{switch}, or {switch}=false", fix=switch
        )
    return value.lower() == "true"


def _as_override(key: str, value: str) -> str:
    """A flag's value is one text to the shell, so its commas must not read as the values of a sweep."""
    if "," in value and not value.startswith(("[", "{", "'", '"')):
        from noether.config.sweep import quoted

        value = quoted(value)
    return f"{key}={value}"


def _unknown_flag(
    verb: str, word: str, following: Sequence[str], own: Mapping[str, Parameter], settings: Sequence[str]
) -> RequestError:
    """Explains an unknown flag; `following` are the words after it, the first of which may be its value."""
    typed, has_value, value = word.lstrip("-").partition("=")
    if not has_value and following and not following[0].startswith("-") and "=" not in following[0]:
        has_value, value = " ", following[0]
    name, line = _flag_meant(typed, value, own, settings)
    is_switch = name in own and own[name].annotation is bool
    given = has_value + value if name and not is_switch else ""
    near = flag_of(name) if name and not line else name
    return RequestError(
        "unknown-flag",
        f"noether {verb} has no flag {word.partition('=')[0]}" + (f", did you mean {near}?" if near else ""),
        seen=word + (given if has_value == " " else ""),
        expected=", ".join([*map(flag_of, own), *(["a setting"] if settings else [])]) or "no flags",
        fix=line or (near + given if near else f"noether {verb} --help"),
    )


def _flag_meant(typed: str, value: str, own: Mapping[str, Parameter], settings: Sequence[str]) -> tuple[str, str]:
    """Returns the flag or setting that was meant, and where it is no flag, the line to type; "" for none."""
    key = typed.replace("-", "_")
    if OTHER_FLAGS.get(key) in own:
        return OTHER_FLAGS[key], ""
    if settings and len(key) > 1:
        from noether.config.other_names import fields_of, setting_meant

        if fields_of(key):
            return key, ""
        found = setting_meant(key, value)
        if found is not None:
            return found.setting, "" if found.setting in settings and not found.remark else str(found)
    return nearest(key, [*own, *settings]) or "", ""
