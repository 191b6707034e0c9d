"""Finds the known name that was probably meant, and refuses the value of a flag that is none of those known."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import TypeVar

from noether.common.errors import RequestError

Number = TypeVar("Number", int, float)
_WORDS = {
    "validation": "dev",
    "evaluate": "eval test",
    "predict": "infer",
    "train": "fit",
    "latest": "last",
    "gpu": "cuda nvidia",
    "mps": "metal",
    "bf16": "bfloat16 bf16-mixed bf16-true",
    "fp16": "float16 half 16 16-mixed 16-true",
    "float32": "fp32 float 32 32-true no",
    "float64": "fp64 double 64 64-true",
    "adamw": "adam",
}
OTHER_NAMES = {word: ours for ours, words in _WORDS.items() for word in words.split()}
"""What other programs call the same thing; it counts where our name is among those that are known."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that was probably meant, or None where none is alike.

    The same letters in another case, another program's word for it, the one known name that begins so, the most similar
    spelling, or the longest that this one begins with, in this order.
    """
    ours, lowered = {one.lower(): one for one in known}, name.lower()
    exact = [word for word in (lowered, OTHER_NAMES.get(lowered)) if word in ours]
    begun = [one for one in ours if len(lowered) >= 3 and one.startswith(lowered)]
    # In a short name, one letter is a large part.
    similar = get_close_matches(lowered, ours, n=1, cutoff=0.6 if len(name) < 4 else 0.7)
    within = sorted((one for one in ours if len(one) >= 3 and lowered.startswith(one)), key=len, reverse=True)
    found = exact or (begun if len(begun) == 1 else similar or within)
    return ours[found[0] or ""] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `name, did you mean X?`, or `name; known: …` where nothing is alike."""
    known = sorted(known)
    match = nearest(name, known)
    return f"{name!r}, did you mean {match!r}?" if match else f"{name!r}; known: {', '.join(known)}"


def one_of(name: str, value: str, known: Sequence[str]) -> str:
    """Returns the value of a flag. RequestError: it is not among those that are known."""
    if value in known:
        return value
    raise RequestError("no-such-choice", f"no such {name}: {value}", seen=f"--{name} {value}",
                       expected=" or ".join(known), fix=f"--{name} {nearest(value, known) or known[0]}")  # fmt: skip


def number_of(name: str, text: str, kind: type[Number], low: float, high: float, fix: str) -> Number:
    """Returns the number that a flag was given, from `low` to `high`. RequestError: it is none, or another."""
    with suppress(ValueError):
        if low <= (value := kind(text)) <= high:
            return value
    raise RequestError("flag-not-such-a-number", f"--{name} takes a {'whole ' if kind is int else ''}number",
                       seen=f"--{name} {text}", expected=f"{low:.10g} to {high:.10g}", fix=fix)  # fmt: skip
