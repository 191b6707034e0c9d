"""Reads a command line: a verb, its flags and Hydra overrides, in any order."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

from noether.common.suggest import did_you_mean, nearest
from noether.errors import RequestError

# Words that are programs of an image, typed where its entrypoint takes a command of noether.
PROGRAMS = ("bash", "sh", "python", "python3", "ls", "cat", "env", "id", "pip", "nvidia-smi", "sleep")
# The flag that a word too many was probably meant for.
MEANT_FOR = {"predict": "mesh", "evaluate": "split", "logs": "rank", "status": "output_path"}
OLD_SUFFIX = "_multi_gpu"
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
                raise _unknown_flag(verb, word, own, settings)
            positional.append(word)
            continue
        name, has_value, value = word[2:].partition("=")
        key = name.replace("-", "_")
        if key not in own and not (key.split(".")[0] in settings and takes_overrides):
            raise _unknown_flag(verb, word, own, settings if takes_overrides else ())
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
    if not any(p.kind is Parameter.VAR_POSITIONAL for p in parameters.values()):
        words = [p for p in parameters.values() if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
        needed = [p.name for p in words if p.default is Parameter.empty]
        if not len(needed) <= len(positional) <= len(words):
            raise _wrong_words(verb, positional, flags, needed, own)
    if takes_overrides and "hp" in own and positional and re.fullmatch(r"[^=]+\.ya?ml", positional[0]):
        flags.setdefault("hp", positional.pop(0))
    return CommandLine(verb, tuple(positional), flags)


def flag_of(name: str) -> str:
    """Returns the flag of a parameter, as it is typed."""
    return f"--{name.replace('_', '-')}"


def _unknown_verb(verb: str, rest: Sequence[str], verbs: Mapping[str, Any], engine: str) -> RequestError:
    near = nearest(verb, verbs)
    if verb.rpartition("/")[2] in PROGRAMS:
        near = None
    fix = shlex.join(["noether", near, *rest]) if near else "noether --help"
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
    missing = ("runs/NAME" if name == "run" else name.upper() for name in needed[len(words) :])
    example, extra = [*words, *missing][: len(needed)], list(words[len(needed) :])
    given = [flag_of(name) + ("" if value is True else f"={value}") for name, value in flags.items()]
    meant = MEANT_FOR.get(verb)
    if meant is not None and meant not in flags and len(extra) == 1:
        given += [flag_of(meant), *extra]
    named = " ".join(needed).upper()
    return RequestError(
        "surplus-words",
        f"noether {verb} takes {named} and nothing else" if needed else f"noether {verb} takes flags only",
        seen=" ".join(words) or "nothing",
        expected=f"noether {verb} {named}" if needed else ", ".join(map(flag_of, own)),
        fix=shlex.join(["noether", *verb.split(), *example, *given]),
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
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{key}={value}"


def _unknown_flag(verb: str, word: str, own: Mapping[str, Any], settings: Sequence[str]) -> RequestError:
    typed = word.lstrip("-").partition("=")[0]
    known = [name.replace("_", "-") for name in (*own, *settings)]
    near = nearest(typed, known)
    return RequestError(
        "unknown-flag",
        f"noether {verb} has no flag {word.partition('=')[0]}" + (f", did you mean --{near}?" if near else ""),
        seen=word,
        expected=", ".join([*map(flag_of, own), *(["a setting"] if settings else [])]) or "no flags",
        fix=f"--{near}" if near else f"noether {verb} --help",
    )


def notes_on_old_names(words: Sequence[str]) -> list[str]:
    """Returns a line for each group option that is typed by an older name, which works all the same."""
    old = [word for word in words if word.lstrip("+").startswith("experiment/") and is_old_name(word)]
    return [f"{word} is now {word.removesuffix(OLD_SUFFIX)}" for word in old]


def is_old_name(option: str) -> bool:
    """Returns whether a group's option is an older name of another one."""
    return option.endswith(OLD_SUFFIX)
