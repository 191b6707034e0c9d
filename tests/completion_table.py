"""Generate noether/cli/completion.txt, from which shells complete settings (`make docs`)."""

from textwrap import fill
from typing import Any, Literal, get_args, get_origin

from noether.config.explain import fields_of, settings
from noether.config.schema import SECTIONS_WITH_KIND


def completion_table() -> str:
    """Return the names of the settings; a setting with choices is written name=choice|choice."""
    kinds = [f"{name}.kind" for name in SECTIONS_WITH_KIND]
    found = {name: [_choices(field.annotation) for field in fields_of(name)] for name in [*settings(), *kinds]}
    table = {name: dict.fromkeys(choice for one in choices for choice in one) for name, choices in found.items()}
    words = [f"{name}={'|'.join(choices)}" if choices else name for name, choices in table.items()]
    return fill(" ".join(words), 120, break_long_words=False, break_on_hyphens=False) + "\n"


def _choices(annotation: Any) -> list[str]:
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    # A setting whose value is a list or a mapping takes more than one of its choices.
    is_union = str(get_origin(annotation)) in ("typing.Union", "<class 'types.UnionType'>", "typing.Annotated")
    return [choice for each in get_args(annotation) for choice in _choices(each)] if is_union else []


if __name__ == "__main__":
    print(completion_table(), end="")
