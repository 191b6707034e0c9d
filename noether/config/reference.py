"""Generates docs/configuration.md, the reference of all settings, from the schema."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from noether.config.schema import RunConfig
from noether.config.section import kind_of

INTRODUCTION = """\
# Configuration

This page is generated from the schema by `make docs`; a test checks that it is up to date.

Settings are written as `key=value` or `+key=value`, as a flag (`--key value`), or in a YAML file (`--hp FILE`); `~key`
removes what a file sets. `group=option` (`model=upt`) chooses a whole section from the files in `configs/`, and
`+experiment/GROUP=NAME` chooses an experiment, which sets several sections. Lengths are written `10 updates`,
`1 epoch`, `5000 samples`, and in schedules also `5 %` of the run. A length given on the command line
(`trainer.max_updates=5`) replaces the one in a file.

The column `default` is what a key has if no file sets it. `noether train` starts from `configs/train.yaml`, which sets
many of them (36 epochs, a checkpoint every 5 epochs); `config.yaml` in the run's folder has what a run uses.
"""


def settings_reference() -> str:
    """Returns the reference as Markdown: one table for the top level, and one for each section and kind."""
    parts = [INTRODUCTION, *_section("Top level", "", RunConfig)]
    for name, field in RunConfig.model_fields.items():
        for section in sections_in(field.annotation):
            kind = kind_of(section)
            title = f"`{name}`" + (f", kind `{kind}`" if kind else "" if kind is None else ", your own")
            parts += _section(title, (section.__doc__ or "").split("\n\n")[0].replace("\n", " "), section)
    return "\n".join(parts).rstrip() + "\n"


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Returns the sections that an annotation allows, including those inside unions and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for argument in get_args(annotation) for section in sections_in(argument)]


def _section(title: str, about: str, section: type[BaseModel]) -> Iterator[str]:
    yield f"\n## {title}\n"
    if about:
        yield about + "\n"
    yield "| key | default | meaning |\n|---|---|---|"
    for name, field in section.model_fields.items():
        if field.description:
            yield f"| `{name}` | {_default(field)} | {field.description} |"
    for name, field in section.model_fields.items():
        # A mapping of sections by name, such as task.fields.NAME, has its own keys.
        for inner in sections_in(field.annotation) if "dict" in str(field.annotation) else ():
            yield from _section(f"{title}: each entry of `{name}`", (inner.__doc__ or "").split("\n\n")[0], inner)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "null"
    if isinstance(value, tuple):
        value = list(value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
