"""The settings as commands show them: in the text of --help, and in the file that completion reads."""

import inspect
import json
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from noether.cli.arguments import is_old_name
from noether.cli.help import READ_BY
from noether.config.schema import RunConfig
from noether.config.section import kind_of, sections_in
from noether.config.settings_file import configs_folder

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
    for name, options in group_options().items():
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
        lines += _described(section, kind)
    options = group_options().get(section, [])
    return "\n".join([*lines[1:], *(["", f"{section}=OPTION: {', '.join(options)}"] if options else [])])


def sections() -> list[str]:
    """Returns the names of the sections of settings."""
    return [name for name, field in RunConfig.model_fields.items() if sections_in(field.annotation)]


def _kinds(section: str) -> list[tuple[str, type[BaseModel]]]:
    """Returns the kinds of a section with their schemas; "" for a section of one kind."""
    if not section:
        return [("", RunConfig)]
    schemas = sections_in(RunConfig.model_fields[section].annotation)
    return [("my_package.MyClass" if kind_of(schema) == "" else kind_of(schema) or "", schema) for schema in schemas]


def _described(section: str, kind: str = "", only: tuple[str, ...] = ()) -> list[str]:
    schema = dict(_kinds(section))[kind]
    prefix = f"{section}." if section else ""
    return [
        f"  {prefix + name:<36} {field.description}"
        for name, field in schema.model_fields.items()
        if field.description and (not only or name in only)
    ]


def _named(section: str) -> list[str]:
    """Returns a line for each kind of a section: the names of its settings."""
    lines = []
    for kind, schema in _kinds(section):
        names = [name for name, field in schema.model_fields.items() if field.description]
        head = f"{section}.* of kind {kind}" if kind else f"{section}.*"
        if kind.endswith("MyClass"):
            names.append("and what your class takes")
        lines.append(f"  {head:<36} {', '.join(names)}")
    return lines


def completion_table() -> str:
    """Returns completion.json: settings with their choices, and groups with their options."""
    settings: dict[str, list[str]] = {}
    for name, field in RunConfig.model_fields.items():
        sections = sections_in(field.annotation)
        if not sections:
            settings[name] = _choices(field.annotation)
        for section in sections:
            for key, inner in section.model_fields.items():
                known = settings.setdefault(f"{name}.{key}", [])
                known += [choice for choice in _choices(inner.annotation) if choice not in known]
    return json.dumps({"settings": settings, "groups": group_options()}, indent=1) + "\n"


def group_options() -> dict[str, list[str]]:
    """Returns the options of each group of settings, older names left out."""
    groups: dict[str, list[str]] = {}
    for file in sorted(configs_folder().glob("*/**/*.yaml")):
        if not is_old_name(file.stem):
            groups.setdefault(file.parent.relative_to(configs_folder()).as_posix(), []).append(file.stem)
    return groups


def _choices(annotation: Any) -> list[str]:
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    # Lists and mappings of choices are not one choice.
    is_union = str(get_origin(annotation)) in ("typing.Union", "<class 'types.UnionType'>", "typing.Annotated")
    return [choice for each in get_args(annotation) for choice in _choices(each)] if is_union else []
