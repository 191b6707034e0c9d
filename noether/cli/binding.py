"""Bind a command line with Fire. Fire only builds a description of the call: nothing runs before all words are bound.

This module adds what Fire cannot know: some flags are switches, any setting can be written as a flag, and FILE.yaml as
the first word means --hp FILE.yaml. `mistakes.py` explains words that cannot be bound.
"""

import contextlib
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import Parameter, cleandoc, signature
from itertools import pairwise
from pathlib import Path
from typing import Any

import fire
from fire.core import FireExit
from fire.decorators import SetParseFn

from noether.cli import commands, mistakes
from noether.cli.commands import COMMANDS, SHARED, Command, CommandGroup, Memberless
from noether.cli.mistakes import NO_VALUE, flag_of, is_flag, key_of
from noether.common.errors import ExitCode, RequestError
from noether.config.sweep import quoted

ASKS_FOR_HELP = {"--help", "-h"}
SCRIPT = "--"
"""The word that separates the words of `noether run` from those of the script."""


@dataclass(frozen=True)
class Call(Memberless):
    """A command, with the words and flags that it is called with."""

    verb: str
    function: Command
    words: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> int:
        """Run the command and return its exit code."""
        hp = self.flags.get("hp")
        if hp and Path(hp).is_fifo() and self.verb != "submit":
            from noether.config.layers import kept_pipe

            with kept_pipe(hp) as file:
                return replace(self, flags={**self.flags, "hp": file}).run()
        return self.function(*self.words, **self.flags) or ExitCode.DONE


def bind(words: Sequence[str], engine: str = "") -> Call:
    """Return the call that a command line requests, possibly one that shows help. `engine`: the container engine or "".

    RequestError: a word is missing, unknown or superfluous; the error's fix is the line that was probably meant.
    """
    words, script = _before_script(list(words))
    mistakes.check_characters(words)
    line, for_fire = _spelled_out(list(words))
    if for_fire[:1] == ["--completion"]:
        return bind(["completion", *(for_fire[1:] or ["bash"])])
    if not {*for_fire} <= ASKS_FOR_HELP:
        raise mistakes.not_fires(line, for_fire)
    said = io.StringIO()
    try:  # By itself, Fire would split the line at a lone hyphen, show help in a pager, and print its own errors.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            found = fire.Fire(_table(), [*line, "--", *for_fire, "--separator=\0"], name="noether", serialize=repr)
    except FireExit as end:
        if end.code:
            raise mistakes.refusal(end.trace, words, engine) from None
        # Fire's help offers one-letter flags that Fire then rejects as ambiguous, and -h for --hp.
        letters = _letters(getattr(end.trace.GetResult(), "command", print))
        text = re.sub(r"(?m)^    (-\w), (?=--)", lambda one: one[0] if one[1] in letters else "    ", said.getvalue())
        return Call("help", print, (text.rstrip(),))
    if isinstance(found, CommandGroup):
        return bind([*line, "--help"])
    call = _arranged(found, words, line)
    return replace(call, words=(*call.words, *script))


def _before_script(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words into noether's words and, for `noether run`, the script's words, which noether does not read.

    The script is the first word that is neither a flag, nor the value of a flag, nor a setting.
    """
    for alias, meant in ((["plan", "run"], "--dry-run"), (["submit", "run"], "--submit")):
        if words[:2] == alias:
            words = ["run", meant, *words[2:]]
    place, run = 1, COMMANDS["run"]
    own = commands.flags_of(run)
    while words[:1] == ["run"] and place < len(words) and not ASKS_FOR_HELP & {words[place]}:
        word = words[place]
        name = _letters(run).get(word.partition("=")[0], key_of(word))
        if word == SCRIPT:
            return words[:place], words[place:]
        if name == "module":
            place += 1 if "=" in word else 2
            return words[:place], [SCRIPT, *words[place:]]
        if is_flag(word):
            is_switch = bool in (own.get(name), own.get(re.sub("^no_?", "", name)))
            alone = is_switch and "".join(words[place + 1 : place + 2]).lower() not in ("true", "false")
            place += 1 if "=" in word or alone else 2
        elif re.match(r"[+~]*[\w.]+=", word) and not Path(word).exists():
            place += 1
        else:
            return words[:place], [SCRIPT, *words[place:]]
    return words, []


def read_train_line(words: tuple[str, ...]) -> tuple[tuple[str, ...], str | None] | None:
    """Return the overrides and settings file in `noether WORDS`; None unless this is a valid `train` or `run` line."""
    with contextlib.suppress(RequestError):
        call = bind(words)
        own = call.words[: [*call.words, SCRIPT].index(SCRIPT)]
        return (own, call.flags.get("hp")) if call.verb in ("train", "run") else None
    return None


def _spelled_out(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words for the command and the words for Fire, rewritten so that Fire binds all of them as intended.

    Help becomes Fire's own flag; a one-letter flag becomes its long form; a switch becomes --switch=True, because Fire
    would take the next word as its value; a flag without a value gets NO_VALUE, because Fire would give it "True".
    """
    words[:1] = [{"--version": "version", "--help": "help", "-h": "help"}.get(word, word) for word in words[:1]]
    if words[:1] == ["help"] and (len(words) == 1 or words[1] in COMMANDS):
        words = [*words[1:], "--help"]
    path, command = commands.command_named(words)
    typed, for_fire = fire.parser.SeparateFlagArgs(words)
    if ASKS_FOR_HELP & {*typed, *for_fire}:
        return path, ["--help"]
    if not callable(command):
        return typed, for_fire
    own, line = commands.flags_of(command), list[str]()
    letters = _letters(command)
    for word, after in pairwise([*typed, "--"]):
        flag, equals, value = word.partition("=")
        key = key_of(word) if is_flag(word) else ""
        name, unset = letters.get(flag, key if key in own else ""), re.sub("^no_?", "", key)
        flag = f"--{name}" if name else flag
        if equals or not is_flag(word):
            line.append(flag + equals + value)
        elif not name and own.get(unset) is bool:
            line.append(f"--{unset}=False")
        elif own.get(name) is bool and after.lower() not in ("true", "false"):
            line.append(f"{flag}=True")
        else:
            line.append(f"{flag}={NO_VALUE}" if is_flag(after) else flag)
    return line, for_fire


def _letters(command: Command) -> dict[str, str]:
    """Return {one-letter flag: long name} for each flag whose initial no other flag or word of the command shares."""
    first = Counter(name[0] for name in [*commands.flags_of(command), *commands.words_of(command), "help"])
    return {f"-{name[0]}": name for name in commands.flags_of(command) if first[name[0]] == 1}


def _table(group: CommandGroup = COMMANDS, before: str = "") -> CommandGroup:
    """Return the commands in the form that Fire receives."""
    as_typed = SetParseFn(str)  # Fire would read 0,1 as a tuple; the schema decides what 1e-3 means.
    return CommandGroup(cleandoc(group.__doc__ or ""), **{
        name: _table(one, f"{name} ") if isinstance(one, CommandGroup) else as_typed(_Description(before + name, one))
        for name, one in group.items()
    })  # fmt: skip


class _Description(Memberless):
    """A command as Fire receives it: with the command's signature and docstring, but calling it only returns a Call."""

    def __init__(self, verb: str, command: Command) -> None:
        own = signature(command).parameters
        # Fire's help shows each parameter's type; it would show `str | None` as Optional.
        shown = [one.replace(annotation=one.annotation if one.annotation is bool else str) for one in own.values()]
        if commands.takes_settings(command):
            shown.append(Parameter("settings", Parameter.VAR_KEYWORD))
        self.verb, self.command, self.__name__ = verb, command, command.__name__
        self.__signature__ = signature(command).replace(parameters=shown)
        text, _, described = cleandoc(command.__doc__ or "").partition("\n\nArgs:\n")
        said = [f"    {one.name}: {SHARED[one.name]}" for one in shown
                if one.name in SHARED and f"    {one.name}: " not in described]  # fmt: skip
        self.__doc__ = "\n".join([text, "", "Args:", *filter(None, [described]), *said])

    def __call__(self, /, *words: str, **flags: str) -> Call:
        return Call(self.verb, self.command, words, flags)

    def __get__(self, *owner: object) -> "_Description":
        return self  # `inspect`, and therefore Fire, treats an object with this method as a routine.


def _arranged(call: Call, typed: Sequence[str], line: Sequence[str]) -> Call:
    """Return the call with its switches as booleans, its --set flags joined into one, and settings as overrides."""
    command, words, given = call.function, list(call.words), dict(call.flags)
    own = commands.flags_of(command)
    mistakes.check_words(call, line)
    if "set" in given:
        values = [after if word == "--set" else word[6:] for word, after in pairwise([*line, ""])
                  if word.partition("=")[0] == "--set"]  # fmt: skip
        given["set"] = NO_VALUE if NO_VALUE in values else ",".join(values)
    if commands.takes_settings(command) and "hp" not in given and words and re.fullmatch(r"[^=]+\.ya?ml", words[0]):
        given["hp"] = words.pop(0)
    for name, value in [*given.items()]:
        if name not in own:
            words.append(_override(call, name, given.pop(name), typed))
        elif value in (NO_VALUE, ""):
            raise mistakes.flag_without_value(name)
        elif own[name] is bool:
            if value.lower() not in ("true", "false"):
                flag = flag_of(name)
                raise RequestError("unreadable-word", f"cannot read {flag}={value}", seen=f"{flag}={value}",
                                   expected=f"{flag}, or {flag}=false", fix=flag)  # fmt: skip
            given[name] = value.lower() == "true"
    return replace(call, words=tuple(words), flags=given)


def _override(call: Call, name: str, value: str, typed: Sequence[str]) -> str:
    """Return a setting's flag as an override; a value that contains a comma is quoted, so that it is not a sweep."""
    from noether.config.schema import RunConfig

    if name.partition(".")[0] not in RunConfig.model_fields:
        raise mistakes.unknown_flag(call.verb, name, value, typed)
    attached = any("=" in word for word in typed if is_flag(word) and key_of(word) == name)
    override = re.match(r"[+~]*(\w+)[\w./]*=", "" if attached else value)
    if value == NO_VALUE or (override and override[1] in RunConfig.model_fields):
        raise mistakes.flag_without_value(name)
    for word in call.words:
        other, _, its_value = word.lstrip("+~").partition("=")
        nested = f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}.")
        if other == name or (nested and "{" in value + its_value):  # Fire loses the order of flag and override.
            raise RequestError("flag-and-override", f"{name} is given as a flag and as an override",
                               seen=f"{flag_of(name)} {value} and {word}", expected="only one of them",
                               fix=f"leave {word} out")  # fmt: skip
    if "," in value and not value.startswith(("[", "{", "'", '"')):
        value = quoted(value)
    return f"{name}={value}"
