"""Generate the tables of docs/configuration.md, the reference of all settings, from the schema (`make docs`)."""

from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from noether.config.schema import RunConfig
from noether.config.section import kind_of, sections_in


def settings_reference() -> str:
    """Return the reference as Markdown: one table for the top level, and one for each section and kind."""
    parts = list(_section("Top level", "", RunConfig))
    for name, field in RunConfig.model_fields.items():
        for section in sections_in(field.annotation):
            kind = kind_of(section)
            title = f"`{name}`" + (f", kind `{kind}`" if kind else "" if kind is None else ", your own")
            parts += _section(title, (section.__doc__ or "").split("\n\n")[0].replace("\n", " "), section)
    return "\n".join(parts).strip() + "\n"


def _section(title: str, about: str, section: type[BaseModel]) -> Iterator[str]:
    yield f"\n## {title}\n"
    if about:
        yield about + "\n"
    yield "| key | default | meaning |\n|---|---|---|"
    for name, field in section.model_fields.items():
        if field.description:
            yield f"| `{name}` | {_default(field)} | {field.description} |"
    for name, field in section.model_fields.items():
        # In a mapping of names to sections, such as task.fields, each section has keys, too.
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


if __name__ == "__main__":
    print(settings_reference(), end="")
