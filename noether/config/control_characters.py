"""Refuses control characters in settings that become a name, a path or a line of a script."""

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from noether.errors import RequestError

FREE_SECTIONS = ("model", "dataset", "task")
"""Sections that may contain any text: options of components that the user has written."""

SHELL_LINES = "slurm.slurm_setup"
"""A setting that may contain any text, because it is copied into the script unchanged."""


def refuse_control_characters(settings: Mapping[str, Any]) -> None:
    """Refuses control characters and Unicode's line ends (U+0085, U+2028, U+2029) in settings.

    A line end would end a comment of the job script, and the text after it would be executed. It would also break up
    the rows of files that hold one row per line.

    Raises:
        RequestError: a setting has such characters. The fix is the setting without them.
    """
    for name, value in _texts(settings, ""):
        bad = [letter for letter in value if unicodedata.category(letter) in ("Cc", "Zl", "Zp")]
        if bad:
            clean = "".join(letter for letter in value if letter not in bad)
            raise RequestError(
                f"{name} contains a character that cannot be printed",
                seen=f"{name}={value!r}, with {', '.join(f'U+{ord(letter):04X}' for letter in dict.fromkeys(bad))}",
                expected="text on one line",
                fix=f"{name}={clean}",
            )


def _texts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if name in FREE_SECTIONS or name == SHELL_LINES:
        return
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield f"the name of a setting in {name or 'the configuration'}", str(key)
            yield from _texts(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part, name)
