"""Escape text from outside (logs, and names of runs, hosts and cases) so that a terminal can show it safely."""

import re

_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
_IN_NAMES, _IN_TEXTS = re.compile(rf"[\t\n{_CONTROLS}]"), re.compile(f"[{_CONTROLS}]")
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def shown_name(name: str) -> str:
    """Escape control characters, direction marks, line ends and lone surrogates in a name, in the form \\x1b."""
    return _IN_NAMES.sub(_escaped, name)


def shown_text(text: str) -> str:
    """Escape a text like a name, but keep its line ends and tabs."""
    return _IN_TEXTS.sub(_escaped, text)


def shown_log(text: str) -> str:
    """Remove colours and other escape sequences from a log, and escape the rest by `shown_text`."""
    return shown_text(_SEQUENCES.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))


def shortened(text: str, most: int = 100) -> str:
    """Return a value on one line of at most `most` characters; append the full length if the value is cut."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 20]}… ({len(text)} characters)"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
