"""Reads command-line overrides in Hydra's grammar: `key=value`, `+key=value`, `~key`, `group=option`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from noether.common.suggest import did_you_mean, nearest
from noether.config.explain import as_override, is_number, twice_quoted
from noether.config.other_names import default_of, fields_of
from noether.config.settings_file import configs_folder
from noether.config.sweep import override_value, parse_override
from noether.errors import RequestError


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Reads the overrides of one run.

    Raises:
        RequestError: a word is not an override, or a setting has several values.
    """
    parsed = []
    for text, following in zip(overrides, [*overrides, ""][1:], strict=True):
        try:
            override = parse_override(text)
        except HydraException:
            raise _unreadable(text, following) from None
        key = override.key_or_group
        if not key or key.endswith("."):
            raise _unreadable(text, following)
        if key.split(".")[0] == "hydra":
            raise RequestError(
                "setting-of-hydra",
                f"{key} is a setting of Hydra's own program, which does not run here",
                seen=text,
                expected="a setting of noether: noether train --help",
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
        expected, fix = (
            "a list in brackets; a comma separates the values of a sweep",
            f"{key}={shlex.quote(f'[{value}]')}",
        )
    elif takes(name, str, Path):
        fix = f'{key}=\\"{value}\\"      (one text with commas; a sweep: -m {text})'
    else:
        fix = f"-m {shlex.quote(text)}      (a run for each value)"
    return RequestError(
        "setting-given-twice", f"{name} was given several values", seen=text, expected=expected, fix=fix
    )


def _unreadable(text: str, following: str) -> RequestError:
    """Explains a word that is not an override; `following` is the next one, which may be its value."""
    key, _, value = text.partition("=")
    colon, _, after = text.partition(":")
    seen = text
    if not key.strip("+~. ") or key.endswith("."):
        fix = f"leave {shlex.quote(text)} out"
    elif value:
        fix = f"{key}={value.lstrip('=')}" if value.startswith("=") else f"{key}={twice_quoted(value)}"
    elif after and fields_of(colon):
        fix = shlex.quote(f"{colon}={override_value(after.strip())}")
    elif fields_of(text) and following and "=" not in following and following[0] not in "+~":
        seen, fix = f"{text} {following}", shlex.quote(f"{text}={following}")
    elif default_of(text) is not None:
        fix = shlex.quote(f"{text}={as_override(default_of(text))}")
    else:
        fix = f"leave {shlex.quote(text)} out"
    return RequestError(
        "unreadable-override", f"cannot read {seen!r}", seen=seen, expected="key=value, +group=option or ~key", fix=fix
    )


def as_hydra_override(override: Override, roots: Sequence[Path]) -> str:
    """Returns the override in a form for which Hydra treats `key=value` and `+key=value` the same.

    The schema checks which keys exist, so the files need not contain them.

    Raises:
        RequestError: a group is given something other than an option, or there is no such group.
    """
    line = override.input_line
    assert line is not None
    group = override.key_or_group
    is_group = any((root / group).is_dir() for root in roots)
    options = sorted({file.stem for root in roots for file in (root / group).glob("*.yaml")})
    inner = sorted({folder.name for root in roots for folder in (root / group).glob("*/")})
    if is_group and not options and inner:
        raise _group_of_groups(line, override, inner, roots)
    if override.is_delete():
        return line
    if is_group and isinstance(override.value(), (str, list)):
        # No defaults list has an experiment, so that there is one way to choose one.
        return f"+{line}" if group.startswith("experiment/") and not line.startswith("+") else line
    if is_group:
        raise RequestError(
            "group-as-value",
            f"{group} is a group",
            seen=line,
            expected=f"the name of one of its files: {', '.join(options)}",
            fix=f"leave {shlex.quote(line)} out",
        )
    if "/" in group:
        dotted = group.replace("/", ".")
        if fields_of(dotted):
            raise RequestError(
                "setting-with-a-slash",
                f"{group} is written with dots",
                seen=line,
                expected="SECTION.SETTING=VALUE; a slash is for groups of files",
                fix=shlex.quote(f"{dotted}={line.partition('=')[2]}"),
            )
        groups = sorted(str(f.relative_to(configs_folder())) for f in configs_folder().rglob("*") if f.is_dir())
        near = nearest(group, groups)
        raise RequestError(
            "unknown-group",
            f"no group {did_you_mean(group, groups)}",
            seen=line,
            expected=f"one of {', '.join(groups)}",
            fix=f"+{near}={override.value()}" if near else f"leave {shlex.quote(line)} out",
        )
    key, _, text = line.lstrip("+").partition("=")
    if is_number(override.value()) and takes(key, str, Path):
        # Hydra's grammar would read run_id=40_1 (an array's job and task) as the number 401; quotes keep the text.
        return f"++{key}='{text.strip()}'"
    return f"++{key}={text}"


def _group_of_groups(line: str, override: Override, inner: Sequence[str], roots: Sequence[Path]) -> RequestError:
    """Explains `experiment=ellipsoid`, where experiment/ellipsoid holds the options."""
    group, value = override.key_or_group, str(override.value())
    chosen = nearest(value, inner) or inner[0]
    options = sorted({file.stem for root in roots for file in (root / group / chosen).glob("*.yaml")})
    option = "quick" if "quick" in options else options[0]
    return RequestError(
        "group-of-groups",
        f"{group} has no options, but groups: {', '.join(inner)}",
        seen=line,
        expected=f"+{group}/{chosen}= one of {', '.join(options)}",
        fix=f"+{group}/{chosen}={option}",
    )


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
