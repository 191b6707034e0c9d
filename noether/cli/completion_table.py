"""What the schema and the groups know of settings, as the file that completion reads without them."""

import json
from typing import Any, Literal, get_args, get_origin

from noether.cli.arguments import is_old_name
from noether.config.schema import RunConfig
from noether.config.section import sections_in
from noether.config.settings_file import configs_folder


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
