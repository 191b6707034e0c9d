"""Names, lists and counts as the report's sentences write them."""

from typing import Any

from noether.report.numbers import count_text


def in_words(name: str) -> str:
    """A name from a configuration or a file, as words."""
    return name.replace("_", " ")


def heading(name: str) -> str:
    """A name as a heading."""
    words = in_words(name)
    return words[:1].upper() + words[1:]


def full_stop(text: str) -> str:
    """A text as a sentence: a capital at the start, one full stop at the end."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


def plural(value: Any, one: str) -> str:
    """A count and its noun: "1 rank", "2 ranks"."""
    return f"{count_text(value)} {one if value == 1 else one + 's'}"
