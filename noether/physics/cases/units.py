"""Read and convert units with pint, which is imported only when it is needed, because the import takes 0.2 s."""

import re
from contextlib import suppress
from fractions import Fraction
from functools import cache
from typing import Any

USUAL = """
    m in ft yd mi g t lb s min h A K °C °F mol N lbf kgf Pa bar psi ksi atm mHg J cal Wh eV Btu W hp V C F S Ω H Wb T Oe
    l gal Hz rpm kn mph deg rad sr % ppm dB
"""
"""Units recognised in names, with any of PREFIXES. Pint alone would also take other words for units, such as Re."""
PREFIXES = ("", "pico", "nano", "micro", "milli", "centi", "hecto", "kilo", "mega", "giga", "tera")
SPELT = {"°": "deg", "dBi": "dB", "Nm": "(N*m)", "kNm": "(kN*m)", "Nmm": "(N*mm)"}
"""Symbols that pint would misread, and how they are written for it; it takes Nm, for example, for a unit of yarn."""
_FACTOR = re.compile(r"([^\W\d_¹²³]+|°[CF]?|%)(?:\^?([-−]?\d|[⁻¹²³]+))?")
_DIGITS = str.maketrans("⁻¹²³−", "-123-")


@cache
def is_unit(text: str) -> bool:
    """Return whether a text is a unit: usual symbols and their powers, joined by ·, *, / and brackets."""
    words = {*re.split(r"[·*/() ]+", text)} - {"", "1"}
    factors = [_FACTOR.fullmatch(word) for word in words]
    return text in ("1", "-") or (bool(factors) and all(own is not None and _is_usual(own[1]) for own in factors))


def factor(unit: str, into: str) -> float | None:
    """Return the factor that converts `unit` to `into`, without any offset; None if there is no such conversion."""
    one, other = _read(unit), _read(into)
    if one is None or other is None or one.dimensionality != other.dimensionality:
        return None
    return float(_pint()[0].Quantity(1, one).to(other).magnitude)


def of_one_quantity(unit: str, other: str) -> bool:
    """Return whether two units measure the same quantity, as °F and K do; here, C and F mean °C and °F."""
    found = [_read({"C": "°C", "F": "°F"}.get(text, text)) for text in (unit, other)]
    return None not in found and found[0].dimensionality == found[1].dimensionality


@cache
def _pint() -> tuple[Any, frozenset[str]]:
    """Return pint's registry, and pint's names for the units in USUAL."""
    import pint

    registry: Any = pint.UnitRegistry(non_int_type=Fraction)  # exact arithmetic: a foot is 0.3048 m to the last bit
    return registry, frozenset(registry.parse_unit_name(symbol)[0][1] for symbol in USUAL.split())


def _is_usual(symbol: str) -> bool:
    registry, usual = _pint()
    found = registry.parse_unit_name(symbol)[:1]  # pint's first choice, such as a minute for min
    return symbol in SPELT or any(prefix in PREFIXES and unit in usual for prefix, unit, _ in found)


@cache
def _read(text: str) -> Any:
    """Return pint's unit for a text; None if the text is not a unit, or pint cannot build it (such as dB/m)."""
    if is_unit(text):
        with suppress(Exception):  # any error of pint's parser, for example for an unclosed bracket
            words = _FACTOR.sub(lambda own: f"{SPELT.get(own[1], own[1])}**{own[2] or 1}".translate(_DIGITS), text)
            unit = _pint()[0].Unit("" if text == "-" else words)
            return unit if unit.dimensionality is not None else None
    return None
