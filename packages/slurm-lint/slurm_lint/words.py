"""Helpers for texts: usage errors, nouns with a count, similar names, and texts that are safe to print."""

import re
from collections.abc import Iterable
from difflib import get_close_matches


class UsageError(Exception):
    """The linter was called incorrectly. The text describes the mistake; the attribute `fix` holds the correction."""

    def __init__(self, summary: str, fix: str = "") -> None:
        self.summary, self.fix = summary, fix
        super().__init__(summary + (f"\n  fix  {fix}" if fix else ""))


def counted(number: int, word: str) -> str:
    """Return a number with its noun in the singular or the plural: 1 node, 2 nodes."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant: one that begins with `name` or is similar, or a prefix of it."""
    plain, typed = {each.lower(): each for each in known}, name.lower()
    names = sorted(plain, key=len, reverse=True)
    begun = [each for each in names if len(typed) >= 3 and each.startswith(typed)]
    # Accept less similarity for a short name, of which one letter is a large part.
    alike = get_close_matches(typed, names, n=1, cutoff=0.6 if len(name) < 4 else 0.7)
    within = [each for each in names if len(each) >= 3 and typed.startswith(each)]
    found = begun if len(begun) == 1 else alike or within
    return plain[found[0]] if found else None


def on_one_line(text: str) -> str:
    """Return a text on one line, with control characters escaped (\\x1b), so that a terminal can show it."""
    unsafe = r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
    return re.sub(unsafe, lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
