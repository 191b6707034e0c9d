"""Reads command-line overrides in Hydra's grammar: `key=value`, `+key=value`, `~key`, `group=option`."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from noether.common.errors import RequestError
from noether.config.explain import as_override, is_number, twice_quoted
from noether.config.layers import SearchPath, no_option
from noether.config.other_names import default_of, fields_of
from noether.config.sweep import override_value, parse_override


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Reads the overrides of one run.

    Raises:
        RequestError: a word is not an override, or a setting has several values.
    """
    parsed = []
    for place, text in enumerate(overrides):
        following = list(overrides[place + 1 : place + 3])
        try:
            override = parse_override(text)
        except HydraException:
            raise _unreadable(text, following) from None
        key = override.key_or_group
        unreadable = override.package is not None or (override.is_delete() and "=" in text)
        if unreadable or not key or key.endswith(".") or ("/" in key and fields_of(key.replace("/", "."))):
            raise _unreadable(text, following)
        if key.split(".")[0] == "hydra":
            raise RequestError(
                "setting-of-hydra",
                f"{key} is a setting of Hydra's own program, which does not run here",
                seen=text,
                expected="a setting of noether: noether help top-level",
                fix=f"output_path={override.value()}" if key == "hydra.run.dir" else f"leave {shlex.quote(text)} out",
            )
        if override.is_sweep_override():
            raise _several_values(text)
        parsed.append(override)
    return parsed


def _several_values(text: str) -> RequestError:
    key, _, value = text.partition("=")
    name, expected = key.lstrip("+"), "one value; a comma separates the values of a sweep"
    if takes(name, tuple):
        expected = "a list in brackets; a comma separates the values of a sweep"
        fix = f"{key}={shlex.quote(f'[{value}]')}"
    elif takes(name, str, Path):
        fix = f'{key}=\\"{value}\\"      (one text with commas; a sweep: -m {text})'
    else:
        fix = f"-m {shlex.quote(text)}      (a run for each value)"
    return RequestError(
        "setting-given-twice", f"{name} was given several values", seen=text, expected=expected, fix=fix
    )


def _unreadable(text: str, following: Sequence[str]) -> RequestError:
    """Explains a word that is not an override; `following` are the next two: its value, or `=` and its value."""
    key, _, value = text.partition("=")
    colon, _, after = text.partition(":")
    dotted, seen = re.sub("[/:]", ".", key), text
    given = "".join(following if following[:1] == ["="] else following[:1]).removeprefix("=")
    if "@" in key or (value and key.startswith("~")):
        fix = key if key.startswith("~") else f"{key.partition('@')[0]}={value}"
    elif value and dotted != key and fields_of(dotted):
        fix = shlex.quote(f"{dotted}={value}")
    elif text.endswith((".yaml", ".yml")):
        fix = f"--hp {shlex.quote(text)}"
    elif not key.strip("+~. ") or key.endswith("."):
        fix = f"leave {shlex.quote(text)} out"
    elif value:
        fix = f"{key}={value.lstrip('=')}" if value.startswith("=") else f"{key}={twice_quoted(value)}"
    elif after and fields_of(colon):
        given = after.strip()
        given = given if re.fullmatch(r"[\w.+-]+", given) else override_value(given)
        fix = shlex.quote(f"{colon}={given}")
    elif fields_of(text) and given and "=" not in given and given[0] not in "+~":
        spaced = following[: 2 if following[0] == "=" else 1]
        seen, fix = " ".join([text, *spaced]), shlex.quote(f"{text}={given}")
    elif (default := default_of(fields_of(text))) is not None:
        fix = shlex.quote(f"{text}={as_override(default)}")
    else:
        fix = f"leave {shlex.quote(text)} out"
    return RequestError(
        "unreadable-override", f"cannot read {seen!r}", seen=seen, expected="key=value, +group=option or ~key", fix=fix
    )


def chosen_options(overrides: Sequence[Override], path: SearchPath) -> dict[str, list[str]]:
    """Returns the options that the overrides choose, by their group: none for a group that is left out by `~group`.

    Raises:
        RequestError: there is no such option or group.
    """
    chosen: dict[str, list[str]] = {}
    for override in overrides:
        group, value = override.key_or_group, cast(Any, override.value())
        if "/" in group or any((folder / group).is_dir() for folder in path.folders):
            chosen[group] = [] if override.is_delete() else value if isinstance(value, list) else [value]
            for option in chosen[group]:
                if not isinstance(option, str) or path.find(f"{group}/{option}") is None:
                    raise no_option(f"{group}/{option}", path, str(override.input_line))
    return chosen


def setting_value(override: Override) -> Any:
    """Returns the value that an override gives to a setting.

    Hydra's grammar would read run_id=40_1 (an array's job and task) as the number 401: for a text, it stays one.
    """
    value = override.value()
    if is_number(value) and takes(override.key_or_group, str, Path):
        return str(override.input_line).partition("=")[2].strip()
    return value


def takes(key: str, *wanted: type) -> bool:
    """Returns whether the schema knows a setting and accepts only values of these types for it, or null."""
    unions = (Union, UnionType)
    members = {
        kind
        for one in (field.annotation for field in fields_of(key))
        for kind in (get_args(one) if get_origin(one) in unions else (one,))
    }
    kinds = {get_origin(kind) or kind for kind in members}
    return bool(kinds) and kinds <= {*wanted, type(None)}
