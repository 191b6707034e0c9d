"""Writes noether/cli/completion.txt, from which shells complete settings: `make docs`."""

from textwrap import fill
from typing import Any, Literal, get_args, get_origin

from noether.config.schema import RunConfig
from noether.config.section import sections_in


def completion_table() -> str:
    """Return the settings, those with choices as name=choice|choice."""
    settings: dict[str, list[str]] = {}
    for name, field in RunConfig.model_fields.items():
        sections = sections_in(field.annotation)
        if not sections:
            settings[name] = _choices(field.annotation)
        for section in sections:
            for key, inner in section.model_fields.items():
                known = settings.setdefault(f"{name}.{key}", [])
                known += [choice for choice in _choices(inner.annotation) if choice not in known]
    words = [f"{name}={'|'.join(choices)}" if choices else name for name, choices in settings.items()]
    return fill(" ".join(words), 120, break_long_words=False, break_on_hyphens=False) + "\n"


def _choices(annotation: Any) -> list[str]:
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    # Lists and mappings of choices are not one choice.
    is_union = str(get_origin(annotation)) in ("typing.Union", "<class 'types.UnionType'>", "typing.Annotated")
    return [choice for each in get_args(annotation) for choice in _choices(each)] if is_union else []


if __name__ == "__main__":
    print(completion_table(), end="")
