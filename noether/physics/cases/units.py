"""Units, read and converted by pint, which is imported where the first one is read: it takes a fifth of a second."""

import re
from contextlib import suppress
from fractions import Fraction
from functools import cache
from typing import Any

USUAL = """
    m in ft yd mi g t lb s min h A K °C °F mol N lbf kgf Pa bar psi ksi atm mHg J cal Wh eV Btu W hp V C F S Ω H Wb T Oe
    l gal Hz rpm kn mph deg rad sr % ppm dB
"""
"""The units that names state, with any of PREFIXES: pint takes words for constants and others, as Re for charges."""
PREFIXES = ("", "pico", "nano", "micro", "milli", "centi", "hecto", "kilo", "mega", "giga", "tera")
SPELT = {"°": "deg", "dBi": "dB", "Nm": "(N*m)", "kNm": "(kN*m)", "Nmm": "(N*mm)"}
"""What pint does not read so; its own Nm is of yarn."""
_FACTOR = re.compile(r"([^\W\d_¹²³]+|°[CF]?|%)(?:\^?([-−]?\d|[⁻¹²³]+))?")
_DIGITS = str.maketrans("⁻¹²³−", "-123-")


@cache
def is_unit(text: str) -> bool:
    """Returns whether a text is a unit: known symbols and their powers, with · * / and brackets between."""
    words = {*re.split(r"[·*/() ]+", text)} - {"", "1"}
    factors = [_FACTOR.fullmatch(word) for word in words]
    return text in ("1", "-") or (bool(factors) and all(own is not None and _is_usual(own[1]) for own in factors))


def factor(unit: str, into: str) -> float | None:
    """Returns what turns numbers in a unit into numbers in another one, neither with an offset; None: nothing does."""
    one, other = _read(unit), _read(into)
    if one is None or other is None or one.dimensionality != other.dimensionality:
        return None
    return float(_pint()[0].Quantity(1, one).to(other).magnitude)


def of_one_quantity(unit: str, other: str) -> bool:
    """Returns whether two units are of one quantity, as °F and K. C and F alone are degrees, not coulomb and farad."""
    found = [_read({"C": "°C", "F": "°F"}.get(text, text)) for text in (unit, other)]
    return None not in found and found[0].dimensionality == found[1].dimensionality


@cache
def _pint() -> tuple[Any, frozenset[str]]:
    """pint's registry, and its names of USUAL."""
    import pint

    registry: Any = pint.UnitRegistry(non_int_type=Fraction)  # exact: a foot is 0.3048 m to the last bit
    return registry, frozenset(registry.parse_unit_name(symbol)[0][1] for symbol in USUAL.split())


def _is_usual(symbol: str) -> bool:
    registry, usual = _pint()
    found = registry.parse_unit_name(symbol)[:1]  # its own first choice, such as a minute for min
    return symbol in SPELT or any(prefix in PREFIXES and unit in usual for prefix, unit, _ in found)


@cache
def _read(text: str) -> Any:
    """A unit of pint; None where a text is none, or one that pint does not multiply, as dB/m."""
    if is_unit(text):
        with suppress(Exception):  # whatever its parser meets, such as a bracket that is not closed
            words = _FACTOR.sub(lambda own: f"{SPELT.get(own[1], own[1])}**{own[2] or 1}".translate(_DIGITS), text)
            unit = _pint()[0].Unit("" if text == "-" else words)
            return unit if unit.dimensionality is not None else None
    return None
