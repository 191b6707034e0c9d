"""Warns about units that cannot be right: pressures that do not fit the speeds, speeds beyond reason, empty fields."""

from collections.abc import Mapping
from typing import Any

AIR_DENSITY = 1.2  # kg/m³


def implausible(metadata: Mapping[str, Any]) -> list[str]:
    """Returns what is odd about the ranges of the fields and parameters, in words; empty where nothing is."""
    return [*_pressure_and_speed(metadata), *_empty_fields(metadata), *_speed_of_the_wind(metadata)]


def _largest(entry: Mapping[str, Any]) -> float:
    return max((abs(value) for side in ("low", "high") for value in entry[side]), default=0.0)


def _speeds(metadata: Mapping[str, Any]) -> dict[str, float]:
    fields = {key: _largest(entry) for key, entry in metadata["fields"].items() if entry["unit"] == "m/s"}
    numbers = {name: entry["high"] for name, entry in metadata["parameters"].items() if entry["unit"] == "m/s"}
    return {**fields, **numbers}


def _pressure_and_speed(metadata: Mapping[str, Any]) -> list[str]:
    """Holds each pressure in Pa against the dynamic pressure of the fastest air: their ratio is of the order of 1."""
    speeds = _speeds(metadata)
    fastest = max(speeds.values(), default=0.0)
    if not fastest:
        return []
    words = []
    for key, entry in metadata["fields"].items():
        if entry["unit"] != "Pa" or "pressure" not in key:
            continue
        ratio = _largest(entry) / (0.5 * AIR_DENSITY * fastest**2)
        if ratio > 100:
            words.append(f"{key} reaches {_largest(entry):.4g} Pa, {ratio:.3g} times the dynamic pressure of "
                         f"{fastest:.4g} m/s: is it absolute, or not in Pa?")  # fmt: skip
        elif ratio < 0.02:
            words.append(f"{key} reaches only {_largest(entry):.4g} Pa, {ratio:.2g} of the dynamic pressure of "
                         f"{fastest:.4g} m/s: is it a coefficient, or in kPa?")  # fmt: skip
    return words


def _speed_of_the_wind(metadata: Mapping[str, Any]) -> list[str]:
    return [f"{name} reaches {value:.4g} m/s: is it in other units?" for name, value in _speeds(metadata).items()
            if value > 2000]  # fmt: skip


def _empty_fields(metadata: Mapping[str, Any]) -> list[str]:
    return [f"{key} is {entry['low'][0]:g} everywhere" for key, entry in metadata["fields"].items()
            if entry["low"] == entry["high"]]  # fmt: skip
