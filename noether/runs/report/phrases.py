"""Names as the report's sentences write them."""

from collections.abc import Mapping
from typing import Any


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


def axes_words(space: Mapping[str, Any]) -> str:
    """Says which axis is which, such as "x across, y up, z along the wind"; nothing where the data set does not say."""
    named = {}
    for what, words in (("up", "up"), ("wind", "along the wind")):
        direction = [float(value) for value in space.get(what, ())]
        main = max(range(len(direction)), key=lambda axis: abs(direction[axis]), default=None)
        if main is not None:
            named[main] = words if direction[main] > 0 else f"{words}, backwards"
    if len(named) == 2:
        named[({0, 1, 2} - set(named)).pop()] = "across"
    return ", ".join(f"{'xyz'[axis]} {words}" for axis, words in sorted(named.items()))
