"""Represent periodic angles, such as a phase that jumps at ±180, by cosine and sine, which are continuous.

All functions accept arrays and tensors. Errors are taken modulo the period.
"""

from math import pi
from typing import Any

import numpy as np

from noether.config.section import FieldConfig

Period = tuple[float, float]
"""The range of the angle in the files, such as (-180, 180); the angle jumps from one end to the other."""


def as_pair(angles: Any, period: Period) -> Any:
    """Return angles (…) as cosine and sine (…, 2) of 2π times their fraction of the period."""
    library, turns = _library(angles), 2 * pi * angles / (period[1] - period[0])
    return library.stack([library.cos(turns), library.sin(turns)], -1)


def as_angle(pairs: Any, period: Period) -> Any:
    """Return the angles (…), in the range `period`, of pairs (…, 2) of cosine and sine; a pair may have any length."""
    low, length = period[0], period[1] - period[0]
    turns = _library(pairs).arctan2(pairs[..., 1], pairs[..., 0]) / (2 * pi)
    return low + (turns * length - low) % length


def as_nearest(angles: Any, truth: Any, period: Period | None) -> Any:
    """Return angles shifted by whole periods to be nearest to the truth; without a period, return them unchanged."""
    if period is None:
        return angles
    length = period[1] - period[0]
    return angles - length * _library(angles).round((angles - truth) / length)


def in_units(field: FieldConfig, prediction: Any, truth: Any) -> tuple[Any, Any]:
    """Return prediction and truth (…, C) in users' units; shift the prediction of an angle (…, 1) near the truth.

    The prediction may then be outside the range by up to half a period: the difference is the error modulo the period.
    """
    if field.period is None:
        return prediction, truth
    angle, own = (as_angle(values, field.period)[..., None] for values in (prediction, truth))
    return as_nearest(angle, own, field.period), own


def as_arc(beside: np.ndarray, period: Period | None) -> np.ndarray:
    """Convert half-widths (…, 2) of cosine and sine into half-widths (…) of the angle; without a period, do nothing."""
    if period is None:
        return beside
    return np.asarray(np.linalg.norm(beside, axis=-1) * (period[1] - period[0]) / (2 * pi))


def _library(values: Any) -> Any:
    """Return NumPy or torch, whose functions used here have the same names."""
    if isinstance(values, np.ndarray):
        return np
    import torch

    return torch
