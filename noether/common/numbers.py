"""Format numbers the same way everywhere: percentages with two decimals, other numbers with four significant digits.

The report typesets the texts by `typeset`. For the live page, `watch/static/format.js` follows the same rules.
"""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from noether.common.errors import RequestError
from noether.common.sanitize import shortened

NONE = "–"
"""Printed in place of a number that does not exist, such as a ratio to 0 or a NaN."""
DIGITS = 4
LENGTHS = {"m": 1.0, "mm": 1e-3, "cm": 1e-2, "in": 0.0254, "ft": 0.3048}
"""{unit of length: its length in metres}"""


def whole(text: str) -> int | None:
    """Convert text of up to 18 ASCII digits into an int; return None for other text, such as "²" or 5,000 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def whole_number(environ: Mapping[str, str], name: str, low: int = 0, high: int = 10**18) -> int:
    """Return the whole number in an environment variable. RequestError: it is not a number from `low` to `high`."""
    number = whole(environ[name].strip())
    if number is not None and low <= number <= high:
        return number
    raise RequestError("variable-not-a-number",
                       f"{name} is not a number" if number is None else f"{name} is too low or too high",
                       seen=f"{name}={shortened(environ[name])}",
                       expected=f"a number from {low} to {high}" if high < 10**18 else "a number",
                       fix=f"unset {name}")  # fmt: skip


def is_number(value: Any) -> bool:
    """Return whether a value is an integer or a float and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def finite(value: Any, otherwise: Any = None) -> Any:
    """Return the value if it is a finite number that fits into a float, else `otherwise`."""
    try:
        return value if is_number(value) and isfinite(value) else otherwise
    except OverflowError:  # An integer of a thousand digits.
        return otherwise


def count_text(value: Any) -> str:
    """Format a whole number with thousands separators, any other number with four significant digits."""
    return f"{value:,}" if isinstance(value, int) else number_text(value)


def counted(number: Any, word: str) -> str:
    """Return a count with its noun, such as "1 node" or "2 nodes"."""
    return f"{count_text(number)} {word}{'s' * (number != 1)}"


def listed(parts: Sequence[str]) -> str:
    """Join parts in words: "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def first_of(parts: Sequence[str], most: int, mark: str = ", ") -> str:
    """Join the first `most` parts, and count the rest: "a, b and 7 more"."""
    return mark.join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")


def number_text(value: Any, digits: int = DIGITS) -> str:
    """Format a number with `digits` significant digits; from a million up, or below a thousandth, as 1.235e-5."""
    if finite(value) is None:
        return NONE
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    exponent = int(power)
    if float(mantissa) == 0:
        return "0"
    if -4 < exponent < 6:
        return f"{float(f'{mantissa}e{power}'):,.{max(0, digits - 1 - exponent)}f}"
    return f"{mantissa}e{exponent}"


def score_text(score: Any) -> str:
    """Format a score whose best value is 1; a lower score is never rounded up to 1."""
    if finite(score) is not None and 1 - 0.5 * 10**-DIGITS <= score < 1:
        return f"{min(score, 1 - 1e-6):.6f}"
    return number_text(score)


def percent_text(share: Any, digits: int | None = None) -> str:
    """Format a fraction as a percentage: with two decimals, or with `digits` significant digits if that is given."""
    if finite(share) is None:
        return NONE
    if digits is None and (share == 0 or 1e-4 <= abs(share) < 1e4):
        return f"{100 * share:.2f}%"
    return f"{number_text(100 * share, digits or 3)}%"


def size_text(count: float) -> str:
    """Format a size in bytes with a suitable unit."""
    step = next((step for step in range(3) if count < 1024 ** (step + 1)), 3)
    return f"{count / 1024**step:.4g} {('B', 'KiB', 'MiB', 'GiB')[step]}"


def duration_text(seconds: float) -> str:
    """Format a duration in the largest unit in which it is at least 2: 119 s, 2 min, 47 h, 2 d."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def strict_json(content: Any, indent: int | None = None) -> str:
    """Write JSON that every reader accepts: NaN and infinity become null, at any depth."""
    return json.dumps(_finite_in(content), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite_in(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite_in(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite_in(item) for item in value]
    return finite(value) if isinstance(value, float) else value
