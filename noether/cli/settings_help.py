"""The settings as commands show them in the text of --help."""

import inspect

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


def group_options() -> dict[str, list[str]]:
    """Returns the options of each group of settings, older names left out."""
    groups: dict[str, list[str]] = {}
    for file in sorted(configs_folder().glob("*/**/*.yaml")):
        if not is_old_name(file.stem):
            groups.setdefault(file.parent.relative_to(configs_folder()).as_posix(), []).append(file.stem)
    return groups
