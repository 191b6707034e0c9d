"""Find the known name closest to a mistyped one, and refuse unknown values of flags."""

import re
import unicodedata
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
"""{another program's name: noether's name for the same thing}"""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant, or None if none is similar.

    It tries, in this order: the same name in another case, another program's name for the same thing, the only known
    name that `name` abbreviates, the most similar spelling, and the longest known name with which `name` begins.
    """
    ours, lowered = {one.lower(): one for one in known}, name.lower()
    exact = [word for word in (lowered, OTHER_NAMES.get(lowered)) if word in ours]
    begun = [one for one in ours if len(lowered) >= 3 and one.startswith(lowered)]
    # In a short name, one letter is a large part of the name.
    similar = get_close_matches(lowered, ours, n=1, cutoff=0.6 if len(name) < 4 else 0.7)
    longest_first = sorted((one for one in ours if len(one) >= 3), key=len, reverse=True)
    within = [one for one in longest_first if lowered.startswith(one) and "/" not in lowered]
    found = exact or (begun if len(begun) == 1 else similar or within)
    return ours[found[0] or ""] if found else None


_UNSEEN = "“”„‟‘’‚‛«»`´…\u00ad\u200b\u200c\u200d\u2060\ufeff"
_PLAIN = str.maketrans(dict.fromkeys("‐‑‒–—―−", "-") | dict.fromkeys(_UNSEEN, ""))


def plain_characters(text: str) -> str:
    """Replace or remove typographic hyphens, quotes, spaces and ligatures that a PDF or an editor put into a word."""
    plain = unicodedata.normalize("NFKC", text.translate(_PLAIN)).strip()
    return f"-{plain}" if plain != text and re.match(r"-\w{2,}", plain) else plain  # Two hyphens became one dash.


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `name, did you mean X?`, or `name; known: …` if no known name is similar."""
    known = sorted(known)
    match = nearest(name, known)
    return f"{name!r}, did you mean {match!r}?" if match else f"{name!r}; known: {', '.join(known)}"


def one_of(name: str, value: str, known: Sequence[str]) -> str:
    """Return the value of the flag `name`. RequestError: the value is not one of `known`."""
    if value in known:
        return value
    raise RequestError("no-such-choice", f"no such {name}: {value}", seen=f"--{name} {value}",
                       expected=" or ".join(known), fix=f"--{name} {nearest(value, known) or known[0]}")  # fmt: skip


_UNITS = {
    "s": {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0},
    "min": {"s": 1 / 60, "m": 1.0, "h": 60.0, "d": 1440.0},
    "gb": {"k": 2**-20, "m": 2**-10, "g": 1.0, "t": 2**10},
    "": {"k": 1e3, "m": 1e6, "b": 1e9, "%": 0.01, "f": 1.0},
}
"""{unit of the setting: {first letter of another unit: its size in the setting's unit}}"""
_CLOCK = re.compile(r"\d+-\d+(:\d+){0,2}|\d+(:\d+){1,3}")
_WITH_UNIT = re.compile(r"([-+]?\d[\d_', ]*(?:\.\d*)?(?:e[-+]?\d+)?)\s*([a-z]*|%)")


def number_meant(text: str, unit: str = "", *, whole: bool = False) -> str | None:
    """Convert a number typed with a unit into a number in `unit`, the unit of a setting; None if that is impossible.

    Examples: 64G is 64 (gb); 1:00:00 and 0-1 are 60 (min), as for Slurm; 1k is 1000, 10 % is 0.1, 3 epochs is 3.
    """
    factors, number = _UNITS[unit], None
    with suppress(LookupError, ValueError, OverflowError):  # An unknown unit, or thousands of digits.
        if "d" in factors and _CLOCK.fullmatch(text):
            parts = (re.split("[-:]", text) + ["0"] * 3 * ("-" in text))[:4]
            number = sum(int(part) * factors[letter] for part, letter in zip(reversed(parts), "smhd", strict=False))
        elif match := _WITH_UNIT.fullmatch(text.strip().lower()):
            # The comma is a decimal point in 0,001 but separates thousands in 10,000.
            digits = re.sub("[_' ]", "", match[1]).replace(",", "" if whole else ".")
            plain = {match[2] if whole and not unit else "": 1.0}
            number = float(digits) * (plain | factors)[match[2][:1] if unit else match[2]]
    return None if number is None or (whole and 0 < number < 1) else f"{number:{'.0f' if whole else '.12g'}}"


def number_of(name: str, text: str, kind: type[Number], low: float, high: float, fix: str) -> Number:
    """Return the number that the flag `name` gives. RequestError: it is not a number from `low` to `high`."""
    for read in (text, number_meant(text, "s" if name == "timeout" else "", whole=kind is int)):
        with suppress(ValueError):
            if low <= (value := kind(read or "")) <= high:
                if read == text:
                    return value
                fix = f"--{name} {read}"
    raise RequestError("flag-not-such-a-number", f"--{name} takes a {'whole ' if kind is int else ''}number",
                       seen=f"--{name} {text}", expected=f"{low:.10g} to {high:.10g}", fix=fix)  # fmt: skip
