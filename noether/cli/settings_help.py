"""Describe settings for `noether help`: the top-level settings, a section with all its kinds, or one setting."""

import inspect
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from noether.cli.commands import COMMANDS
from noether.common.errors import RequestError
from noether.common.suggest import nearest
from noether.config.compose import DEFAULT, settings_with_origins
from noether.config.explain import SECTIONS, as_override, resolve_alias, sections_at, settings
from noether.config.groups import our_groups
from noether.config.schema import RunConfig
from noether.config.section import Interval, kind_of

TOP = "top-level"  # The name for settings outside any section.
SECTION_NAMES = (TOP, *SECTIONS[1:])


def section_help(section: str) -> str:
    """Return the text of `noether help model`: the settings of a section, by kind; for TOP, the groups too."""
    if section == TOP:
        groups = [f"  {'+' * ('/' in name) + name:<36} {', '.join(options)}" for name, options in our_groups().items()]
        return "\n".join([*_described("", RunConfig), "", "groups (GROUP=OPTION)", *groups])
    lines = []
    for kind, schema in _kinds(section).items():
        about = inspect.cleandoc(schema.__doc__ or "").splitlines()[0]
        lines += ["", f"{section}.kind={kind}: {about}" if kind else f"{section}: {about}"]
        lines += _described(f"{section}.", schema)
    options = our_groups().get(section, [])
    return "\n".join([*lines[1:], *(["", f"{section}=OPTION: {', '.join(options)}"] if options else [])])


def setting_help(name: str) -> str:
    """Return the text of `noether help trainer.max_epochs`: one setting's type, default, and value in `noether train`.

    RequestError: there is no such setting; the fix names the one that was meant.
    """
    known = settings()
    if name in known:
        plain = [one for one in settings_with_origins() if one.name == name and one.origin != DEFAULT]
        uses = [f"  noether train alone: {as_override(one.value)}, from {one.origin}" for one in plain]
        return "\n".join([f"{name}: {_typed(known[name])}", f"  {known[name].description}", *uses])
    having = [section for section in SECTIONS[1:] if name in _kinds(section)]
    near = having[0] if having else nearest(name, (*COMMANDS, *SECTION_NAMES, *known))
    other = resolve_alias(name, "")
    meant = near or (other.setting if other else "")
    raise RequestError(
        "no-help-for-that",
        f"no command, section or setting {name!r}" + (f", did you mean {meant!r}?" if meant else ""),
        seen=f"noether help {name}",
        expected=f"a command, a section ({', '.join(SECTION_NAMES)}) or a setting such as trainer.max_epochs",
        fix=f"noether help {meant}".rstrip(),
    )


def _kinds(section: str) -> dict[str, type[BaseModel]]:
    """Return {kind: schema} of a section; the kind is "" if the section has only one kind."""
    own = "my_package." + ("my_curve" if section == "schedule" else "MyClass")
    return {own if kind_of(one) == "" else kind_of(one) or "": one for one in sections_at(section)}


def _described(prefix: str, schema: type[BaseModel]) -> list[str]:
    fields = {prefix + name: field for name, field in schema.model_fields.items() if field.description}
    return [f"  {name:<36} {field.description} [{_typed(field)}]" for name, field in fields.items()]


def _typed(field: FieldInfo) -> str:
    """Return a setting's type and default in words, such as "whole number or null, default null"."""
    default = "" if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
    shown = as_override(default) if not isinstance(default, (BaseModel, dict)) else ""
    return " or ".join(dict.fromkeys(_words(field.annotation))) + (f", default {shown}" if shown else "")


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
