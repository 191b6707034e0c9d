"""Reads the values of flags: one of several words, a number within limits."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

from noether.common.errors import RequestError
from noether.common.suggest import nearest

Number = TypeVar("Number", int, float)


def one_of(name: str, value: str, known: Sequence[str]) -> str:
    """Returns the value of a flag. RequestError: it is not among those that are known."""
    if value in known:
        return value
    raise RequestError(
        "no-such-choice",
        f"no such {name}: {value}",
        seen=f"--{name} {value}",
        expected=" or ".join(known),
        fix=f"--{name} {nearest(value, known) or known[0]}",
    )


def number_of(name: str, text: str, kind: type[Number], low: float, high: float, fix: str) -> Number:
    """Returns the number that a flag was given, from `low` to `high`. RequestError: it is none, or another."""
    with suppress(ValueError):
        if low <= (value := kind(text)) <= high:
            return value
    raise RequestError(
        "flag-not-such-a-number",
        f"--{name} takes a {'whole ' if kind is int else ''}number",
        seen=f"--{name} {text}",
        expected=f"{low:.10g} to {high:.10g}",
        fix=fix,
    )
