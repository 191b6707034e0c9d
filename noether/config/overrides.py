"""Reads command-line overrides in Hydra's grammar: `key=value`, `+key=value`, `~key`, `group=option`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from pydantic import BaseModel

from noether.common.suggest import did_you_mean, nearest
from noether.config.explain import is_number, twice_quoted
from noether.config.schema import RunConfig
from noether.config.section import sections_in
from noether.config.settings_file import configs_folder
from noether.config.sweep import parse_override
from noether.errors import RequestError


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Reads the overrides of one run.

    Raises:
        RequestError: a word is not an override, or a setting has several values.
    """
    parsed = []
    for text in overrides:
        try:
            override = parse_override(text)
        except HydraException:
            raise _unreadable(text) from None
        if override.is_sweep_override():
            key, _, value = text.partition("=")
            is_list = takes(key.lstrip("+"), tuple)
            fix = (
                f"{key}={shlex.quote(f'[{value}]')}" if is_list else f'{key}=\\"{value}\\"      (one text with commas)'
            )
            raise RequestError(
                "setting-given-twice",
                f"{key.lstrip('+')} was given several values",
                seen=text,
                expected=("a list in brackets" if is_list else "one value") + "; a comma separates values of a sweep",
                fix=fix,
            )
        parsed.append(override)
    return parsed


def _unreadable(text: str) -> RequestError:
    key, _, value = text.partition("=")
    if value:
        fix = f"{key}={twice_quoted(value)}"
    elif text.lstrip("+~").split(".")[0] in RunConfig.model_fields:
        fix = f"{text}=VALUE"
    else:
        fix = f"leave {shlex.quote(text)} out"
    return RequestError(
        "unreadable-override", f"cannot read {text!r}", seen=text, expected="key=value, +group=option or ~key", fix=fix
    )


def as_hydra_override(override: Override, roots: Sequence[Path]) -> str:
    """Returns the override in a form for which Hydra treats `key=value` and `+key=value` the same.

    The schema checks which keys exist, so the files need not contain them.

    Raises:
        RequestError: a group is given something other than an option, or there is no such group.
    """
    line = override.input_line
    assert line is not None
    is_group = any((root / override.key_or_group).is_dir() for root in roots)
    if override.is_delete() or (is_group and isinstance(override.value(), (str, list))):
        return line
    if is_group:
        options = sorted({file.stem for root in roots for file in (root / override.key_or_group).glob("*.yaml")})
        raise RequestError(
            "group-as-value",
            f"{override.key_or_group} is a group",
            seen=line,
            expected=f"the name of one of its files: {', '.join(options)}",
            fix=f"{override.key_or_group}={options[0] if options else 'NAME'}",
        )
    if "/" in override.key_or_group:
        groups = sorted(str(f.relative_to(configs_folder())) for f in configs_folder().rglob("*") if f.is_dir())
        near = nearest(override.key_or_group, groups)
        raise RequestError(
            "unknown-group",
            f"no group {did_you_mean(override.key_or_group, groups)}",
            seen=line,
            expected=f"one of {', '.join(groups)}",
            fix=f"+{near}={override.value()}" if near else f"leave {line} out",
        )
    key, _, text = line.lstrip("+").partition("=")
    if is_number(override.value()) and takes(key, str, Path):
        # Hydra's grammar would read run_id=40_1 (an array's job and task) as the number 401; quotes keep the text.
        return f"++{key}='{text.strip()}'"
    return f"++{key}={text}"


def takes(key: str, *wanted: type) -> bool:
    """Returns whether the schema knows a setting and accepts only values of these types for it, or null."""
    *parents, name = key.split(".")
    sections: list[type[BaseModel]] = [RunConfig]
    for part in parents:
        fields = [section.model_fields[part] for section in sections if part in section.model_fields]
        sections = [section for field in fields for section in sections_in(field.annotation)]
    found = [section.model_fields[name].annotation for section in sections if name in section.model_fields]
    unions = (Union, UnionType)
    members = {kind for one in found for kind in (get_args(one) if get_origin(one) in unions else (one,))}
    kinds = {get_origin(kind) or kind for kind in members}
    return bool(kinds) and kinds <= {*wanted, type(None)}
