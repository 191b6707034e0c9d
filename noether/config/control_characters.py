"""No setting that becomes a name, a path or a line of a script holds a character that ends a line."""

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from noether.errors import RequestError

FREE_SECTIONS = ("model", "dataset", "task")
"""Options of components that a user has written may be any text."""

SHELL_LINES = "slurm.slurm_setup"
"""Written into a script as the lines that they are."""


def refuse_control_characters(settings: Mapping[str, Any]) -> None:
    """Refuses control characters and Unicode's line ends (U+0085, U+2028, U+2029) in settings.

    They leave the comment of a job script, where what follows would be run, and the line of a file of rows.

    Raises:
        RequestError: with the setting and what it would be without them.
    """
    for name, value in _texts(settings, ""):
        bad = [letter for letter in value if unicodedata.category(letter) in ("Cc", "Zl", "Zp")]
        if bad:
            clean = "".join(letter for letter in value if letter not in bad)
            raise RequestError(
                f"{name} holds a character that cannot be printed",
                seen=f"{name}={value!r}, with {', '.join(f'U+{ord(letter):04X}' for letter in dict.fromkeys(bad))}",
                expected="a text of one line",
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
