"""Which known name was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is most like `name`, or None where none is alike."""
    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `name, did you mean X?`, or `name; known: …` where nothing is alike."""
    known = sorted(known)
    match = nearest(name, known)
    return f"{name!r}, did you mean {match!r}?" if match else f"{name!r}; known: {', '.join(known)}"
