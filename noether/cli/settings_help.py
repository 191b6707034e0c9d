"""The settings as commands show them in the text of --help."""

import inspect
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from noether.cli.commands import GROUPS, VERBS
from noether.cli.help import READ_BY
from noether.common.suggest import nearest
from noether.config.explain import as_override
from noether.config.interval import Interval
from noether.config.origins import DEFAULT, settings_with_origins
from noether.config.other_names import setting_meant, settings
from noether.config.schema import RunConfig
from noether.config.section import kind_of, sections_in
from noether.config.settings_file import our_groups
from noether.errors import RequestError

OWN = "my_package."
IN_FULL = ("", "trainer", "slurm")
"""Sections whose settings are described one a line; the others are named, by kind."""


def settings_help(verb: str) -> str:
    """Returns the settings that a command reads, and the groups that set them."""
    lines = ["settings (SETTING=VALUE or --SETTING VALUE)"]
    if verb == "data describe":
        lines += _described("", "", ("dataset_root", "seed"))
    for section in READ_BY[verb]:
        lines += _described(section) if section in IN_FULL else _named(section)
    if verb == "submit":
        lines += ["", "and every setting of noether train: noether train --help"]
    lines += ["", "groups (GROUP=OPTION)"]
    for name, options in our_groups().items():
        if verb != "data describe" or name == "dataset":
            lines.append(f"  {'+' * name.startswith('experiment/') + name:<36} {', '.join(options)}")
    return "\n".join(
        [*lines, "", "noether help SECTION describes the settings of a section, of every kind: noether help model"]
    )


def section_help(section: str) -> str:
    """Returns the text of `noether help model`: every setting of a section, by kind."""
    lines = []
    for kind, found in _kinds(section):
        about = inspect.cleandoc(found.__doc__ or "").splitlines()[0]
        lines += ["", f"{section}.kind={kind}: {about}" if kind else f"{section}: {about}"]
        lines += _described(section, kind, types=True)
    options = our_groups().get(section, [])
    return "\n".join([*lines[1:], *(["", f"{section}=OPTION: {', '.join(options)}"] if options else [])])


def setting_help(name: str) -> str:
    """Returns the text of `noether help trainer.max_epochs`: one setting, with its type, default and plain value.

    Raises:
        RequestError: there is no such setting; the fix names the one that was meant.
    """
    known = settings()
    if name in known:
        plain = [one for one in settings_with_origins() if one.name == name and one.origin != DEFAULT]
        uses = [f"  noether train alone: {as_override(one.value)}, from {one.origin}" for one in plain]
        return "\n".join([f"{name}: {_typed(known[name])}", f"  {known[name].description}", *uses])
    having = [section for section in sections() if name in dict(_kinds(section))]
    near = having[0] if having else nearest(name, (*VERBS, *GROUPS, *sections(), *known))
    other = setting_meant(name, "")
    meant = near or (other.setting if other else "")
    raise RequestError(
        "no-help-for-that",
        f"no command, section or setting {name!r}" + (f", did you mean {meant!r}?" if meant else ""),
        seen=f"noether help {name}",
        expected=f"a command, a section ({', '.join(sections())}) or a setting such as trainer.max_epochs",
        fix=f"noether help {meant}".rstrip(),
    )


def sections() -> list[str]:
    """Returns the names of the sections of settings."""
    return [name for name, field in RunConfig.model_fields.items() if sections_in(field.annotation)]


def _kinds(section: str) -> list[tuple[str, type[BaseModel]]]:
    """Returns the kinds of a section with their schemas; "" for a section of one kind."""
    if not section:
        return [("", RunConfig)]
    schemas = sections_in(RunConfig.model_fields[section].annotation)
    own = OWN + ("my_curve" if section == "schedule" else "MyClass")
    return [(own if kind_of(schema) == "" else kind_of(schema) or "", schema) for schema in schemas]


def _described(section: str, kind: str = "", only: tuple[str, ...] = (), *, types: bool = False) -> list[str]:
    schema = dict(_kinds(section))[kind]
    prefix = f"{section}." if section else ""
    return [
        f"  {prefix + name:<36} {field.description}" + (f" [{_typed(field)}]" if types else "")
        for name, field in schema.model_fields.items()
        if field.description and (not only or name in only)
    ]


def _named(section: str) -> list[str]:
    """Returns a line for each kind of a section: the names of its settings."""
    lines = []
    for kind, schema in _kinds(section):
        names = [name for name, field in schema.model_fields.items() if field.description]
        head = f"{section}.* of kind {kind}" if kind else f"{section}.*"
        if kind.startswith(OWN):
            names.append("and what yours takes")
        lines.append(f"  {head:<36} {', '.join(names)}")
    return lines


def _typed(field: FieldInfo) -> str:
    """Returns a setting's type and default: "whole number or null, default null"."""
    members = dict.fromkeys(_words(field.annotation))
    default = "" if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
    shown = as_override(default) if not isinstance(default, (BaseModel, dict)) else ""
    return " or ".join(members) + (f", default {shown}" if shown else "")


def _words(annotation: Any) -> list[str]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return [" | ".join(map(str, inner))]
    if origin in (Union, UnionType):
        return [word for one in inner for word in _words(one)]
    if origin is Annotated:
        return _words(inner[0])
    if origin is tuple:
        return ["list of " + " and ".join(dict.fromkeys(f"{_words(one)[0]}s" for one in inner if one is not Ellipsis))]
    names = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path", type(None): "null"}
    return [names.get(annotation) or ("length" if annotation is Interval else "settings")]
