"""Angles that jump, as a phase does at ±180: stored and learned as cosine and sine, which do not."""

import numpy as np

Period = tuple[float, float]
"""The range in which files have the angle, such as (-180, 180); it jumps from one end to the other."""


def as_pair(angles: np.ndarray, period: Period) -> np.ndarray:
    """Returns angles (n,) as cosine and sine (n, 2) of their share of the period."""
    turns = 2 * np.pi * np.asarray(angles, np.float64) / (period[1] - period[0])
    return np.stack([np.cos(turns), np.sin(turns)], axis=-1)


def as_nearest(angles: np.ndarray, truth: np.ndarray, period: Period | None) -> np.ndarray:
    """Returns angles moved by whole periods to where they are nearest to the truth; other fields as they are."""
    if period is None:
        return angles
    length = period[1] - period[0]
    return np.asarray(angles - length * np.round((angles - truth) / length))


def as_arc(beside: np.ndarray, period: Period | None) -> np.ndarray:
    """Returns how far cosine and sine, of a circle of radius 1, may be off (…, 2), as an angle (…); others as given."""
    if period is None:
        return beside
    return np.asarray(np.linalg.norm(beside, axis=-1) * (period[1] - period[0]) / (2 * np.pi))


def as_angle(pairs: np.ndarray, period: Period) -> np.ndarray:
    """Returns cosine and sine (…, 2), of any length, as angles (…) in the range."""
    low, length = period[0], period[1] - period[0]
    turns = np.arctan2(pairs[..., 1], pairs[..., 0]) / (2 * np.pi)
    return np.asarray(low + (turns * length - low) % length)
